"""The real parts: vLLM and verl on the CPU with the calculator example, under the same faults.

Floating-point sums depend on what is computed together, so two runs are not equal bit for bit; their reward curves are
compared instead, and everything that is counted must be the same.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.chaos.stack import Parts

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "calculator"
STEPS = 8
TOLERANCE = 0.1
"""Most that two reward curves may be apart: the mean over the steps of the distance between their mean rewards."""
KINDS = ("kill", "terminate", "freeze", "cut", "away", "deploy")


def _files(folder: Path) -> None:
    shutil.copytree(EXAMPLE / "policy", folder / "policy")
    shutil.copy(EXAMPLE / "train.jsonl", folder / "train.jsonl")


REAL = Parts(
    agent=f"{Path(__file__).parent / 'parts' / 'calculator.py'}:calculator",
    prepare=_files,
    file=json.loads((EXAMPLE / "run.json").read_bytes())
    | {
        "model": "policy",
        "data": {"train": "train.jsonl", "required_fields": ["question", "calls", "answer"]},
        "group_size": 4,
        "batch_size": 4,
    },
    environment={},
    tolerance=TOLERANCE,
    run_seconds=2400,
    pause_factor=6.0,
)
