"""The invariants hold while the real workflows play runs, and after it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from temporalio.client import Client

from relight.store.database import Database
from relight.store.maintenance.check import check_store
from relight.types.rollout import FailureClass
from relight.types.wire import FinishRequest, OpenedAttempt
from tests.support.orchestration import always_right, cluster, run_file, write_tasks


async def often_failing(attempt: OpenedAttempt) -> FinishRequest:
    """Every third sample fails by itself, and one in four is lost by the platform the first time."""
    index = int(attempt.rollout_id[-1])
    if index % 3 == 2:
        return FinishRequest(
            attempt_id=attempt.attempt_id, fence=attempt.fence, failure_class=FailureClass.AGENT_ERROR, message="no"
        )
    if index == 3 and attempt.sequence_id == 1:
        return FinishRequest(
            attempt_id=attempt.attempt_id, fence=attempt.fence, failure_class=FailureClass.INFRASTRUCTURE
        )
    return await always_right(attempt)


async def test_every_invariant_holds_while_a_run_is_in_progress(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    async with cluster(temporal, database, tmp_path, often_failing) as stack:
        handle = await stack.start("checked", run_file(rollout={"max_attempts": 2, "retry_condition": ["agent_error"]}))
        playing = asyncio.create_task(handle.result())
        while not playing.done():
            assert await check_store(database) == []
            await asyncio.wait([playing], timeout=0.1)
        await playing
    assert await check_store(database) == []
    assert await database.pool.fetchval("select count(*) from step_rollouts") > 0


async def test_every_invariant_holds_when_a_run_is_cancelled(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    opened = asyncio.Event()

    async def hanging(attempt: OpenedAttempt) -> FinishRequest:
        opened.set()
        await asyncio.Event().wait()
        raise AssertionError

    write_tasks(tmp_path)
    async with cluster(temporal, database, tmp_path, hanging) as stack:
        handle = await stack.start("cancelled", run_file())
        await opened.wait()
        await handle.cancel()
        await asyncio.gather(handle.result(), return_exceptions=True)
        assert await check_store(database) == []
    assert await database.pool.fetchval("select status from runs") == "cancelled"
