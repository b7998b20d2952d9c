"""Rule 2: a newer attempt makes the older one harmless: no status writes, no model calls; its spans are kept."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from relight.errors import ConflictError
from relight.store.database import Database
from relight.types.wire import FinishRequest, ResolveRequest
from tests.rules.kit import begin
from tests.support.store_kit import call, grading_of, span
from tests.support.store_service import TOKEN, store_service


async def test_a_runner_that_was_frozen_while_its_rollout_was_taken_over_writes_nothing(
    database: Database, tmp_path: Path
) -> None:
    run = await begin(database, tmp_path, "zombie")
    await run.plan(1)
    rollout = (await run.rollouts(1))[0]["rollout_id"]
    async with store_service(run.store, database) as url:
        frozen = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.rules.frozen", url, TOKEN, rollout),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert frozen.stdin is not None
        assert frozen.stdout is not None
        assert (await asyncio.wait_for(frozen.stdout.readline(), 60)).startswith(b"opened")
        os.kill(frozen.pid, signal.SIGSTOP)
        await run.end(await run.opened(rollout), 1.0)
        os.kill(frozen.pid, signal.SIGCONT)
        said, _ = await asyncio.wait_for(frozen.communicate(b"\n"), 60)
    assert said.split() == [b"ConflictError", b"ConflictError"]
    row = (await run.rollouts(1))[0]
    assert (row["status"], row["reward"], row["attempts"]) == ("succeeded", 1.0, 2)
    rewards = await database.pool.fetch("select value from rewards where rollout_id = $1", rollout)
    assert [reward["value"] for reward in rewards] == [1.0]


async def test_every_request_of_an_older_attempt_is_a_conflict_and_its_spans_are_kept_without_effect(
    database: Database, tmp_path: Path
) -> None:
    run = await begin(database, tmp_path, "older")
    await run.plan(1)
    rollout = (await run.rollouts(1))[0]["rollout_id"]
    old = await run.opened(rollout)
    new = await run.opened(rollout)
    store = run.store
    for write in (
        store.finish_attempt(FinishRequest(attempt_id=old.attempt_id, fence=old.fence, reward=-1.0)),
        store.await_grading(grading_of(old, output="x")),
        store.heartbeat(old.attempt_id, old.fence, "w"),
        store.resolve(ResolveRequest(rollout_id=rollout, attempt_id=old.attempt_id, token=old.token)),
    ):
        with pytest.raises(ConflictError):
            await write
    [committed] = await store.commit_generations([call(old, 1)])
    assert committed.state == "conflict"
    assert await store.add_spans(rollout, old.attempt_id, old.fence, [span("late")]) == 1
    row = (await run.rollouts(1))[0]
    assert (row["status"], row["reward"]) == ("preparing", None)
    assert await database.pool.fetchval("select count(*) from generations") == 0
    await run.end(new, 1.0)
