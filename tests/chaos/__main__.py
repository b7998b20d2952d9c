"""Faults without mercy for as long as wanted: `python -m tests.chaos --seed 1 --minutes 5 [--json]`."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
from pathlib import Path

from tests.chaos.campaign import Report, campaign
from tests.chaos.stack import chaos_stack, open_folder

KEPT = Path(".relight-chaos")


async def play(seed: int, minutes: float, steps: int) -> Report:
    """A campaign on a stack of its own; what it leaves is kept where it went wrong."""
    with open_folder() as folder:
        async with chaos_stack(folder) as chaos:
            report = await campaign(chaos, seed, 60 * minutes, steps, lambda line: print(line, file=sys.stderr))
        if not report.good:
            await asyncio.to_thread(shutil.copytree, folder, KEPT / f"seed-{seed}", dirs_exist_ok=True)
            print(f"logs and databases are kept in {KEPT / f'seed-{seed}'}", file=sys.stderr)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--steps", type=int, default=12, help="steps a run")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    report = asyncio.run(play(arguments.seed, arguments.minutes, arguments.steps))
    print(json.dumps(report.as_json()) if arguments.json else report)
    sys.exit(not report.good)


if __name__ == "__main__":
    main()
