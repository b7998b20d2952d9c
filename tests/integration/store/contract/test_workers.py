"""What the store knows of those who run agents."""

from __future__ import annotations

import pytest

from relight.store.base import LightningStore
from relight.types.rollout import AttemptStatus
from relight.types.store import EnqueueRolloutRequest, Worker
from tests.support.lightning_kit import begin, claimed


async def worker_of(store: LightningStore, worker_id: str = "w") -> Worker:
    """A worker that must be there."""
    worker = await store.get_worker_by_id(worker_id)
    assert worker is not None
    return worker


async def test_an_empty_queue_leaves_the_worker_idle(store: LightningStore) -> None:
    """Invariants 9, 16."""
    assert await store.dequeue_rollout("w") is None
    worker = await worker_of(store)
    assert (worker.status, worker.current_rollout_id) == ("idle", None)
    assert worker.last_dequeue_time is not None


async def test_a_worker_is_busy_then_idle(store: LightningStore) -> None:
    """Invariant 16."""
    await store.enqueue_rollout("x")
    rollout = await claimed(store, "w")
    busy = await worker_of(store)
    assert busy.status == "busy"
    assert (busy.current_rollout_id, busy.current_attempt_id) == (rollout.rollout_id, rollout.attempt.attempt_id)
    assert busy.last_busy_time
    assert busy.last_dequeue_time
    assert busy.last_dequeue_time <= busy.last_busy_time + 0.5
    await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status=AttemptStatus.SUCCEEDED)
    idle = await worker_of(store)
    assert (idle.status, idle.current_rollout_id, idle.current_attempt_id) == ("idle", None, None)
    assert idle.last_idle_time
    assert idle.last_idle_time >= busy.last_busy_time
    assert idle.last_busy_time == busy.last_busy_time


@pytest.mark.parametrize(
    ("status", "expected"),
    [("running", "busy"), ("failed", "idle"), ("timeout", "unknown"), ("unresponsive", "unknown")],
)
async def test_a_worker_follows_its_attempt(store: LightningStore, status: str, expected: str) -> None:
    """Invariant 16."""
    rollout = await store.start_rollout("x", worker_id="w")
    await store.update_attempt(rollout.rollout_id, "latest", status=status)  # type: ignore[arg-type]
    assert (await worker_of(store)).status == expected


async def test_statistics_survive_what_the_attempt_does(store: LightningStore) -> None:
    """Invariant 17."""
    await store.update_worker("w", {"cpu": 0.5, "gpus": [1, 2]})
    beat = (await worker_of(store)).last_heartbeat_time
    rollout = await store.start_rollout("x", worker_id="w")
    await store.update_attempt(rollout.rollout_id, "latest", status=AttemptStatus.SUCCEEDED)
    worker = await worker_of(store)
    assert (worker.heartbeat_stats, worker.last_heartbeat_time) == ({"cpu": 0.5, "gpus": [1, 2]}, beat)


async def test_a_heartbeat_changes_neither_status_nor_attempt(store: LightningStore) -> None:
    """Invariant 17."""
    rollout = await store.start_rollout("x", worker_id="w")
    worker = await store.update_worker("w", {"cpu": 1})
    assert (worker.status, worker.current_attempt_id) == ("busy", rollout.attempt.attempt_id)
    assert (await store.update_worker("w", {"cpu": 2})).heartbeat_stats == {"cpu": 2}
    fresh = await store.update_worker("new", {"cpu": 1})
    assert (fresh.status, fresh.last_dequeue_time) == ("unknown", None)
    assert fresh.last_heartbeat_time is not None


async def test_claim_start_and_retry_assign_the_worker(store: LightningStore) -> None:
    """Invariant 18."""
    await store.enqueue_rollout("x")
    queued = await claimed(store, "a")
    started = await store.start_rollout("x", worker_id="b")
    retried = await store.start_attempt(queued.rollout_id, "c")
    given = await begin(store)
    await store.update_attempt(given.rollout_id, "latest", worker_id="d")
    for worker_id, rollout in (("b", started), ("c", retried), ("d", given)):
        worker = await worker_of(store, worker_id)
        assert (worker.status, worker.current_attempt_id) == ("busy", rollout.attempt.attempt_id)
        assert (await store.query_attempts(rollout.rollout_id))[-1].worker_id == worker_id
    assert queued.attempt.worker_id == "a"


async def test_a_batch_leaves_the_worker_at_its_last(store: LightningStore) -> None:
    """Invariants 13, 18."""
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(3)])
    taken = await store.dequeue_many_rollouts(3, "w")
    assert {rollout.attempt.worker_id for rollout in taken} == {"w"}
    assert (await worker_of(store)).current_attempt_id == taken[-1].attempt.attempt_id


async def test_a_worker_stays_busy_while_its_newest_attempt_runs(store: LightningStore) -> None:
    """Invariant 16."""
    first = await store.start_rollout("x", worker_id="w")
    second = await store.start_rollout("y", worker_id="w")
    await store.update_attempt(first.rollout_id, "latest", status=AttemptStatus.SUCCEEDED)
    worker = await worker_of(store)
    assert (worker.status, worker.current_attempt_id) == ("busy", second.attempt.attempt_id)


async def test_an_unknown_worker_is_none(store: LightningStore) -> None:
    """Invariant 19."""
    assert await store.get_worker_by_id("w") is None
    assert list(await store.query_workers()) == []


async def test_a_heartbeat_may_bring_no_statistics(store: LightningStore) -> None:
    """Invariant 20: those that were sent before stay."""
    first = await store.update_worker("w")
    assert (first.status, first.heartbeat_stats) == ("unknown", None)
    assert first.last_heartbeat_time is not None
    await store.update_worker("w", {"cpu": 1})
    again = await store.update_worker("w")
    assert again.heartbeat_stats == {"cpu": 1}
    assert again.last_heartbeat_time is not None
    assert again.last_heartbeat_time >= first.last_heartbeat_time
    assert (await store.update_worker("w", {})).heartbeat_stats == {}


async def test_statistics_are_not_null(store: LightningStore) -> None:
    """Invariants 20, 49."""
    with pytest.raises(TypeError, match="heartbeat_stats"):
        await store.update_worker("w", None)  # type: ignore[arg-type]
    assert await store.get_worker_by_id("w") is None


async def test_workers_are_found(store: LightningStore) -> None:
    """Invariants 6, 7."""
    await store.start_rollout("x", worker_id="host-1")
    await store.update_worker("host-2", {"cpu": 1})
    await store.dequeue_rollout("other")
    assert {worker.worker_id for worker in await store.query_workers()} == {"host-1", "host-2", "other"}
    assert [worker.worker_id for worker in await store.query_workers(status_in=["busy"])] == ["host-1"]  # type: ignore[list-item]
    assert list(await store.query_workers(status_in=[])) == []
    hosts = await store.query_workers(worker_id_contains="host", sort_by="worker_id", sort_order="desc", limit=1)
    assert ([worker.worker_id for worker in hosts], hosts.total) == (["host-2"], 2)
    either = await store.query_workers(status_in=["idle"], worker_id_contains="-1", filter_logic="or")  # type: ignore[list-item]
    assert {worker.worker_id for worker in either} == {"other", "host-1"}
