"""Memory of a runner before the agent's own imports.

    python -m benchmarks.runner_memory [--json]

The runner and its fork server, started with an agent that imports nothing, each as a process; resident memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
from pathlib import Path

import relight.runner.worker  # noqa: F401 - what a runner process holds
from relight.runner.shared_isolation import SharedRunner

LIMIT_MIB = 150
AGENT = "def nothing(task):\n    return 0.0\n"


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} is gone")


async def measure(agent: Path) -> dict[str, float]:
    runner = SharedRunner([f"{agent}:nothing"])
    report = await runner.start()
    found = {"runner_mib": resident_mib(os.getpid()), "fork_server_mib": resident_mib(report.pid)}
    await runner.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="relight-bench-") as folder:
        agent = Path(folder) / "nothing.py"
        agent.write_text(AGENT)
        found = asyncio.run(measure(agent))
    if arguments.json:
        print(json.dumps(found))
        return
    runner, fork_server = found["runner_mib"], found["fork_server_mib"]
    print(f"runner {runner:.0f} MiB, its fork server {fork_server:.0f} MiB (wanted: under {LIMIT_MIB})")


if __name__ == "__main__":
    main()
