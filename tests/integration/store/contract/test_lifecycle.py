"""From the queue to the end, again and again."""

from __future__ import annotations

import time

import pytest

from relight.errors import ConflictError, NotFoundError
from relight.store.base import LightningStore
from relight.types.rollout import AttemptStatus, RolloutStatus
from tests.support.lightning_kit import (
    LightningKit,
    begin,
    claimed,
    config,
    ended,
    newest,
    retrying,
    rollout_of,
    running,
    span_of,
)


async def test_only_the_newest_attempt_changes_the_rollouts_status(store: LightningStore) -> None:
    """Invariant 39."""
    first = await running(store)
    second = await store.start_attempt(first.rollout_id)
    closed = await store.update_attempt(first.rollout_id, first.attempt.attempt_id, status=AttemptStatus.SUCCEEDED)
    assert (closed.status, closed.failure_class) == ("succeeded", None)
    assert (await rollout_of(store, first.rollout_id)).status == "preparing"
    await store.update_attempt(first.rollout_id, second.attempt.attempt_id, status=AttemptStatus.SUCCEEDED)
    assert (await rollout_of(store, first.rollout_id)).status == "succeeded"


async def test_a_superseded_attempt_ends(store: LightningStore) -> None:
    """Invariant 39."""
    first = await running(store)
    await store.start_attempt(first.rollout_id)
    old, new = await store.query_attempts(first.rollout_id)
    assert (old.status, old.failure_class) == ("failed", "infrastructure")
    assert old.end_time is not None
    assert (new.status, new.end_time) == ("preparing", None)


@pytest.mark.parametrize("end", [AttemptStatus.SUCCEEDED, AttemptStatus.FAILED, AttemptStatus.TIMEOUT])
async def test_a_superseded_attempt_may_be_closed_and_changes_nothing_else(
    store: LightningStore, end: AttemptStatus
) -> None:
    """Invariants 38, 39."""
    rollout = await ended(store, "unresponsive", config=retrying("unresponsive"))
    second = await claimed(store, "w")
    before = await rollout_of(store, rollout.rollout_id)
    closed = await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status=end)
    assert closed.status == end
    assert closed.end_time is not None
    assert await rollout_of(store, rollout.rollout_id) == before
    assert before.status == "preparing"
    worker = await store.get_worker_by_id("w")
    assert worker is not None
    assert worker.current_attempt_id == second.attempt.attempt_id
    noted = await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, metadata={"late": True})
    assert (noted.status, noted.metadata) == (end, {"late": True})


@pytest.mark.parametrize("status", [AttemptStatus.PREPARING, AttemptStatus.RUNNING])
async def test_a_superseded_attempt_does_not_run_again(store: LightningStore, status: AttemptStatus) -> None:
    """Invariants 38, 39: a rollout has one open attempt at most, which holds the fence."""
    first = await running(store)
    await store.start_attempt(first.rollout_id)
    if status is AttemptStatus.RUNNING:
        await store.update_attempt(first.rollout_id, first.attempt.attempt_id, status=AttemptStatus.SUCCEEDED)
    with pytest.raises(ConflictError, match="superseded"):
        await store.update_attempt(first.rollout_id, first.attempt.attempt_id, status=status)


async def test_the_reward_of_a_superseded_attempt_is_its_own(store: LightningStore) -> None:
    """Invariants 38, 39."""
    first = await running(store)
    reward = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 0.25}
    second = await store.start_attempt(first.rollout_id)
    await store.add_span(span_of(first, "late", 7, name="agentlightning.annotation", attributes=reward))
    closed = await store.update_attempt(first.rollout_id, first.attempt.attempt_id, status=AttemptStatus.SUCCEEDED)
    assert closed.reward == 0.25
    assert (await rollout_of(store, first.rollout_id)).reward is None
    await store.update_attempt(first.rollout_id, second.attempt.attempt_id, status=AttemptStatus.SUCCEEDED)
    assert (await rollout_of(store, first.rollout_id)).reward is None


async def test_a_timeout_that_the_store_decided_is_final(store: LightningStore) -> None:
    """Invariants 36, 44."""
    late = await ended(store, "timeout", config=retrying("timeout"))
    silent = await ended(store, "unresponsive")
    for rollout in (late, silent):
        before = await rollout_of(store, rollout.rollout_id)
        with pytest.raises(ConflictError):
            await store.update_attempt(rollout.rollout_id, "latest", status=AttemptStatus.SUCCEEDED)
        assert await rollout_of(store, rollout.rollout_id) == before


