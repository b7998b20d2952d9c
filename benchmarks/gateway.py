"""What the gateway costs: the same model calls straight to vLLM and through the gateway, in turns, on one machine.

    python -m benchmarks.gateway [--model DIR] [--rounds 5] [--json]

Real parts, each a process: vLLM without a GPU on a unix socket, Postgres, the store service, the gateway, and the
client that measures. Every call samples exactly 32 tokens, with token ids and logprobs on both sides; through the
gateway each is also committed to Postgres before it is answered. An attempt makes eight calls. All processes share the
machine's cores, so that what the gateway and the store use is taken from vLLM. Ratio and added latency are medians over
pairs of neighbouring rounds, so that what else the machine does weighs on both sides.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import statistics
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import aiohttp
import orjson

from relight.gpu_worker.engine import EngineProcess
from relight.store.client import StoreClient
from relight.store.database import Database
from relight.types.wire import OpenRequest
from tests.support.postgres import create_database, postgres_server
from tests.support.seeds import seed_engine, seed_rollout, seed_run
from tests.support.tiny_policy import make_tiny_policy

TOKENS = 32
CALLS_PER_ATTEMPT = 8
BOOT_SECONDS = 300.0
TICKS = os.sysconf("SC_CLK_TCK")
POLICY = Path(__file__).parent.parent / "examples" / "calculator" / "policy"
SERVER = (
    "import sys; from {module} import run; from relight.settings import load_settings; run(load_settings(), {where})"
)


@dataclass(frozen=True)
class Target:
    """Where a round's calls go: a base URL and a key for each attempt, or the engine's socket."""

    socket: str | None
    attempts: list[tuple[str, str]]


@dataclass(frozen=True)
class Round:
    """One round of calls, as the client saw it."""

    calls: int
    seconds: float
    median_ms: float
    cpu_ms: dict[str, float]
    """CPU time a call, by process."""

    @property
    def per_second(self) -> float:
        return self.calls / self.seconds


def request(number: int) -> dict[str, Any]:
    """One call; the fields that the gateway adds are there already, so that both sides ask the same of vLLM."""
    return {
        "model": "policy",
        "messages": [{"role": "user", "content": f"{number % 10}*{number // 10 % 10}?"}],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "seed": number,
        "logprobs": True,
        "return_token_ids": True,
    }


# --- the client, a process of its own


async def client(order: dict[str, Any]) -> dict[str, Any]:
    """Make the calls of one round, `in_flight` at a time."""
    connector = aiohttp.UnixConnector(order["socket"], limit=0) if order["socket"] else aiohttp.TCPConnector(limit=0)
    waits: list[float] = []
    async with aiohttp.ClientSession(connector=connector) as session:
        work = iter(enumerate(order["attempts"]))

        async def slot() -> None:
            for number, (base, key) in work:
                for call in range(CALLS_PER_ATTEMPT):
                    waits.append(await one(session, base, key, number * CALLS_PER_ATTEMPT + call))

        began = perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(order["in_flight"]):
                group.create_task(slot())
    return {"calls": len(waits), "seconds": perf_counter() - began, "median_ms": statistics.median(waits) * 1e3}


async def one(session: aiohttp.ClientSession, base: str, key: str, number: int) -> float:
    """One call; returns its seconds."""
    content = orjson.dumps(request(number))
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    began = perf_counter()
    async with session.post(f"{base}/chat/completions", data=content, headers=headers) as response:
        answer = orjson.loads(await response.read())
    took = perf_counter() - began
    if response.status != 200 or len(answer["choices"][0]["token_ids"]) != TOKENS:
        raise RuntimeError(f"{base}: HTTP {response.status}: {str(answer)[:300]}")
    return took


async def measure(target: Target, in_flight: int, watched: dict[str, list[int]]) -> Round:
    """Have the client process do one round, and read what it cost whom."""
    before = {name: cpu_seconds(pids) for name, pids in watched.items()}
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.gateway",
        "--client",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await child.communicate(orjson.dumps({**asdict(target), "in_flight": in_flight}))
    if child.returncode:
        raise SystemExit("the client failed")
    seen = orjson.loads(out)
    cpu = {name: (cpu_seconds(pids) - before[name]) / seen["calls"] * 1e3 for name, pids in watched.items()}
    return Round(**seen, cpu_ms=cpu)


# --- what is measured


def cpu_seconds(pids: list[int]) -> float:
    """CPU time of processes and their living descendants."""
    children: dict[int, list[int]] = {}
    times: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            times[int(entry.name)] = (int(fields[11]) + int(fields[12])) / TICKS
    seen: set[int] = set()
    left = list(pids)
    while left:
        pid = left.pop()
        if pid not in seen:
            seen.add(pid)
            left += children.get(pid, [])
    return sum(times.get(pid, 0.0) for pid in seen)


@asynccontextmanager
async def server(module: str, where: str, environment: dict[str, str], health: str) -> AsyncGenerator[int]:
    """A Relight service as a process; yields its pid once it answers."""
    code = SERVER.format(module=module, where=where)
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", code, env=os.environ | environment)
    try:
        await answers(health, child)
        yield child.pid
    finally:
        if child.returncode is None:
            child.terminate()
        await child.wait()


async def answers(url: str, child: asyncio.subprocess.Process) -> None:
    """Wait until a URL answers."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        while child.returncode is None:
            try:
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)
    raise SystemExit(f"the process behind {url} ended as it started")


