"""Runs outlive faults that nobody chose, and end as one that had none."""

from __future__ import annotations

import pytest

from tests.chaos.campaign import campaign
from tests.chaos.faults import seeded
from tests.chaos.stack import chaos_stack, open_folder

STEPS = 12


def test_a_seed_decides_the_faults() -> None:
    first, second, other = seeded(1), seeded(1), seeded(2)
    assert [next(first) for _ in range(50)] == [next(second) for _ in range(50)]
    assert [next(first) for _ in range(50)] != [next(other) for _ in range(50)]


@pytest.mark.parametrize(("seed", "seconds"), [(1, 75), (2, 75), pytest.param(3, 300, marks=pytest.mark.long)])
async def test_nothing_is_lost_whatever_dies(seed: int, seconds: float) -> None:
    with open_folder() as folder:
        async with chaos_stack(folder) as chaos:
            report = await campaign(chaos, seed, seconds, STEPS, print)
    print(report)
    assert report.good, report
    assert report.faults
