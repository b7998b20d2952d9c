"""Inject faults by a seed into a running stack: `python -m tests.chaos --seed 1 --minutes 5 [--json]`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from tests.chaos import real
from tests.chaos.campaign import STEPS, play
from tests.chaos.faults import KINDS
from tests.chaos.report import Report, table
from tests.chaos.stack import FAST


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--steps", type=int, help="steps a run")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), help="only faults of these")
    parser.add_argument("--real", action="store_true", help="vLLM and verl on the CPU, with the calculator example")
    parser.add_argument("--guarantees", action="store_true", help="run it without faults first")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


async def played(arguments: argparse.Namespace) -> list[Report]:
    """The campaign; first, if wanted, one without faults."""
    minutes = [0.0, arguments.minutes] if arguments.guarantees else [arguments.minutes]
    reports: list[Report] = []
    for length in minutes:
        report = await play(
            arguments.seed,
            60 * length,
            steps=arguments.steps or (real.STEPS if arguments.real else STEPS),
            parts=real.REAL if arguments.real else FAST,
            kinds=arguments.kinds or (real.KINDS if arguments.real else list(KINDS)),
            say=lambda line: print(line, file=sys.stderr),
        )
        report.title = f"seed {report.seed}, {length:g} min of faults" if length else "no faults"
        reports.append(report)
    return reports


def main() -> None:
    arguments = parsed()
    reports = asyncio.run(played(arguments))
    print(json.dumps([report.as_json() for report in reports]) if arguments.json else table(reports))
    sys.exit(not all(report.good for report in reports))


if __name__ == "__main__":
    main()
