"""Poison tasks on the whole stack: each gets its class, the run goes on, and every count shown is the one injected."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from relight.store.maintenance.check import check_store
from tests.integration.poison.kit import Poisoned, more

pytestmark = pytest.mark.asyncio(loop_scope="package")

CLASS_OF = {
    "raise": "agent_error",
    "raise-nul": "agent_error",
    "exit": "agent_error",
    "leave": "agent_error",
    "killed": "agent_error",
    "hang": "timeout",
    "daemonize": "timeout",
    "stop": "unresponsive",
    "silent": "unresponsive",
    "chatter": "timeout",
    "eat": "out_of_memory",
    "nan": "invalid_reward",
    "inf": "invalid_reward",
    "huge": "invalid_reward",
    "string": "invalid_reward",
    "ten-megabytes": "invalid_reward",
    "no-text": "invalid_reward",
    "none": "no_reward",
    "engine-500": "engine_error",
    "engine-stalls": "engine_error",
    "kills-template": "infrastructure",
}
HARMLESS = ("gigabyte", "prints-no-text")
"""Nasty, and the reward counts."""
RUNS = {
    "agents": {"rollout": {"timeout_seconds": 12, "memory_limit_bytes": 256 * 1024 * 1024}},
    "quiet": {"rollout": {"unresponsive_seconds": 6}},
}
"""Each with the limits that its poison needs, and no other, which a slow machine would meet first."""
QUIET = ("stop", "silent")


def groups_of(kinds: list[str]) -> list[list[str]]:
    """Two of a group go wrong, two go well."""
    return [[*kinds[at : at + 2], *["well"] * (4 - len(kinds[at : at + 2]))] for at in range(0, len(kinds), 2)]


def injected_into(run: str) -> list[str]:
    if run == "quiet":
        return list(QUIET)
    engines = [kind for kind in CLASS_OF if kind.startswith("engine-")]
    others = [kind for kind in CLASS_OF if kind not in (*QUIET, *engines, "kills-template")]
    return engines if run == "engines" else others


@pytest.mark.long
async def test_an_engine_that_fails_or_stalls_costs_only_the_calls_that_it_failed(poisoned: Poisoned) -> None:
    handle = await poisoned.start("engines", groups_of(injected_into("engines")))
    result = await poisoned.result(handle)
    expected = Counter(CLASS_OF[kind] for kind in injected_into("engines"))
    shown = await poisoned.shown("engines", result)
    assert all(counts == expected for counts in shown.values()), shown
    await check_rollouts(poisoned, "engines", groups_of(injected_into("engines")))


async def test_every_poison_gets_its_class_and_every_count_shown_is_the_one_injected(poisoned: Poisoned) -> None:
    groups = {run: groups_of(injected_into(run)) for run in RUNS}
    groups["agents"] = groups_of([*injected_into("agents"), *HARMLESS])
    before = await poisoned.metrics()
    everything: Counter[str] = Counter()
    for run, options in RUNS.items():
        handle = await poisoned.start(run, groups[run], **options)
        expected = Counter(CLASS_OF[kind] for kind in injected_into(run))
        shown = await poisoned.shown(run, await poisoned.result(handle))
        print(f"{run}: injected {dict(expected)}")
        for place, counts in shown.items():
            print(f"  {place:16} {counts}")
        assert all(counts == expected for counts in shown.values()), shown
        await check_rollouts(poisoned, run, groups[run])
        everything += expected
    assert more(await fresh_metrics(poisoned, before), before) == everything
    assert await check_store(poisoned.database) == []


async def check_rollouts(poisoned: Poisoned, run: str, groups: list[list[str]]) -> None:
    """Each has the class of what it did; the group rule was applied; no process is left."""
    rows = await poisoned.database.pool.fetch(
        "select group_number, index_in_group, failure_class, fill_up, failure from rollouts where run = $1", run
    )
    for row in rows:
        group, index = row["group_number"], row["index_in_group"]
        kind = groups[group][index] if index < 4 else "well"
        assert row["failure_class"] == CLASS_OF.get(kind), (kind, row["failure"])
    # Only what the platform lost is made up for; every group has its two real rewards at least, so each trains.
    assert sum(row["fill_up"] > 0 for row in rows) == sum(kind.startswith("engine-") for kind in injected_into(run))
    trained = await poisoned.database.pool.fetch("select distinct group_number from step_rollouts where run = $1", run)
    assert {row["group_number"] for row in trained} == set(range(len(groups)))
    assert await gone(poisoned, run) == []


@pytest.mark.long
async def test_an_engine_that_dies_in_the_middle_of_a_call_fails_nobody(poisoned: Poisoned) -> None:
    groups = [[f"engine-dies {poisoned.folder / 'died'}", "well", "well", "well"]]
    handle = await poisoned.start("survives", groups, engine_wait_seconds=300)
    result = await poisoned.result(handle)
    assert (poisoned.folder / "died").exists()
    assert result["counters"] == {"rollouts": 4, "retried": 0}


@pytest.mark.long
async def test_a_rollout_that_takes_the_template_with_it_is_quarantined_and_no_neighbour_with_it(
    poisoned: Poisoned,
) -> None:
    groups = [["kills-template", "well", "well", "well"], ["well"] * 4]
    before = await poisoned.metrics()
    handle = await poisoned.start("quarantine", groups, engine_wait_seconds=300)
    result = await poisoned.result(handle)
    expected = {"infrastructure": 1}
    shown = await poisoned.shown("quarantine", result)
    shown["metrics"] = more(await fresh_metrics(poisoned, before), before)
    assert all(counts == expected for counts in shown.values()), shown
    row = await poisoned.database.pool.fetchrow(
        "select deaths, failure, attempts from rollouts where rollout_id = 'quarantine-s0001-g00-i0'"
    )
    assert (row["deaths"], row["attempts"]) == (5, 5)
    assert row["failure"] == "quarantined: its process died 5 times"
    trained = await poisoned.database.pool.fetchval("select count(*) from step_rollouts where run = 'quarantine'")
    assert trained == 8  # it was filled up
    assert await gone(poisoned, "quarantine") == []


@pytest.mark.long
async def test_one_that_takes_a_shared_process_with_it_ends_up_alone_and_the_others_end_well(
    poisoned: Poisoned,
) -> None:
    groups = [["exit", "well", "well", "well"], ["raise", "hang", "well", "well"]]
    handle = await poisoned.start("shared", groups, agent="shared", isolation="shared", rollout={"timeout_seconds": 20})
    result = await poisoned.result(handle)
    expected = {"agent_error": 2, "timeout": 1}
    shown = await poisoned.shown("shared", result)
    assert all(counts == expected for counts in shown.values()), shown
    row = await poisoned.database.pool.fetchrow("select * from rollouts where rollout_id = 'shared-s0001-g00-i0'")
    assert (row["failure_class"], row["deaths"]) == ("agent_error", 2)
    assert await poisoned.database.pool.fetchval("select count(*) from step_rollouts where run = 'shared'") == 5


@pytest.mark.long
async def test_a_grader_that_fails_is_the_platforms_failure_and_its_groups_are_filled_up(poisoned: Poisoned) -> None:
    groups = [["graded-badly", "even", "odd", "even"], ["odd", "even", "odd", "raise"]]
    handle = await poisoned.start("graded", groups, grader="judge")
    result = await poisoned.result(handle)
    expected = {"grader_error": 1, "agent_error": 1}
    shown = await poisoned.shown("graded", result)
    assert all(counts == expected for counts in shown.values()), shown
    failure = await poisoned.database.pool.fetchval(
        "select failure from rollouts where rollout_id = 'graded-s0001-g00-i0'"
    )
    assert failure == "grader 'judge': ZeroDivisionError: the grader divides by 0"


async def fresh_metrics(poisoned: Poisoned, before: dict[str, int]) -> dict[str, int]:
    """Metrics that were read anew: Postgres is asked every few seconds at most."""
    async with asyncio.timeout(30):
        while (now := await poisoned.metrics()) == before:  # noqa: ASYNC110 - another process reads it
            await asyncio.sleep(1)
        return now


async def gone(poisoned: Poisoned, run: str) -> list[int]:
    """Processes of its agents that outlive it; what was killed a moment ago is given that moment."""
    left: list[int] = []
    for _ in range(50):
        if not (left := poisoned.survivors(run)):
            break
        await asyncio.sleep(0.1)
    return left
