"""The cost of the gateway: the same model calls directly to vLLM and through the gateway, in turns, on one machine.

    python -m benchmarks.gateway [--model DIR] [--rounds 5] [--json]

Real parts, each a process: vLLM without a GPU on a unix socket, Postgres, the store service, the gateway, and the
client that measures. Every call samples exactly 32 tokens, with token ids and logprobs on both sides; through the
gateway each is also committed to Postgres before it is answered. An attempt makes eight calls. All processes share the
machine's cores, so that what the gateway and the store use is taken from vLLM. The two sides take turns, call by call
with one in flight, round by round with 64, and are compared within a round, so that what else the machine does weighs
on both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import orjson

from benchmarks.gateway_client import TOKENS, Order, Side
from relight.gpu_worker.engine import EngineProcess
from relight.store.attempts.client import StoreClient
from relight.store.database import Database
from relight.types.wire import OpenRequest
from tests.support.postgres import create_database, postgres_server
from tests.support.seeds import seed_engine, seed_rollout, seed_run
from tests.support.tiny_policy import make_tiny_policy

CALLS_PER_ATTEMPT = 8
BOOT_SECONDS = 300.0
POLICY = Path(__file__).parent.parent / "examples" / "calculator" / "policy"
SERVER = (
    "import uvloop; from {module} import serve; from relight.settings import load_settings;"
    " uvloop.run(serve(load_settings(), {where}))"
)


async def have_called(order: Order) -> list[tuple[Side, Side]]:
    """Have the client process make its calls; the first round was a warm-up."""
    command = (sys.executable, "-m", "benchmarks.gateway_client")
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    out, _ = await child.communicate(orjson.dumps(asdict(order)))
    if child.returncode:
        raise SystemExit("the client failed")
    return [(Side(**direct), Side(**through)) for direct, through in orjson.loads(out)[1:]]


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
    """A free port."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    yield port


async def prepare(database_url: str, engine_url: str, rollouts: int) -> None:
    """A run whose engine is ready, and rollouts whose agents choose the sampling, so that answers have 32 tokens."""
    database = await Database.connect(database_url, max_size=2)
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
    """The processes of the benchmark."""

    engine: EngineProcess
    store: StoreClient
    watched: dict[str, list[int]]
    opened: int = 0

    async def attempts(self, count: int) -> list[tuple[str, str]]:
        """Fresh attempts: base URL and key."""
        opened: list[tuple[str, str]] = []
        for number in range(self.opened, self.opened + count):
            asked = OpenRequest(rollout_id=f"bench-{number}", try_number=1, execution=f"x{number}", worker_id="bench")
            answer = (await self.store.open_attempt(asked)).attempt
            if answer is None:
                raise SystemExit("the store opened no attempt")
            opened.append((answer.base_url, answer.token))
        self.opened += count
        return opened


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
        postgres_pid = int((folder / "postgres" / "data" / "postmaster.pid").read_text().split()[0])
        watched = {"gateway": [gateway_pid], "store": [store_pid], "postgres": [postgres_pid], "vllm": engine.pids}
        yield Bench(engine, store, watched)


def summary(rounds: list[tuple[Side, Side]]) -> dict[str, Any]:
    """Medians over the rounds; ratio and added latency from the two sides of each."""
    direct, through = zip(*rounds, strict=True)
    return {
        "direct_per_second": median(side.calls / side.seconds for side in direct),
        "gateway_per_second": median(side.calls / side.seconds for side in through),
        "throughput_ratio": median(a.seconds / b.seconds for a, b in rounds),
        "direct_median_ms": median(side.median_ms for side in direct),
        "gateway_median_ms": median(side.median_ms for side in through),
        "added_median_ms": median(b.median_ms - a.median_ms for a, b in rounds),
        "cpu_ms_per_call": {name: median(side.cpu_ms[name] for side in through) for name in through[0].cpu_ms},
        "direct_vllm_cpu_ms_per_call": median(side.cpu_ms["vllm"] for side in direct),
    }


async def bench(model: Path, rounds: int, plans: dict[int, int]) -> dict[int, dict[str, Any]]:
    """All rounds, and one of each kind to warm up."""
    rollouts = sum(attempts * (rounds + 1) for attempts in plans.values())
    results: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="relight-bench-") as folder:
        async with parts(model, rollouts, Path(folder)) as running:
            for in_flight, attempts in plans.items():
                opened = [await running.attempts(attempts) for _ in range(rounds + 1)]
                socket = str(running.engine.socket_path)
                order = Order(socket, opened, CALLS_PER_ATTEMPT, in_flight, running.watched)
                results[in_flight] = summary(await have_called(order))
    return results


def report(results: dict[int, dict[str, Any]]) -> None:
    """Print the results for people."""
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
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="relight-policy-") as made:
        model = options.model or (POLICY if (POLICY / "config.json").exists() else make_tiny_policy(Path(made)))
        results = asyncio.run(bench(model, options.rounds, {1: 8, 64: 64}))
    print(json.dumps(results)) if options.json else report(results)


if __name__ == "__main__":
    main()
