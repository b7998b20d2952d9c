"""Rule 17: names, and what starting an existing one means."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest
from temporalio.client import Client, WorkflowFailureError

from relight.errors import ConfigError
from relight.store.database import Database
from relight.store.runs import lifecycle
from relight.types.names import RUN_NAME
from relight.types.payloads import BeginInput, FinishInput
from tests.rules.kit import begin
from tests.support.orchestration import cluster, run_file, write_tasks

BAD = ["", "Upper", "-dash", ".dot", "a b", "a/b", "ä", "x" * 64, "a\n"]
GOOD = ["a", "0", "a.b_c-d", "x" * 63]


async def test_a_name_is_lower_case_and_short_for_workflows_and_for_postgres(database: Database) -> None:
    text = "insert into runs (run, file, driver, total_steps, train_dataset) values ($1, '{}', '', 1, 'd')"
    await database.pool.execute("insert into datasets (dataset_id, source, row_count) values ('d', '', 0)")
    for name in BAD:
        assert not RUN_NAME.fullmatch(name), name
        with pytest.raises(asyncpg.CheckViolationError):
            await database.pool.execute(text, name)
    for name in GOOD:
        assert RUN_NAME.fullmatch(name), name
        await database.pool.execute(text, name)


async def test_a_workflow_under_a_bad_name_fails_with_the_rule(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    async with cluster(temporal, database, tmp_path) as stack:
        with pytest.raises(WorkflowFailureError) as refusal:
            await (await stack.start("Not.Good", run_file())).result()
    assert "use train/NAME as the id" in str(refusal.value.cause)
    assert await database.pool.fetchval("select count(*) from runs") == 0


async def test_the_same_file_resumes_an_unfinished_run_and_another_is_refused_with_its_differences_and_a_remedy(
    database: Database, tmp_path: Path
) -> None:
    run = await begin(database, tmp_path, "known")
    await run.plan(1)
    await run.plan(2)
    again = BeginInput(run="known", driver="another driver", file=run.file)
    other = run.file.model_copy(update={"group_size": 8, "data": run.file.data.model_copy(update={"shuffle": False})})
    tasks = await stored_tasks(database)
    state = await lifecycle.begin_run(database, again, tasks, tasks)
    assert (state.epoch, state.next_step) == (2, 0)
    with pytest.raises(ConfigError, match=r"differing: data\.shuffle, group_size.*fork known"):
        await lifecycle.begin_run(database, again.model_copy(update={"driver": "third", "file": other}), tasks, tasks)
    await lifecycle.finish_run(database, FinishInput(run="known", epoch=2, status="finished"))
    with pytest.raises(ConfigError, match=r"finished.*fork"):
        await lifecycle.begin_run(database, again.model_copy(update={"driver": "fourth"}), tasks, tasks)


async def stored_tasks(database: Database) -> lifecycle.Tasks:
    """A data set that is stored already, as the activity gives it for a known run."""
    return lifecycle.Tasks([], await database.pool.fetchval("select train_dataset from runs where run = 'known'"), "")