@contextmanager
def free_port() -> Iterator[int]:
    """A port that nobody listens on."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    yield port


async def prepare(database_url: str, engine_url: str, rollouts: int) -> None:
    """A run whose engine is ready, and rollouts whose agents choose their sampling (so that 32 tokens are 32)."""
    database = await Database.connect(database_url, max_size=2)
    await database.pool.execute("alter system reset all")  # tests run Postgres without fsync; here it is to cost
    await database.pool.execute("select pg_reload_conf()")
    await seed_run(database)
    plan = {"sampling": {"temperature": 1.0, "max_tokens": None, "top_k": -1, "agent_chooses": True}}
    await database.pool.execute("update steps set plan = $1", plan)
    for number in range(rollouts):
        await seed_rollout(database, f"bench-{number}")
    await seed_engine(database)
    await database.pool.execute("update engines set url = $1", engine_url)
    await database.close()


@dataclass
class Bench:
    """Everything that runs."""

    engine: EngineProcess
    store: StoreClient
    watched: dict[str, list[int]]
    opened: int = 0

    async def direct(self, attempts: int) -> Target:
        """Straight to vLLM."""
        return Target(str(self.engine.socket_path), [("http://engine/v1", "none")] * attempts)

    async def through(self, attempts: int) -> Target:
        """Through the gateway, with fresh attempts."""
        opened: list[tuple[str, str]] = []
        for number in range(self.opened, self.opened + attempts):
            asked = OpenRequest(rollout_id=f"bench-{number}", try_number=1, execution=f"x{number}", worker_id="bench")
            answer = (await self.store.open_attempt(asked)).attempt
            if answer is None:
                raise SystemExit("the store opened no attempt")
            opened.append((answer.base_url, answer.token))
        self.opened += attempts
        return Target(None, opened)


@asynccontextmanager
async def parts(model: Path, rollouts: int, folder: Path) -> AsyncGenerator[Bench]:
    """All processes."""
    async with AsyncExitStack() as stack:
        engine = await EngineProcess.start(model, folder / "engine.sock", log=folder / "engine.log", max_model_len=128)
        stack.push_async_callback(engine.stop)
        maintenance = await asyncio.to_thread(stack.enter_context, postgres_server(folder, durable=True))
        database_url = await create_database(maintenance)
        await prepare(database_url, f"unix:{folder / 'engine.sock'}", rollouts)
        store_port, gateway_port = stack.enter_context(free_port()), stack.enter_context(free_port())
        environment = {
            "RELIGHT_POSTGRES_URL": database_url,
            "RELIGHT_STORE_URL": f"http://127.0.0.1:{store_port}",
            "RELIGHT_GATEWAY_URL": f"http://127.0.0.1:{gateway_port}",
            "RELIGHT_TOKEN": secrets.token_hex(16),
        }
        store_url, gateway_url = environment["RELIGHT_STORE_URL"], environment["RELIGHT_GATEWAY_URL"]
        store_pid = await stack.enter_async_context(
            server("relight.store_api.server", f"'127.0.0.1', {store_port}", environment, f"{store_url}/healthz")
        )
        gateway_pid = await stack.enter_async_context(
            server("relight.llm_proxy.server", f"'127.0.0.1', {gateway_port}", environment, f"{gateway_url}/healthz")
        )
        store = await stack.enter_async_context(StoreClient(store_url, environment["RELIGHT_TOKEN"]))
        await engine.wait_ready(BOOT_SECONDS)
        postgres_pid = int((folder / "pgdata" / "postmaster.pid").read_text().split()[0])
        watched = {"gateway": [gateway_pid], "store": [store_pid], "postgres": [postgres_pid], "vllm": engine.pids}
        yield Bench(engine, store, watched)


def summary(direct: list[Round], through: list[Round]) -> dict[str, Any]:
    """Medians over the rounds; ratio and added latency from pairs of neighbouring rounds."""
    pairs = list(zip(direct, through, strict=True))
    return {
        "direct_per_second": statistics.median(one.per_second for one in direct),
        "gateway_per_second": statistics.median(one.per_second for one in through),
        "throughput_ratio": statistics.median(b.per_second / a.per_second for a, b in pairs),
        "direct_median_ms": statistics.median(one.median_ms for one in direct),
        "gateway_median_ms": statistics.median(one.median_ms for one in through),
        "added_median_ms": statistics.median(b.median_ms - a.median_ms for a, b in pairs),
        "cpu_ms_per_call": {name: statistics.median(one.cpu_ms[name] for one in through) for name in through[0].cpu_ms},
        "direct_vllm_cpu_ms_per_call": statistics.median(one.cpu_ms["vllm"] for one in direct),
    }


async def bench(model: Path, rounds: int, plans: dict[int, int]) -> dict[int, dict[str, Any]]:
    """All rounds, direct and through the gateway in turns; the first pair of each is a warm-up."""
    rollouts = sum(attempts * (rounds + 1) for attempts in plans.values())
    results: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="relight-bench-") as folder:
        async with parts(model, rollouts, Path(folder)) as running:
            for in_flight, attempts in plans.items():
                direct: list[Round] = []
                through: list[Round] = []
                for _ in range(rounds + 1):
                    direct.append(await measure(await running.direct(attempts), in_flight, running.watched))
                    through.append(await measure(await running.through(attempts), in_flight, running.watched))
                results[in_flight] = summary(direct[1:], through[1:])
    return results


def report(results: dict[int, dict[str, Any]]) -> None:
    """What was found, for people."""
    print((__doc__ or "").strip().split("\n\n")[0])
    for in_flight, found in results.items():
        cpu = ", ".join(f"{name} {ms:.2f}" for name, ms in found["cpu_ms_per_call"].items())
        print(
            f"\n{in_flight} in flight, {TOKENS} tokens a call\n"
            f"  throughput   {found['direct_per_second']:8.1f}/s direct  {found['gateway_per_second']:8.1f}/s gateway"
            f"   ratio {found['throughput_ratio']:.2f} (at least 0.80 wanted)\n"
            f"  median       {found['direct_median_ms']:8.1f} ms direct {found['gateway_median_ms']:8.1f} ms gateway"
            f"   added {found['added_median_ms']:.1f} ms (under 5 wanted at 1 in flight)\n"
            f"  CPU ms/call  {cpu} (vllm direct {found['direct_vllm_cpu_ms_per_call']:.2f})"
        )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="gateway against vLLM")
    parser.add_argument("--model", type=Path, help="model directory; a tiny random one is made where it is not given")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of rounds")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--client", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        print(json.dumps(asyncio.run(client(orjson.loads(sys.stdin.buffer.read())))))
        return
    with tempfile.TemporaryDirectory(prefix="relight-policy-") as made:
        model = options.model or (POLICY if (POLICY / "config.json").exists() else make_tiny_policy(Path(made)))
        results = asyncio.run(bench(model, options.rounds, {1: 8, 64: 64}))
    print(json.dumps(results)) if options.json else report(results)


if __name__ == "__main__":
    main()