@pytest.mark.parametrize("status", ["running", "succeeded"])
async def test_a_status_of_the_newest_attempt_is_the_rollouts(store: LightningStore, status: AttemptStatus) -> None:
    """Invariant 39."""
    rollout = await begin(store)
    await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status=status)
    assert (await rollout_of(store, rollout.rollout_id)).status == status


@pytest.mark.parametrize("status", ["failed", "timeout", "unresponsive"])
async def test_a_failure_without_a_retry_fails_the_rollout(store: LightningStore, status: AttemptStatus) -> None:
    """Invariants 39, 41."""
    rollout = await ended(store, status)
    assert (await newest(store, rollout.rollout_id)).status == status
    after = await rollout_of(store, rollout.rollout_id)
    assert after.status == "failed"
    assert after.failure_class == ("agent_error" if status == "failed" else status)
    assert await store.dequeue_rollout() is None


async def test_latest_stands_for_the_newest_attempt(store: LightningStore) -> None:
    """Invariant 40."""
    first = await running(store)
    second = await store.start_attempt(first.rollout_id)
    await store.add_span(span_of(second, "second", 2))
    updated = await store.update_attempt(first.rollout_id, "latest", metadata={"a": 1})
    assert (updated.attempt_id, updated.metadata) == (second.attempt.attempt_id, {"a": 1})
    spans = await store.query_spans(first.rollout_id, "latest")
    assert [span.span_id for span in spans] == ["second"]


@pytest.mark.parametrize("status", ["failed", "timeout", "unresponsive"])
async def test_what_may_be_tried_again_is_requeued(store: LightningStore, status: AttemptStatus) -> None:
    """Invariants 41, 42."""
    rollout = await ended(store, status, config=retrying(status, tries=2))
    between = await rollout_of(store, rollout.rollout_id)
    assert (between.status, between.end_time, between.failure_class) == ("requeuing", None, None)
    second = await claimed(store)
    assert second.attempt.sequence_id == 2
    await store.update_attempt(rollout.rollout_id, second.attempt.attempt_id, status=status)
    assert (await rollout_of(store, rollout.rollout_id)).status == "failed"
    assert await store.dequeue_rollout() is None


async def test_a_failure_that_is_not_in_the_condition_is_final(store: LightningStore) -> None:
    """Invariant 41."""
    rollout = await ended(store, "failed", config=retrying("timeout", "unresponsive", tries=5))
    assert (await rollout_of(store, rollout.rollout_id)).status == "failed"


async def test_an_attempt_by_hand_ignores_the_limit(store: LightningStore) -> None:
    """Invariant 42."""
    rollout = await ended(store, "failed", config=config(max_attempts=1))
    again = await store.start_attempt(rollout.rollout_id, "w")
    assert (again.status, again.attempt.sequence_id, again.attempt.worker_id) == ("preparing", 2, "w")
    assert (again.end_time, again.failure_class) == (None, None)
    await store.update_attempt(rollout.rollout_id, "latest", status=AttemptStatus.SUCCEEDED)
    after = await rollout_of(store, rollout.rollout_id)
    assert (after.status, after.failure_class) == ("succeeded", None)


async def test_an_attempt_by_hand_takes_the_rollout_out_of_the_queue(store: LightningStore) -> None:
    """Invariant 43."""
    made = await store.enqueue_rollout("x")
    started = await store.start_attempt(made.rollout_id)
    assert started.attempt.sequence_id == 1
    assert await store.dequeue_rollout() is None


async def test_a_retry_waits_for_its_back_off(store: LightningStore) -> None:
    """Invariant 41."""
    await ended(store, "failed", config=retrying("failed", backoff_seconds=30))
    assert await store.dequeue_rollout() is None
    rollout = await ended(store, "failed", config=retrying("failed", backoff_seconds=0))
    assert (await claimed(store)).rollout_id == rollout.rollout_id


@pytest.mark.parametrize("status", ["succeeded", "failed", "timeout"])
async def test_a_finished_rollout_has_an_end_time(store: LightningStore, status: AttemptStatus) -> None:
    """Invariant 45."""
    before = time.time()
    rollout = await ended(store, status)
    attempt, after = await newest(store, rollout.rollout_id), await rollout_of(store, rollout.rollout_id)
    for end in (attempt.end_time, after.end_time):
        assert end is not None
        assert before - 1 <= end <= time.time() + 1


