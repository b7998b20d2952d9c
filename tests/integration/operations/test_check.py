"""`relight store check`: a healthy store passes, and each invariant finds the row that breaks it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.store.maintenance.check import MAX_ROWS, Violation, check_on, check_store, head_comment, invariants
from tests.support.postgres import create_database
from tests.support.small_run import RUN, SmallRun, play_small_run

LEDGERED = f"(select attempt_id from step_rollouts where run = '{RUN}' and step = 1 order by attempt_id limit 1)"
ROLLOUT = f"(select rollout_id from step_rollouts where run = '{RUN}' and step = 1 order by attempt_id limit 1)"
DIED = "(select attempt_id from attempts where failure_class = 'infrastructure' order by attempt_id limit 1)"
FAILED = "(select rollout_id from rollouts where status = 'failed' order by rollout_id limit 1)"
LOSER = f"(select attempt_id from attempts where rollout_id = {FAILED})"
ADD_RUN = (
    "insert into runs (run, file, driver, total_steps, train_dataset)"
    " select 'other', file, driver, 1, train_dataset from runs;"
)
ADD_ATTEMPT = (
    "insert into attempts (attempt_id, rollout_id, sequence_id, try_number, open_key, token_hash)"
    f" select 'extra-' || n, {ROLLOUT}, 5 + n, 1, 'k' || n, 't' || n from generate_series(1, 2) n;"
)
SECOND = """
    insert into policy_versions (run, policy, version, fence, weights_hash, export_path)
        select run, 'second', version, fence, weights_hash, export_path from policy_versions;
    insert into step_rollouts (run, policy, step, rollout_id, attempt_id, group_number, reward, grader, advantage)
        select run, 'second', step, rollout_id, attempt_id, group_number, reward, grader, advantage from step_rollouts;
    insert into training_rows (run, policy, step, row_number, rollout_id, attempt_id, calls, prompt_ids, response_ids,
        mask, advantage, weight, sampled_logprobs)
        select run, 'second', step, row_number, rollout_id, attempt_id, '{}', prompt_ids, response_ids, mask, advantage,
        weight, sampled_logprobs from training_rows;
    insert into leases (name, policy, fence, holder, expires_at)
        select name, 'second', nextval('fences'), holder, expires_at from leases;
    insert into engines (engine_id, host, run, policy, url, model, state, version)
        select 'engine-2', host, run, 'second', url, 'second', state, version from engines;
    insert into engine_loads (engine_id, load, run, policy, version)
        select 'engine-2', load, run, 'second', version from engine_loads;
