"""Deadlines: a sweeper finds what is overdue, without any traffic."""

from __future__ import annotations

import asyncio
import time

import pytest

from relight.store.memory.lightning import InMemoryLightningStore
from relight.types.rollout import AttemptStatus, RolloutConfig
from tests.support.lightning_kit import (
    LightningKit,
    begin,
    claimed,
    config,
    newest,
    retrying,
    rollout_of,
    running,
    span_of,
)

ALLOWED = 60
"""What deadlines allow; `kit.age` adds a second more to what an attempt has taken."""


async def unresponsive(kit: LightningKit, retry: tuple[str, ...] = (), tries: int = 2) -> str:
    """A rollout whose attempt fell silent and was found."""
    rollout = await running(kit.store, config=retrying(*retry, tries=tries, unresponsive_seconds=ALLOWED))
    await kit.store.update_attempt(rollout.rollout_id, "latest", last_heartbeat_time=time.time() - ALLOWED - 1)
    await kit.sweep()
    assert (await newest(kit.store, rollout.rollout_id)).status == "unresponsive"
    return rollout.rollout_id


async def test_an_attempt_past_its_time_is_a_timeout(kit: LightningKit) -> None:
    """Invariants 41, 45."""
    rollout = await running(kit.store, config=config(timeout_seconds=ALLOWED))
    await kit.age(rollout.rollout_id)
    await kit.sweep()
    attempt, after = await newest(kit.store, rollout.rollout_id), await rollout_of(kit.store, rollout.rollout_id)
    assert (attempt.status, attempt.failure_class, attempt.end_time is not None) == ("timeout", "timeout", True)
    assert (after.status, after.failure_class, after.end_time is not None) == ("failed", "timeout", True)


async def test_an_attempt_that_never_began_is_found_too(kit: LightningKit) -> None:
    """Invariant 41."""
    slow = await begin(kit.store, config=config(timeout_seconds=ALLOWED))
    silent = await begin(kit.store, config=config(unresponsive_seconds=ALLOWED))
    await kit.age(slow.rollout_id)
    await kit.age(silent.rollout_id)
    await kit.sweep()
    assert (await newest(kit.store, slow.rollout_id)).status == "timeout"
    assert (await newest(kit.store, silent.rollout_id)).status == "unresponsive"


async def test_an_attempt_without_heartbeats_is_unresponsive(kit: LightningKit) -> None:
    """Invariant 41."""
    rollout = await rollout_of(kit.store, await unresponsive(kit))
    assert (rollout.status, rollout.failure_class) == ("failed", "unresponsive")


async def test_a_timeout_in_the_condition_is_tried_again(kit: LightningKit) -> None:
    """Invariant 41."""
    rollout = await running(kit.store, config=retrying("timeout", timeout_seconds=ALLOWED))
    await kit.age(rollout.rollout_id)
    await kit.sweep()
    assert (await rollout_of(kit.store, rollout.rollout_id)).status == "requeuing"
    assert (await claimed(kit.store)).attempt.sequence_id == 2


async def test_unresponsive_is_final_unless_it_is_in_the_condition(kit: LightningKit) -> None:
    """Invariant 41."""
    rollout_id = await unresponsive(kit, retry=("timeout",), tries=5)
    assert (await rollout_of(kit.store, rollout_id)).status == "failed"


async def test_an_attempt_within_its_deadlines_is_left_alone(kit: LightningKit) -> None:
    """Invariant 41."""
    rollout = await running(kit.store, config=config(timeout_seconds=ALLOWED, unresponsive_seconds=ALLOWED))
    free = await running(kit.store)
    await kit.sweep()
    assert (await rollout_of(kit.store, rollout.rollout_id)).status == "running"
    assert (await rollout_of(kit.store, free.rollout_id)).status == "running"


async def test_time_in_the_queue_does_not_count(kit: LightningKit) -> None:
    """Invariant 41."""
    rollout = await kit.store.enqueue_rollout("x", config=config(timeout_seconds=ALLOWED, unresponsive_seconds=ALLOWED))
    await kit.age(rollout.rollout_id)
    await kit.sweep()
    await claimed(kit.store)
    await kit.sweep()
    assert (await newest(kit.store, rollout.rollout_id)).status == "preparing"


async def test_each_attempt_has_its_own_deadline(kit: LightningKit) -> None:
    """Invariant 41."""
    rollout = await running(kit.store, config=retrying("timeout", timeout_seconds=ALLOWED))
    await kit.age(rollout.rollout_id)
    await kit.sweep()
    second = await claimed(kit.store)
    await kit.sweep()
    attempt = await newest(kit.store, rollout.rollout_id)
    assert (attempt.attempt_id, attempt.status) == (second.attempt.attempt_id, "preparing")


async def test_spans_keep_an_attempt_alive(kit: LightningKit) -> None:
    """Invariant 34."""
    rollout = await running(kit.store, config=config(unresponsive_seconds=ALLOWED))
    for number in range(2, 5):
        await kit.age(rollout.rollout_id, 40)
        await kit.store.add_span(span_of(rollout, f"s{number}", number))
        await kit.sweep()
    assert (await newest(kit.store, rollout.rollout_id)).status == "running"


async def test_a_heartbeat_keeps_an_attempt_alive(kit: LightningKit) -> None:
    """Invariant 34."""
    rollout = await running(kit.store, config=config(unresponsive_seconds=ALLOWED))
    await kit.age(rollout.rollout_id)
    await kit.store.update_attempt(rollout.rollout_id, "latest", last_heartbeat_time=time.time() + 60)
    await kit.sweep()
    assert (await newest(kit.store, rollout.rollout_id)).status == "running"


