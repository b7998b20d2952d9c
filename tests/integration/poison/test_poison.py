"""Poison tasks on the whole stack: each gets its class, the run goes on, and every count shown is the one injected."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from relight.store.access_tokens import RUNNER_NAME
from relight.store.attempts.attempt_tokens import runner_token, token_hash
from relight.store.maintenance.check import check_store
from tests.integration.poison.kit import PoisonStack, more

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
    "kills-fork-server": "infrastructure",
}
HARMLESS = ("gigabyte", "prints-no-text")
"""Misbehaviour that costs no reward."""
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
    others = [kind for kind in CLASS_OF if kind not in (*QUIET, *engines, "kills-fork-server")]
    return engines if run == "engines" else others


@pytest.mark.long
async def test_an_engine_that_fails_or_stalls_costs_only_the_calls_that_it_failed(poison: PoisonStack) -> None:
    handle = await poison.start("engines", groups_of(injected_into("engines")))
    result = await poison.result(handle)
    expected = Counter(CLASS_OF[kind] for kind in injected_into("engines"))
    shown = await poison.shown("engines", result)
    assert all(counts == expected for counts in shown.values()), shown
    await check_rollouts(poison, "engines", groups_of(injected_into("engines")))


async def test_every_injected_failure_gets_its_class_and_every_count_shown_is_the_injected_one(
    poison: PoisonStack,
) -> None:
    groups = {run: groups_of(injected_into(run)) for run in RUNS}
    groups["agents"] = groups_of([*injected_into("agents"), *HARMLESS])
    before = await poison.metrics()
    everything: Counter[str] = Counter()
    for run, options in RUNS.items():
        handle = await poison.start(run, groups[run], **options)
        expected = Counter(CLASS_OF[kind] for kind in injected_into(run))
        shown = await poison.shown(run, await poison.result(handle))
        print(f"{run}: injected {dict(expected)}")
        for source, counts in shown.items():
            print(f"  {source:16} {counts}")
        assert all(counts == expected for counts in shown.values()), shown
        await check_rollouts(poison, run, groups[run])
        everything += expected
    assert more(await fresh_metrics(poison, before), before) == everything
    assert await check_store(poison.database) == []


async def check_rollouts(poison: PoisonStack, run: str, groups: list[list[str]]) -> None:
    """Each has the class of what it did; the group rule was applied; no process is left."""
    rows = await poison.database.pool.fetch(
        "select group_number, index_in_group, failure_class, fill_up, failure from rollouts where run = $1", run
    )
    for row in rows:
        group, index = row["group_number"], row["index_in_group"]
        kind = groups[group][index] if index < 4 else "well"
        assert row["failure_class"] == CLASS_OF.get(kind), (kind, row["failure"])
    # Only what the platform lost is made up for; every group has its two real rewards at least, so each trains.
    assert sum(row["fill_up"] > 0 for row in rows) == sum(kind.startswith("engine-") for kind in injected_into(run))
    trained = await poison.database.pool.fetch("select distinct group_number from step_rollouts where run = $1", run)
    assert {row["group_number"] for row in trained} == set(range(len(groups)))
    assert await gone(poison, run) == []


@pytest.mark.long
async def test_an_engine_that_dies_during_a_call_fails_no_attempt(poison: PoisonStack) -> None:
    groups = [[f"engine-dies {poison.folder / 'died'}", "well", "well", "well"]]
    handle = await poison.start("survives", groups, engine_wait_seconds=300)
    result = await poison.result(handle)
    assert (poison.folder / "died").exists()
    assert result["counters"] == {"rollouts": 4, "retried": 0}


@pytest.mark.long
async def test_a_rollout_whose_fork_server_dies_is_quarantined_and_others_are_not(
    poison: PoisonStack,
) -> None:
    groups = [["loses-fork-server", "well", "well", "well"], ["well"] * 4]
    before = await poison.metrics()
    handle = await poison.start("quarantine", groups, engine_wait_seconds=300)
    killing = asyncio.create_task(poison.kill_fork_servers("quarantine"))
    result = await poison.result(handle)
    killing.cancel()
    expected = {"infrastructure": 1}
    shown = await poison.shown("quarantine", result)
    shown["metrics"] = more(await fresh_metrics(poison, before), before)
    assert all(counts == expected for counts in shown.values()), shown
    row = await poison.database.pool.fetchrow(
        "select deaths, failure, attempts from rollouts where rollout_id = 'quarantine-s0001-g00-i0'"
    )
    assert (row["deaths"], row["attempts"]) == (5, 5)
    assert row["failure"] == "quarantined: its process died 5 times"
    trained = await poison.database.pool.fetchval("select count(*) from step_rollouts where run = 'quarantine'")
    assert trained == 8  # it was filled up
    assert await gone(poison, "quarantine") == []


@pytest.mark.long
async def test_a_rollout_that_kills_its_shared_process_is_isolated_and_the_others_succeed(
    poison: PoisonStack,
) -> None:
    groups = [["exit", "well", "well", "well"], ["raise", "hang", "well", "well"]]
    handle = await poison.start("shared", groups, agent="shared", isolation="shared", rollout={"timeout_seconds": 20})
    result = await poison.result(handle)
    expected = {"agent_error": 2, "timeout": 1}
    shown = await poison.shown("shared", result)
    assert all(counts == expected for counts in shown.values()), shown
    row = await poison.database.pool.fetchrow("select * from rollouts where rollout_id = 'shared-s0001-g00-i0'")
    assert (row["failure_class"], row["deaths"]) == ("agent_error", 2)
    assert await poison.database.pool.fetchval("select count(*) from step_rollouts where run = 'shared'") == 5


@pytest.mark.long
async def test_a_failing_grader_is_a_platform_failure_and_its_groups_are_filled_up(poison: PoisonStack) -> None:
    groups = [["graded-badly", "even", "odd", "even"], ["odd", "even", "odd", "raise"]]
    handle = await poison.start("graded", groups, grader="judge")
    result = await poison.result(handle)
    expected = {"grader_error": 1, "agent_error": 1}
    shown = await poison.shown("graded", result)
    assert all(counts == expected for counts in shown.values()), shown
    failure = await poison.database.pool.fetchval(
        "select failure from rollouts where rollout_id = 'graded-s0001-g00-i0'"
    )
    assert failure == "grader 'judge': ZeroDivisionError: the grader divides by 0"


async def fresh_metrics(poison: PoisonStack, before: dict[str, int]) -> dict[str, int]:
    """Metrics that were read anew: Postgres is asked every few seconds at most."""
    async with asyncio.timeout(30):
        while (now := await poison.metrics()) == before:  # noqa: ASYNC110 - another process reads it
            await asyncio.sleep(1)
        return now


async def gone(poison: PoisonStack, run: str) -> list[int]:
    """Processes of its agents that outlive it; what was killed a moment ago is given that moment."""
    left: list[int] = []
    for _ in range(50):
        if not (left := poison.survivors(run)):
            break
        await asyncio.sleep(0.1)
    return left


async def test_the_processes_in_which_agents_run_are_given_a_runners_token_and_not_the_admin_token(
    poison: PoisonStack,
) -> None:
    token, runner = poison.stack.settings.token_value or "", poison.stack.process("runner")
    given = await asyncio.to_thread(Path(f"/proc/{runner.pid}/environ").read_bytes)
    assert token.encode() not in given
    assert runner_token(token).encode() in given
    row = await poison.database.pool.fetchrow("select * from tokens where name = $1", RUNNER_NAME)
    assert (row["token_hash"], row["role"]) == (token_hash(runner_token(token)), "runner")
