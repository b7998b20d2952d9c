"""Rollouts of the queue and rollouts of workflows are one thing: calls, views and retries work on both."""

from __future__ import annotations

import pytest

from relight.errors import ConflictError
from relight.store.attempts.attempt_tokens import attempt_token
from relight.store.attempts.postgres import PostgresStore, attempt_key
from relight.store.database import Database
from relight.store.postgres import PostgresLightningStore
from relight.store.queue.sweeper import sweep
from relight.store.runs.views import RunViews
from relight.types.store import Dispatch
from relight.types.wire import FinishRequest, OpenedAttempt, OpenRequest, ResolveRequest
from tests.support.lightning_kit import begin, newest, retrying, rollout_of
from tests.support.store_kit import call


async def as_opened(database: Database, rollout_id: str, attempt_id: str) -> OpenedAttempt:
    """A queue's attempt as the gateway's clients know theirs."""
    return OpenedAttempt(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=1,
        fence=0,
        token=attempt_token(await attempt_key(database), attempt_id),
        base_url="http://gateway",
        config=retrying("unresponsive"),
    )


def resolving(attempt: OpenedAttempt) -> ResolveRequest:
    """As the gateway asks who calls."""
    return ResolveRequest(rollout_id=attempt.rollout_id, attempt_id=attempt.attempt_id, token=attempt.token)


async def test_a_call_that_outlasts_the_deadline_revives_its_attempt(database: Database) -> None:
    store, gateway = (
        await PostgresLightningStore.create(database),
        await PostgresStore.create(database, "http://gateway"),
    )
    rollout = await begin(store, config=retrying("unresponsive", unresponsive_seconds=30))
    attempt = await as_opened(database, rollout.rollout_id, rollout.attempt.attempt_id)
    await gateway.resolve(resolving(attempt))
    await gateway.commit_generations([call(attempt, 1)])
    assert (await rollout_of(store, rollout.rollout_id)).status == "running"
    await store.update_attempt(rollout.rollout_id, "latest", last_heartbeat_time=1.0)
    await sweep(database)
    assert (await rollout_of(store, rollout.rollout_id)).status == "requeuing"
    context = await gateway.resolve(resolving(attempt))
    assert context.next_call_number == 2
    (result,) = await gateway.commit_generations([call(attempt, 2, "hash-2")])
    assert result.state == "committed"
    assert (await newest(store, rollout.rollout_id)).status == "running"
    assert (await rollout_of(store, rollout.rollout_id)).status == "running"
    assert await store.dequeue_rollout() is None


async def test_the_token_of_a_superseded_attempt_permits_nothing(database: Database) -> None:
    store, gateway = (
        await PostgresLightningStore.create(database),
        await PostgresStore.create(database, "http://gateway"),
    )
    superseded, cancelled = await begin(store), await begin(store)
    await store.start_attempt(superseded.rollout_id)
    await store.cancel_rollout(cancelled.rollout_id)
    for rollout in (superseded, cancelled):
        attempt = await as_opened(database, rollout.rollout_id, rollout.attempt.attempt_id)
        with pytest.raises(ConflictError):
            await gateway.resolve(resolving(attempt))
        (result,) = await gateway.commit_generations([call(attempt)])
        assert result.state == "conflict"
    assert await database.pool.fetchval("select count(*) from generations") == 0


async def test_a_workflows_retry_shows_in_the_same_rows(database: Database) -> None:
    store, runner = (
        await PostgresLightningStore.create(database),
        await PostgresStore.create(database, "http://gateway"),
    )
    made = await store.enqueue_rollout(
        {"q": 1}, "val", config=retrying("agent_error"), dispatch=Dispatch(by="workflow", task_queue="mine")
    )
    order = await database.pool.fetchrow("select workflow_id, input from outbox")
    assert order["workflow_id"] == f"rollout/{made.rollout_id}"
    assert order["input"]["queue"] == "mine"
    for number, outcome in ((1, {"failure_class": "agent_error"}), (2, {"reward": 0.25})):
        opened = await runner.open_attempt(
            OpenRequest(rollout_id=made.rollout_id, try_number=number, execution=f"e{number}", worker_id="r")
        )
        assert opened.attempt
        assert (opened.attempt.input, opened.attempt.mode) == ({"q": 1}, "val")
        await runner.finish_attempt(
            FinishRequest.model_validate(
                {"attempt_id": opened.attempt.attempt_id, "fence": opened.attempt.fence, **outcome}
            )
        )
        assert await store.dequeue_rollout() is None
    shown = await store.get_rollout_by_id(made.rollout_id)
    assert shown
    assert (shown.status, shown.reward) == ("succeeded", 0.25)
    assert [attempt.status for attempt in await store.query_attempts(made.rollout_id)] == ["failed", "succeeded"]
    viewed = await RunViews(database).rollout(made.rollout_id)
    assert (viewed.input, viewed.status, len(viewed.tries)) == ({"q": 1}, "succeeded", 2)


async def test_the_outbox_row_and_its_rollout_are_one_transaction(database: Database) -> None:
    store = await PostgresLightningStore.create(database)
    for _ in range(3):
        await store.enqueue_rollout("x", dispatch=Dispatch(by="workflow", agent="a"), idempotency_key="same")
    assert await database.pool.fetchval("select count(*) from outbox") == 1
    assert await database.pool.fetchval("select count(*) from rollouts") == 1