@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled"])
async def test_a_rollout_that_a_client_ends_has_an_end_time(store: LightningStore, status: str) -> None:
    """Invariant 45."""
    made = await store.enqueue_rollout("x")
    after = await store.update_rollout(made.rollout_id, status=status)  # type: ignore[arg-type]
    assert (after.status, after.end_time is not None) == (status, True)


async def test_a_terminal_status_changes_only_by_requeuing(store: LightningStore) -> None:
    """Invariant 45."""
    rollout = await ended(store, "succeeded")
    for status in ("running", "preparing", "queuing", "failed", "cancelled"):
        with pytest.raises(ConflictError):
            await store.update_rollout(rollout.rollout_id, status=status)  # type: ignore[arg-type]
    assert (await store.update_rollout(rollout.rollout_id, status=RolloutStatus.SUCCEEDED)).status == "succeeded"
    again = await store.update_rollout(rollout.rollout_id, status=RolloutStatus.REQUEUING)
    assert (again.status, again.end_time) == ("requeuing", None)
    assert (await claimed(store)).attempt.sequence_id == 2


async def test_an_attempt_that_has_ended_keeps_its_status(store: LightningStore) -> None:
    """Invariants 36, 44."""
    rollout = await ended(store, "failed")
    with pytest.raises(ConflictError):
        await store.update_attempt(rollout.rollout_id, "latest", status=AttemptStatus.SUCCEEDED)
    same = await store.update_attempt(
        rollout.rollout_id, "latest", status=AttemptStatus.FAILED, metadata={"late": True}
    )
    assert (same.status, same.metadata) == ("failed", {"late": True})


async def test_what_is_not_given_stays_and_none_is_a_value(store: LightningStore) -> None:
    """Invariant 49."""
    made = await store.enqueue_rollout("x", "train", metadata={"a": 1})
    same = await store.update_rollout(made.rollout_id)
    assert same == made
    kept = await store.update_rollout(made.rollout_id, input=None)
    assert (kept.input, kept.mode, kept.metadata) == (None, "train", {"a": 1})
    emptied = await store.update_rollout(made.rollout_id, mode=None, metadata=None, resources_id=None)
    assert (emptied.mode, emptied.metadata, emptied.status) == (None, {}, "queuing")


async def test_fields_can_be_changed(store: LightningStore) -> None:
    """Invariant 49."""
    made = await store.enqueue_rollout("x")
    changed = config(max_attempts=4)
    after = await store.update_rollout(made.rollout_id, {"n": 1}, "test", config=changed, metadata={"b": 2})
    assert (after.input, after.mode, after.config, after.metadata) == ({"n": 1}, "test", changed, {"b": 2})
    assert await rollout_of(store, made.rollout_id) == after


async def test_an_attempts_fields_can_be_changed(store: LightningStore) -> None:
    """Invariant 49."""
    rollout = await begin(store)
    ids = (rollout.rollout_id, rollout.attempt.attempt_id)
    await store.update_attempt(*ids, worker_id="w", metadata={"a": 1})
    after = await store.update_attempt(*ids, last_heartbeat_time=1700000000.5)
    assert (after.worker_id, after.metadata, after.last_heartbeat_time) == ("w", {"a": 1}, 1700000000.5)
    assert (await store.update_attempt(*ids, metadata=None)).metadata == {}


async def test_updates_of_unknown_ids_are_refused(store: LightningStore) -> None:
    """Invariant 50."""
    rollout = await begin(store)
    for call in (
        lambda: store.update_rollout("ro-unknown", mode="val"),
        lambda: store.start_attempt("ro-unknown"),
        lambda: store.update_attempt("ro-unknown", "latest", status=AttemptStatus.RUNNING),
        lambda: store.update_attempt(rollout.rollout_id, "at-unknown", status=AttemptStatus.RUNNING),
        lambda: store.cancel_rollout("ro-unknown"),
        lambda: store.delete_rollout("ro-unknown"),
    ):
        with pytest.raises(NotFoundError) as caught:
            await call()
        assert isinstance(caught.value, ValueError)


async def test_latest_of_a_rollout_without_attempts_is_unknown(store: LightningStore) -> None:
    """Invariants 40, 50."""
    made = await store.enqueue_rollout("x")
    with pytest.raises(NotFoundError):
        await store.update_attempt(made.rollout_id, "latest", status=AttemptStatus.RUNNING)
    assert await store.get_latest_attempt(made.rollout_id) is None


