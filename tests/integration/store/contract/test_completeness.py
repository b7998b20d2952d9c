"""None of the 64 invariants is forgotten."""

from __future__ import annotations

import re
from pathlib import Path

COUNT = 64


def test_every_invariant_has_a_test() -> None:
    held: set[int] = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        for numbers in re.findall(r'"""Invariants? ([\d, ]+)', path.read_text()):
            held |= {int(number) for number in numbers.split(",") if number.strip()}
    assert held == set(range(1, COUNT + 1))