"""
"""A second policy of the run, trained on the same attempts."""
BREAKS_SECOND = {
    "rows_ledgered": "delete from step_rollouts where policy = 'second' and step = 1",
    "rows_numbered": "delete from training_rows where policy = 'second' and step = 1 and row_number = 1",
    "step_version": "delete from policy_versions where policy = 'second' and version = 2",
    "version_gaps": "delete from policy_versions where policy = 'second' and version = 1",
    "version_fences": "update policy_versions set fence = 0 where policy = 'second' and version = 2",
    "engine_version": "delete from policy_versions where policy = 'second' and version = 2",
    "engine_loads": "insert into engine_loads (engine_id, load, run, policy, version) values ('e', 9, 'small', 'x', 0)",
}
BREAKS = {
    "rollouts_outside": "insert into rollouts (rollout_id, kind, run) select 'x', 'external', run from runs",
    "ledger_repeats": f"{ADD_RUN} insert into step_rollouts (run, step, rollout_id, attempt_id, group_number, reward)"
    f" select 'other', step, rollout_id, attempt_id, group_number, reward from step_rollouts"
    f" where attempt_id = {LEDGERED}",
    "ledger_final_attempt": f"update rollouts set final_attempt = 'none' where rollout_id = {ROLLOUT}",
    "ledger_owner": f"update step_rollouts set attempt_id = {LOSER} where attempt_id = {LEDGERED}",
    "ledger_ended_well": f"update attempts set status = 'failed', failure_class = 'timeout' where attempt_id ="
    f" {LEDGERED}",
    "ledger_reward": f"update rewards set value = 7 where attempt_id = {LEDGERED}",
    "ledger_place": f"update rollouts set step = 2, group_number = 9 where rollout_id = {ROLLOUT}",
    "ledger_first": "update steps set batch_hash = null where step = 1",
    "ledger_missing": "delete from step_rollouts where step = 2",
    "rows_ledgered": f"update training_rows set attempt_id = 'unknown' where attempt_id = {LEDGERED}",
    "rows_numbered": "delete from training_rows where step = 1 and row_number = 1",
    "rows_shape": "update training_rows set mask = '{1}' where step = 1 and row_number = 0",
    "rows_delivered": f"update generations set delivered = 'no' where attempt_id = {LEDGERED} and call_number = 1",
    "rows_model": f"update generations set model = 'judge' where attempt_id = {LEDGERED} and call_number = 1",
    "step_gaps": "update steps set step = 4 where step = 2",
    "step_order": "update steps set status = 'sampled' where step = 1",
    "step_closed": f"update rollouts set final_attempt = null where rollout_id = {ROLLOUT}",
    "step_planned": f"update rollouts set batch = 3 where rollout_id = {ROLLOUT}",
    "step_version": "delete from policy_versions where version = 2",
    "version_step": "insert into policy_versions (run, version, fence, weights_hash, export_path)"
    " values ('small', 3, 99, 'w3', '/x')",
    "version_gaps": "delete from policy_versions where version = 1",
    "version_files": "update policy_versions set export_path = '' where version = 1",
    "version_fences": "update policy_versions set fence = 0 where version = 2",
    "engine_version": "update engines set version = 9",
    "engine_loads": "insert into engine_loads (engine_id, load, run, version) values ('engine-1', 77, 'small', 9)",
    "run_ended": "update runs set finished_at = null",
    "run_finished": "update steps set status = 'ledgered' where step = 2",
    "run_data": "delete from tasks where position = 0",
    "metrics_finite": "update metrics set value = 'NaN'",
    "rollouts_queue": f"update rollouts set queue_order = 1 where rollout_id = {ROLLOUT}",
    "rollouts_dispatched": f"update rollouts set dispatched_by = 'queue' where rollout_id = {ROLLOUT}",
    "attempts_open": f"drop index attempts_one_open; {ADD_ATTEMPT}",
    "attempts_newest": f"drop index attempts_one_open; {ADD_ATTEMPT} update attempts set ended_at = now() where"
    " attempt_id = 'extra-2'",
    "attempts_owner": f"update attempts set rollout_id = 'unknown' where attempt_id = {DIED}",
    "attempts_numbered": f"update rollouts set attempts = 7 where rollout_id = {ROLLOUT}",
    "attempts_fences": f"update attempts set fence = 1000000 where attempt_id = {DIED}",
    "attempts_tokens": f"update attempts set token_hash = (select token_hash from attempts where attempt_id ="
    f" {LEDGERED}) where attempt_id = {DIED}",
    "attempts_ended": f"update attempts set status = 'running' where attempt_id = {DIED}",
    "attempts_class": f"update attempts set failure_class = null where attempt_id = {DIED}",
    "attempts_reward": f"delete from rewards where attempt_id = {LEDGERED}",
    "rewards_finite": f"update attempts set reward = 'Infinity' where attempt_id = {LEDGERED}",
    "rewards_owner": f"update rewards set rollout_id = 'unknown' where attempt_id = {LEDGERED}",
    "rollouts_ended": f"update rollouts set ended_at = null where rollout_id = {ROLLOUT}",
    "rollouts_over": f"update attempts set ended_at = null, status = 'running' where rollout_id = {FAILED}",
    "rollouts_under_way": f"update rollouts set status = 'running' where rollout_id = {ROLLOUT}",
    "rollouts_succeeded": f"update rollouts set reward = 3 where rollout_id = {ROLLOUT}",
    "rollouts_class": f"update rollouts set failure_class = null where rollout_id = {FAILED}",
    "rollouts_final_attempt": f"update rollouts set final_attempt = 'unknown' where rollout_id = {ROLLOUT}",
    "rollouts_without_attempt": f"update rollouts set final_attempt = 'none' where rollout_id = {FAILED}",
    "rollouts_task": f"update rollouts set resources_id = 'unknown' where rollout_id = {ROLLOUT}",
    "generations_owner": f"update generations set rollout_id = 'unknown' where attempt_id = {LEDGERED}",
    "generations_bodies": "delete from bodies where hash = (select request from generations limit 1)",
    "generations_tokens": f"update generations set logprobs = '{{0}}' where attempt_id = {LEDGERED}",
    "generations_versions": f"update generations set version_end = 9 where attempt_id = {LEDGERED}",
    "generations_settled": f"update generations set delivered = 'unknown' where attempt_id = {LEDGERED}",
    "failures_owner": "update call_failures set day = day - 1",
    "spans_owner": f"update spans set attempt_id = {DIED} where attempt_id = {LEDGERED} and rollout_id <> (select"
    f" rollout_id from attempts where attempt_id = {DIED});"
    f" update spans set day = day - 1 where attempt_id = {LEDGERED}",
    "sequence": f"update rollouts set next_sequence = 2 where rollout_id = {ROLLOUT}",
    "sequence_repeats": f"update spans set sequence_id = 1 where rollout_id = {ROLLOUT}",
    "spans_bodies": "update spans set bodies = jsonb_build_object('attributes', jsonb_build_object('x',"
    " repeat('ab', 32)))",
    "outbox_once": "insert into outbox (workflow_type, workflow_id, task_queue, input)"
    " select 'RolloutWorkflow', 'rollout/x', 'q', '{}' from generate_series(1, 2)",
    "outbox_rollout": "insert into outbox (workflow_type, workflow_id, task_queue, input)"
    " values ('RolloutWorkflow', 'rollout/unknown', 'q', '{}')",
    "leases_fences": "insert into leases (name, fence, holder, expires_at)"
    " select 'other', fence, holder, expires_at from leases",
}


@pytest.fixture(scope="module")
def url_of_a_run(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """One finished run for all tests of this module, each of which takes back what it breaks."""

    async def make() -> str:
        url = await create_database(postgres_url)
        database = await Database.connect(url)
        await play_small_run(database, tmp_path_factory.mktemp("run"))
        await database.close()
        return url

    return asyncio.run(make())


@pytest.fixture
async def store_of_a_run(url_of_a_run: str) -> AsyncGenerator[Database]:
    database = await Database.connect(url_of_a_run, max_size=1)
    yield database
    await database.close()


async def test_every_invariant_holds_for_a_finished_run(store_of_a_run: Database) -> None:
    assert await check_store(store_of_a_run) == []


async def test_every_invariant_holds_at_any_point_of_a_run(database: Database, tmp_path: Path) -> None:
    run = SmallRun(database, await PostgresStore.create(database, "http://gateway"), tmp_path)
    assert await check_store(database) == []
    await run.begin()
    assert await check_store(database) == []
    await run.evaluate(0)
    assert await check_store(database) == []
    for step in (1, 2):
        await run.sample(step)
        assert await check_store(database) == []
        await run.write_ledger(step)
        assert await check_store(database) == []
        await run.publish(step)
        assert await check_store(database) == []
        await run.update(step)
        assert await check_store(database) == []
    await run.end()
    assert await check_store(database) == []


async def test_every_invariant_holds_for_a_replay(store_of_a_run: Database) -> None:
    replay = (
        "insert into runs (run, file, driver, total_steps, train_dataset, parent_run, parent_step, replays)"
        " select 'again', file, driver, 1, train_dataset, run, 0, true from runs;"
        "insert into steps (run, step, status, plan, resources_id, batches, batch_hash)"
        " select 'again', step, status, plan, resources_id, batches, batch_hash from steps where step = 1;"
        "insert into policy_versions (run, version, fence, weights_hash, export_path)"
        " select 'again', version, fence, weights_hash, export_path from policy_versions;"
        "insert into step_rollouts (run, step, rollout_id, attempt_id, group_number, reward)"
        " select 'again', step, rollout_id, attempt_id, group_number, reward from step_rollouts where step = 1"
    )
    found = {violation.invariant for violation in await broken_by(store_of_a_run, replay)}
    assert not {name for name in found if name.startswith("ledger")}


def test_every_invariant_has_a_description_and_a_row_that_breaks_it() -> None:
    assert BREAKS.keys() == invariants().keys()
    assert all(head_comment(query).endswith(".") for query in invariants().values())


@pytest.mark.parametrize("name", BREAKS)
async def test_a_row_that_breaks_an_invariant_is_found(store_of_a_run: Database, name: str) -> None:
    found = {violation.invariant: violation for violation in await broken_by(store_of_a_run, BREAKS[name])}
    assert name in found
    assert found[name].rows


async def test_a_second_policy_of_a_run_has_versions_ledger_rows_lease_and_engine_of_its_own(
    store_of_a_run: Database,
) -> None:
    assert await broken_by(store_of_a_run, SECOND) == []


@pytest.mark.parametrize("name", BREAKS_SECOND)
async def test_the_rows_of_another_policy_do_not_mend_a_violation(store_of_a_run: Database, name: str) -> None:
    found = {
        violation.invariant: violation for violation in await broken_by(store_of_a_run, SECOND + BREAKS_SECOND[name])
    }
    assert name in found
    assert {row["policy"] for row in found[name].rows} <= {"second", "x"}


async def broken_by(database: Database, sql: str) -> list[Violation]:
    """What is found after statements that no trigger and no foreign key sees; they are taken back."""
    async with database.pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        try:
            await connection.execute(f"set local session_replication_role = replica; {sql}")
            return await check_on(connection)
        finally:
            await transaction.rollback()


async def test_a_violation_names_its_first_rows_and_whether_there_are_more(store_of_a_run: Database) -> None:
    many = "insert into metrics select 'small', 1, 'm' || n, 'NaN' from generate_series(1, 100) n"
    (violation,) = await broken_by(store_of_a_run, many)
    assert (violation.invariant, len(violation.rows), violation.more) == ("metrics_finite", MAX_ROWS, True)
    assert violation.rows[0]["run"] == "small"