async def test_queries_for_unknown_ids_have_empty_answers(store: LightningStore) -> None:
    """Invariant 50."""
    assert await store.get_rollout_by_id("ro-unknown") is None
    assert await store.get_latest_attempt("ro-unknown") is None
    assert list(await store.query_attempts("ro-unknown")) == []
    assert list(await store.query_spans("ro-unknown")) == []
    assert list(await store.query_spans("ro-unknown", "latest")) == []


async def test_cancelling_ends_the_rollout_and_its_attempt(store: LightningStore) -> None:
    """Ours: cancel."""
    rollout = await running(store)
    after = await store.cancel_rollout(rollout.rollout_id, "enough")
    assert (after.status, after.failure_class, after.end_time is not None) == ("cancelled", "cancelled", True)
    attempt = await newest(store, rollout.rollout_id)
    assert (attempt.status, attempt.failure_class, attempt.end_time is not None) == ("failed", "cancelled", True)
    with pytest.raises(ConflictError):
        await store.update_attempt(rollout.rollout_id, "latest", status=AttemptStatus.SUCCEEDED)
    assert await store.add_span(span_of(rollout, "late", 5))
    assert (await rollout_of(store, rollout.rollout_id)).status == "cancelled"
    assert (await newest(store, rollout.rollout_id)).status == "failed"


async def test_setting_the_status_cancelled_cancels_the_rollout(store: LightningStore) -> None:
    """Ours: cancel."""
    rollout = await store.start_rollout("x", worker_id="w")
    await store.update_rollout(rollout.rollout_id, status="cancelled")  # type: ignore[arg-type]
    attempt = await newest(store, rollout.rollout_id)
    assert (attempt.status, attempt.failure_class) == ("failed", "cancelled")
    worker = await store.get_worker_by_id("w")
    assert worker
    assert worker.status == "idle"


async def test_cancelling_takes_a_rollout_out_of_the_queue(store: LightningStore) -> None:
    """Ours: cancel."""
    made = await store.enqueue_rollout("x")
    await store.cancel_rollout(made.rollout_id)
    assert await store.dequeue_rollout() is None
    assert (await store.cancel_rollout(made.rollout_id)).status == "cancelled"


async def test_what_has_ended_otherwise_cannot_be_cancelled(store: LightningStore) -> None:
    """Ours: cancel."""
    rollout = await ended(store)
    with pytest.raises(ConflictError):
        await store.cancel_rollout(rollout.rollout_id)


async def test_a_deleted_rollout_leaves_nothing(store: LightningStore) -> None:
    """Ours: delete."""
    rollout = await running(store)
    with pytest.raises(ConflictError):
        await store.delete_rollout(rollout.rollout_id)
    await store.update_attempt(rollout.rollout_id, "latest", status=AttemptStatus.SUCCEEDED)
    await store.delete_rollout(rollout.rollout_id)
    assert await store.get_rollout_by_id(rollout.rollout_id) is None
    assert list(await store.query_attempts(rollout.rollout_id)) == []
    assert list(await store.query_spans(rollout.rollout_id)) == []
    numbers = await store.statistics()
    assert (numbers["total_rollouts"], numbers["total_attempts"], numbers["total_spans"]) == (0, 0, 0)


async def test_what_a_run_planned_is_not_deleted(kit: LightningKit) -> None:
    """Ours: delete."""
    await kit.plan("demo-1")
    with pytest.raises(ConflictError):
        await kit.store.delete_rollout("demo-1")


async def test_what_a_workflow_drives_is_not_changed_from_outside(kit: LightningKit) -> None:
    """Ours: it has a fence, and calls without one may only add spans."""
    await kit.plan("demo-1")
    for call in (
        lambda: kit.store.update_rollout("demo-1", status="succeeded"),  # type: ignore[arg-type]
        lambda: kit.store.start_attempt("demo-1"),
        lambda: kit.store.update_attempt("demo-1", "latest", status="failed"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConflictError):
            await call()
    assert (await rollout_of(kit.store, "demo-1")).status == "queuing"


async def test_what_a_run_planned_is_not_in_the_queue(kit: LightningKit) -> None:
    """Ours: a workflow dispatches what a run plans."""
    await kit.plan("demo-1")
    assert await kit.store.dequeue_rollout() is None
    assert (await rollout_of(kit.store, "demo-1")).run == "demo"
