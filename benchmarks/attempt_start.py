"""How much longer an attempt takes because it is confined.

    python -m benchmarks.attempt_start [--calls 300] [--json]

An agent that returns at once, one call after the other, by runners whose agents are confined, confined in namespaces,
and neither; they take turns, so that all see the same machine. The time is that of the whole call: fork, confinement,
the call, the end of the process, the emptying of its scratch folder.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from relight.confinement import sandbox
from relight.confinement.policy import policy
from relight.runner.agent_call import AgentCall
from relight.runner.attempt_limits import AttemptLimits
from relight.runner.process_isolation import IsolatedRunner

AGENT = "def nothing(task):\n    return 0.0\n"
LIMITS = {"confined": 1.3, "namespaces": 2.0}
"""How many times as long as an unconfined attempt one may take."""
WARM_UP = 20


async def seconds(runner: IsolatedRunner) -> float:
    """The time of one call."""
    began = perf_counter()
    outcome = await runner.call(AgentCall(call_id="at-1", agent="nothing", task={}))
    if outcome.reward != 0.0:
        raise SystemExit(f"the agent failed: {outcome.message}")
    return perf_counter() - began


async def measure(folder: Path, calls: int) -> dict[str, float]:
    """Milliseconds of an attempt, by what holds it."""
    agent = folder / "nothing.py"
    agent.write_text(AGENT)
    held = {"policy": policy(home=folder / "home"), "limits": AttemptLimits(2**34, 1024, 2**34)}
    options: dict[str, dict[str, Any]] = {"open": {}, "confined": held}
    if lacking := await sandbox.namespace_error(sys.executable):
        print(sandbox.describe(lacking), file=sys.stderr)
    else:
        options["namespaces"] = held | {"namespaces": True}
    found: dict[str, list[float]] = {name: [] for name in options}
    async with AsyncExitStack() as stack:
        runners = {
            name: await stack.enter_async_context(IsolatedRunner([f"{agent}:nothing"], **chosen))
            for name, chosen in options.items()
        }
        for number in range(calls + WARM_UP):
            for name, runner in runners.items():
                took = await seconds(runner)
                if number >= WARM_UP:
                    found[name].append(took)
    return {name: median(times) * 1000 for name, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="relight-bench-") as folder:
        found = asyncio.run(measure(Path(folder), arguments.calls))
    if arguments.json:
        print(json.dumps(found))
        return
    plain = found["open"]
    print(f"an attempt: {plain:.1f} ms")
    for name in (name for name in LIMITS if name in found):
        print(f"{name}: {found[name]:.1f} ms, {found[name] / plain:.2f} times (wanted: under {LIMITS[name]})")


if __name__ == "__main__":
    main()