async def test_a_workers_heartbeat_does_not_count_for_its_attempt(kit: LightningKit) -> None:
    """Invariants 17, 41."""
    rollout = await kit.store.start_rollout("x", config=config(unresponsive_seconds=ALLOWED), worker_id="w")
    await kit.age(rollout.rollout_id)
    await kit.store.update_worker("w", {"cpu": 1})
    await kit.sweep()
    assert (await newest(kit.store, rollout.rollout_id)).status == "unresponsive"


async def test_an_unresponsive_attempt_revives_with_a_span(kit: LightningKit) -> None:
    """Invariants 35, 43."""
    rollout_id = await unresponsive(kit, retry=("unresponsive",))
    assert (await rollout_of(kit.store, rollout_id)).status == "requeuing"
    assert await kit.store.add_span(span_of(await newest(kit.store, rollout_id), "late", 2))
    attempt = await newest(kit.store, rollout_id)
    assert (attempt.status, attempt.failure_class, attempt.end_time) == ("running", None, None)
    assert (await rollout_of(kit.store, rollout_id)).status == "running"
    assert await kit.store.dequeue_rollout() is None


@pytest.mark.parametrize("status", ["succeeded", "failed"])
async def test_a_revived_attempt_may_end_without_another(kit: LightningKit, status: str) -> None:
    """Invariant 44."""
    rollout_id = await unresponsive(kit, retry=("unresponsive",))
    await kit.store.add_span(span_of(await newest(kit.store, rollout_id), "late", 2))
    await kit.store.update_attempt(rollout_id, "latest", status=status)  # type: ignore[arg-type]
    assert (await rollout_of(kit.store, rollout_id)).status == status
    assert len(await kit.store.query_attempts(rollout_id)) == 1
    assert await kit.store.dequeue_rollout() is None


async def test_an_unresponsive_attempt_may_end_without_a_span(kit: LightningKit) -> None:
    """Invariant 44."""
    rollout_id = await unresponsive(kit, retry=("unresponsive",))
    await kit.store.update_attempt(rollout_id, "latest", status=AttemptStatus.SUCCEEDED)
    assert (await rollout_of(kit.store, rollout_id)).status == "succeeded"
    assert await kit.store.dequeue_rollout() is None


async def test_no_attempt_of_a_failed_rollout_revives(kit: LightningKit) -> None:
    """Invariant 35."""
    rollout_id = await unresponsive(kit)
    assert await kit.store.add_span(span_of(await newest(kit.store, rollout_id), "late", 2))
    assert (await newest(kit.store, rollout_id)).status == "unresponsive"
    assert (await rollout_of(kit.store, rollout_id)).status == "failed"


async def test_an_unresponsive_attempt_does_not_revive_beside_a_newer_one(kit: LightningKit) -> None:
    """Invariants 35, 38."""
    rollout_id = await unresponsive(kit, retry=("unresponsive",))
    old = await newest(kit.store, rollout_id)
    second = await claimed(kit.store)
    assert await kit.store.add_span(span_of(old, "late", 2))
    statuses = [attempt.status for attempt in await kit.store.query_attempts(rollout_id)]
    assert statuses == ["unresponsive", "preparing"]
    assert (await rollout_of(kit.store, rollout_id)).status == "preparing"
    assert second.attempt.sequence_id == 2


@pytest.mark.parametrize("tries", [1, 2])
async def test_a_timeout_stays_a_timeout_whatever_arrives_late(kit: LightningKit, tries: int) -> None:
    """Invariant 36."""
    rollout = await running(kit.store, config=retrying("timeout", tries=tries, timeout_seconds=ALLOWED))
    await kit.age(rollout.rollout_id)
    await kit.sweep()
    before = await rollout_of(kit.store, rollout.rollout_id)
    assert await kit.store.add_span(span_of(rollout, "late", 2))
    assert (await newest(kit.store, rollout.rollout_id)).status == "timeout"
    assert (await rollout_of(kit.store, rollout.rollout_id)).status == before.status
    assert (await kit.store.query_spans(rollout.rollout_id)).total == 2


async def test_concurrent_sweepers_make_a_transition_once(kit: LightningKit) -> None:
    """Invariants 46, 47."""
    rollout = await running(kit.store, config=retrying("timeout", timeout_seconds=ALLOWED))
    await kit.age(rollout.rollout_id)
    await asyncio.gather(*[kit.sweep() for _ in range(5)])
    attempt = await newest(kit.store, rollout.rollout_id)
    await kit.sweep()
    assert await newest(kit.store, rollout.rollout_id) == attempt
    assert (await claimed(kit.store)).attempt.sequence_id == 2
    assert await kit.store.dequeue_rollout() is None


async def test_the_worker_of_an_overdue_attempt_is_unknown(kit: LightningKit) -> None:
    """Invariant 16."""
    rollout = await kit.store.start_rollout("x", config=config(timeout_seconds=ALLOWED), worker_id="w")
    await kit.age(rollout.rollout_id)
    await kit.sweep()
    worker = await kit.store.get_worker_by_id("w")
    assert worker
    assert (worker.status, worker.current_rollout_id, worker.current_attempt_id) == ("unknown", None, None)


async def test_the_store_in_memory_finds_overdue_attempts_once_it_is_started() -> None:
    store = InMemoryLightningStore().keep_sweeping(period_seconds=0.01)
    rollout = await store.start_rollout("x", config=RolloutConfig(timeout_seconds=0.05))
    (ended,) = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=30)
    assert ended.status == "failed"
    assert (await store.query_attempts(rollout.rollout_id))[0].status == "timeout"
    await store.aclose()
