"""Runs outlive faults that nobody chose, and end as one that had none."""

from __future__ import annotations

import pytest

from tests.chaos.campaign import play
from tests.chaos.faults import KINDS, seeded


def test_a_seed_decides_the_faults() -> None:
    first, second, other = seeded(1), seeded(1), seeded(2)
    assert [next(first) for _ in range(50)] == [next(second) for _ in range(50)]
    assert [next(first) for _ in range(50)] != [next(other) for _ in range(50)]


def test_a_campaign_begins_with_a_fault_of_each_kind() -> None:
    faults = seeded(1)
    assert {next(faults).kind for _ in KINDS} == set(KINDS)


@pytest.mark.parametrize(
    ("seed", "seconds"), [(1, 150), (2, 150), pytest.param(3, 900, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
)
@pytest.mark.timeout(1500)
async def test_nothing_is_lost_whatever_dies(seed: int, seconds: float) -> None:
    report = await play(seed, seconds, brief=seconds < 600, say=print)
    print(report)
    assert report.good, report
    assert report.faults
