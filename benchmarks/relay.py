"""The cost of the runner's relay: the same calls directly to a gateway and through the relay, in turns.

    python -m benchmarks.relay [--rounds 5] [--calls 300] [--json]

The gateway's HTTP server answers at once, so that nothing hides the relay. Agents run in both kinds of isolation, one
alone and sixteen that rest between their calls, as they would for a model's answer; each takes turns between the two
ways, call by call, and they are compared within it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from statistics import fmean, median
from typing import Any

import uvloop

from benchmarks import relay_agents
from benchmarks.gateway import answers, free_port
from relight.runner.agent_call import AgentCall
from relight.runner.gateway_probe import GatewayProbe
from relight.runner.shared_isolation import SharedRunner
from relight.types.rollout import RolloutConfig
from relight.types.wire import OpenedAttempt

LIMIT_MS = 0.5
"""The largest acceptable cost of a call (rule 3)."""
AGENTS = {"process": "by_itself", "shared": "beside_others"}
AT_ONCE = {1: 0.0, 16: 0.05}
"""Numbers of agents, and the seconds that each waits between two pairs of calls."""
ANSWER = json.dumps({"choices": [{"message": {"role": "assistant", "content": "56 " * 400}}]}).encode()


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Answer any request at once."""
    while (await receive()).get("more_body"):
        pass
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(ANSWER)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": ANSWER})


@asynccontextmanager
async def server() -> AsyncGenerator[str]:
    """The gateway's HTTP server, as a process."""
    with free_port() as port:
        code = (
            f"import uvicorn; uvicorn.run('benchmarks.relay:answer', port={port}, http='httptools', loop='uvloop', "
            "lifespan='off', log_level='error', access_log=False)"
        )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    try:
        await answers(f"http://127.0.0.1:{port}/healthz", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


def opened_at(url: str, number: int) -> OpenedAttempt:
    base_url = f"{url}/rollout/r{number}/attempt/at-{number}/v1"
    return OpenedAttempt(
        rollout_id=f"r{number}",
        attempt_id=f"at-{number}",
        sequence_id=1,
        fence=1,
        token="k",
        base_url=base_url,
        config=RolloutConfig(),
    )


async def attempt(
    agents: SharedRunner, gateway: GatewayProbe, isolation: str, number: int, calls: int, pause: float
) -> Any:
    """One agent: median and mean of both ways."""
    opened = opened_at(gateway.url, number)
    call = AgentCall.from_opened(opened.model_copy(update={"alone": isolation == "process"}), AGENTS[isolation])
    async with gateway.relay.followed(opened) as log:
        task = {"straight": opened.base_url, "calls": calls, "pause": pause}
        outcome = await agents.call(replace(call, task=task).by_way_of(log.base_url))
        lost = await log.lost_call()
    if outcome.kind != "returned" or lost:
        raise SystemExit(f"an agent failed: {outcome.message} {lost or ''}")
    return json.loads(outcome.output)


def compared(found: list[Any]) -> dict[str, float]:
    """The agents of one round."""
    (straight, straight_mean), (relayed, relayed_mean) = (
        [fmean(side[which] for side in sides) for which in (0, 1)] for sides in zip(*found, strict=True)
    )
    return {
        "straight_ms": straight,
        "relayed_ms": relayed,
        "added_ms": relayed - straight,
        "added_mean_ms": relayed_mean - straight_mean,
        "ratio": relayed / straight,
    }


async def bench(rounds: int, calls: int) -> dict[str, dict[str, float]]:
    """All rounds, of each isolation and number of agents."""
    results: dict[str, dict[str, float]] = {}
    agents = SharedRunner([f"{relay_agents.__file__}:{name}" for name in AGENTS.values()])
    await agents.start()
    async with server() as url:
        gateway = GatewayProbe(url)
        for isolation in AGENTS:
            for at_once, pause in AT_ONCE.items():
                found: list[dict[str, float]] = []
                for _ in range(rounds):
                    together = (
                        attempt(agents, gateway, isolation, n, calls // at_once + 20, pause) for n in range(at_once)
                    )
                    found.append(compared(await asyncio.gather(*together)))
                medians = {name: median(one[name] for one in found) for name in found[0]}
                results[f"{isolation} isolation, {at_once} at once"] = medians
        await gateway.close()
    await agents.close()
    return results


def report(results: dict[str, dict[str, float]]) -> None:
    """Print the results for people."""
    print((__doc__ or "").strip().split("\n\n")[0])
    for title, found in results.items():
        print(
            f"  {title:28s} straight {found['straight_ms']:6.2f} ms  relayed {found['relayed_ms']:6.2f} ms"
            f"   added {found['added_ms']:5.2f} ms (mean {found['added_mean_ms']:.2f})   ratio {found['ratio']:.2f}"
        )
    print(f"  (added: under {LIMIT_MS} ms wanted, one at a time)")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="the runner's relay against none")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=300, help="of a round, on each way")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = uvloop.run(bench(options.rounds, options.calls))
    print(json.dumps(results)) if options.json else report(results)


if __name__ == "__main__":
    main()
