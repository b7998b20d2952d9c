"""Writes train.jsonl and heldout.jsonl: different questions, 40 % of each taking two tool calls.

    python examples/calculator/make_data.py

A question uses digits only, and its first result is never negative. The same seed writes the same files.
"""

from __future__ import annotations

import json
import random
from itertools import product
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SYMBOLS = "+-*"
ONE_CALL, TWO_CALLS = 150, 100  # of each file; there are 300 questions of one call, and 7,650 of two


def apply(left: int, symbol: str, right: int) -> int:
    """`left` `symbol` `right`, for one of the three symbols."""
    return {"+": left + right, "-": left - right, "*": left * right}[symbol]


def one_call() -> list[dict[str, Any]]:
    """All questions such as `7*8?`."""
    return [
        {"question": f"{a}{op}{b}?", "calls": 1, "answer": apply(a, op, b)}
        for a, op, b in product(range(10), SYMBOLS, range(10))
    ]


def two_calls() -> list[dict[str, Any]]:
    """All questions such as `(7*8)+3?` whose first result is not negative."""
    return [
        {"question": f"({a}{first}{b}){then}{c}?", "calls": 2, "answer": apply(apply(a, first, b), then, c)}
        for a, first, b, then, c in product(range(10), SYMBOLS, range(10), SYMBOLS, range(10))
        if apply(a, first, b) >= 0
    ]


def split(seed: int = 0) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Training and held-out tasks, mixed, with no question in both."""
    rng = random.Random(seed)
    short = rng.sample(one_call(), 2 * ONE_CALL)
    long = rng.sample(two_calls(), 2 * TWO_CALLS)
    parts = short[:ONE_CALL] + long[:TWO_CALLS], short[ONE_CALL:] + long[TWO_CALLS:]
    return rng.sample(parts[0], len(parts[0])), rng.sample(parts[1], len(parts[1]))


def main() -> None:
    """Write both files beside this script."""
    for name, tasks in zip(("train", "heldout"), split(), strict=True):
        (HERE / f"{name}.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))


if __name__ == "__main__":
    main()
