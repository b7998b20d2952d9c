"""Runs survive random faults, and end as a run without faults."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos.campaign import Bursts, play
from tests.chaos.faults import KINDS, seeded
from tests.chaos.report import Report, table


def test_a_seed_decides_the_faults() -> None:
    first, second, other = seeded(1), seeded(1), seeded(2)
    assert [next(first) for _ in range(50)] == [next(second) for _ in range(50)]
    assert [next(first) for _ in range(50)] != [next(other) for _ in range(50)]


def test_a_campaign_begins_with_a_fault_of_each_kind() -> None:
    faults = seeded(1)
    assert {next(faults).kind for _ in KINDS} == set(KINDS)


def test_a_burst_ends_with_the_first_progress_after_its_last_fault() -> None:
    report = Report(1)
    bursts = Bursts(report)
    bursts.seen(3, at=0.0)
    for ended_at in (10.0, 14.0):  # nothing was done between the two
        bursts.begins(ended_at)
        bursts.ended(ended_at)
        bursts.seen(5, at=ended_at + 0.1)  # done before the fault was over
    bursts.seen(None, at=15.0)  # Postgres is away
    bursts.seen(6, at=20.0)
    bursts.seen(7, at=21.0)
    assert report.burst_seconds == [6.0]
    shown = {line.rsplit(maxsplit=1)[0]: line.rsplit(maxsplit=1)[1] for line in table([report]).splitlines()[1:]}
    assert shown["seconds from the last fault of a burst to progress, median"] == "6.0"
    assert shown["... and at most"] == "6.0"


def test_a_faults_recovery_time_excludes_later_faults_that_overlap_it() -> None:
    report = Report(1, faults=Counter({"swallow runner->temporal": 1}))
    bursts = Bursts(report)
    for began, ended in ((3.0, 10.0), (18.0, 138.0)):
        bursts.begins(began)
        bursts.ended(ended)
    assert bursts.fault_seconds(10.0 + 142.0) == 127.0
    bursts.begins(152.0)  # lasts still
    assert bursts.fault_seconds(153.0) == 128.0
    report.recovered("swallow runner->temporal", 142.0, 120.0)
    line = next(line for line in table([report]).splitlines() if line.startswith("swallow"))
    assert line.split()[-3:] == ["142.0", "142.0", "22.0"]


@pytest.mark.parametrize(
    ("seed", "seconds"), [(1, 70), pytest.param(2, 900, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
)
@pytest.mark.timeout(1500)
async def test_a_campaign_of_random_faults_loses_nothing(seed: int, seconds: float) -> None:
    report = await play(seed, seconds, brief=seconds < 600, say=print)
    print(report)
    assert report.good, report
    assert report.faults
