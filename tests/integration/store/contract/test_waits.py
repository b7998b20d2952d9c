"""Waiting for rollouts to end."""

from __future__ import annotations

import asyncio
import time

import pytest

from relight.store.base import LightningStore
from relight.types.rollout import AttemptStatus, RolloutStatus
from tests.support.lightning_kit import begin, ended, rollout_of

SOON = 5.0
"""Far less than a test's timeout; a waiter that is woken needs a few milliseconds."""


async def timed(store: LightningStore, ids: list[str], timeout: float | None) -> tuple[set[str], float]:
    """Which had ended, and how long that took."""
    start = time.monotonic()
    found = await store.wait_for_rollouts(rollout_ids=ids, timeout=timeout)
    return {rollout.rollout_id for rollout in found}, time.monotonic() - start


async def test_a_wait_lasts_as_long_as_it_was_told(store: LightningStore) -> None:
    """Invariant 48."""
    rollout = await begin(store)
    found, seconds = await timed(store, [rollout.rollout_id], 0.4)
    assert found == set()
    assert 0.39 <= seconds < 1.4


async def test_no_time_is_a_look(store: LightningStore) -> None:
    """Invariant 48."""
    done, open_ = await ended(store), await begin(store)
    found, seconds = await timed(store, [done.rollout_id, open_.rollout_id], 0)
    assert (found, seconds < 0.3) == ({done.rollout_id}, True)


async def test_a_wait_without_end_can_be_cancelled(store: LightningStore) -> None:
    """Invariant 48."""
    rollout = await begin(store)
    waiting = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=None))
    done, _ = await asyncio.wait([waiting], timeout=0.2)
    assert not done
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await store.update_attempt(rollout.rollout_id, "latest", status=AttemptStatus.SUCCEEDED)
    assert (await rollout_of(store, rollout.rollout_id)).status == "succeeded"


async def test_what_has_ended_comes_back_when_time_is_up(store: LightningStore) -> None:
    """Invariant 48."""
    done, open_ = await ended(store), await begin(store)
    found, _ = await timed(store, [open_.rollout_id, done.rollout_id], 0.3)
    assert found == {done.rollout_id}


async def test_what_has_ended_already_is_not_waited_for(store: LightningStore) -> None:
    """Invariant 48."""
    rollouts = [await ended(store, status) for status in ("succeeded", "failed")]
    ids = [rollout.rollout_id for rollout in rollouts]
    for timeout in (None, 30):
        found, seconds = await timed(store, ids, timeout)
        assert (found, seconds < SOON) == (set(ids), True)
    assert await store.wait_for_rollouts(rollout_ids=[], timeout=None) == []


async def test_many_waiters_are_all_woken(store: LightningStore) -> None:
    """Invariant 48."""
    rollout = await begin(store)
    waiters = [asyncio.create_task(timed(store, [rollout.rollout_id], 60)) for _ in range(20)]
    await asyncio.wait(waiters, timeout=0.3)
    await store.update_attempt(rollout.rollout_id, "latest", status=AttemptStatus.SUCCEEDED)
    for found, seconds in await asyncio.gather(*waiters):
        assert (found, seconds < SOON) == ({rollout.rollout_id}, True)


@pytest.mark.parametrize("how", ["attempt", "rollout", "cancel"])
async def test_every_end_wakes_those_who_wait(store: LightningStore, how: str) -> None:
    """Invariant 48."""
    first, second = await begin(store), await begin(store)
    ids = [first.rollout_id, second.rollout_id]
    waiting = asyncio.create_task(timed(store, ids, 60))
    await asyncio.wait([waiting], timeout=0.2)
    for rollout_id in ids:
        if how == "attempt":
            await store.update_attempt(rollout_id, "latest", status=AttemptStatus.FAILED)
        elif how == "rollout":
            await store.update_rollout(rollout_id, status=RolloutStatus.SUCCEEDED)
        else:
            await store.cancel_rollout(rollout_id)
    found, seconds = await waiting
    assert (found, seconds < SOON) == (set(ids), True)


@pytest.mark.parametrize("timeout", [0.2, None])
async def test_unknown_ids_hold_up_nobody(store: LightningStore, timeout: float | None) -> None:
    """Invariant 48."""
    done = await ended(store)
    found, seconds = await timed(store, [done.rollout_id, "ro-unknown"], timeout)
    assert (found, seconds < SOON) == ({done.rollout_id}, True)
    assert (await timed(store, ["ro-unknown"], timeout))[0] == set()


async def test_a_requeued_rollout_has_not_ended(store: LightningStore) -> None:
    """Invariant 48."""
    rollout = await ended(store)
    await store.update_rollout(rollout.rollout_id, status=RolloutStatus.REQUEUING)
    assert (await timed(store, [rollout.rollout_id], 0.1))[0] == set()
