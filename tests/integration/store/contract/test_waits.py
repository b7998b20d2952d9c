"""Waiting for rollouts to end."""

from __future__ import annotations

import asyncio
import time

import pytest

from relight.store.base import LightningStore
from relight.types.rollout import AttemptStatus, RolloutStatus
from tests.support.lightning_kit import begin, ended, rollout_of

LONG = 600.0
"""Seconds of a wait that ends before its time; longer than a test may take."""


async def wait(store: LightningStore, ids: list[str], timeout: float | None) -> set[str]:
    """Which had ended; fails if the wait does not end long before `LONG`."""
    async with asyncio.timeout(LONG / 10):
        found = await store.wait_for_rollouts(rollout_ids=ids, timeout=timeout)
    return {rollout.rollout_id for rollout in found}


async def test_a_wait_lasts_as_long_as_it_was_told(store: LightningStore) -> None:
    """Invariant 48."""
    rollout = await begin(store)
    began = time.monotonic()
    assert await wait(store, [rollout.rollout_id], 0.4) == set()
    assert time.monotonic() - began >= 0.39


async def test_a_timeout_of_zero_answers_at_once(store: LightningStore) -> None:
    """Invariant 48."""
    done, open_ = await ended(store), await begin(store)
    assert await wait(store, [done.rollout_id, open_.rollout_id], 0) == {done.rollout_id}


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
    assert await wait(store, [open_.rollout_id, done.rollout_id], 0.3) == {done.rollout_id}


async def test_what_has_ended_already_is_not_waited_for(store: LightningStore) -> None:
    """Invariant 48."""
    rollouts = [await ended(store, status) for status in ("succeeded", "failed")]
    ids = [rollout.rollout_id for rollout in rollouts]
    for timeout in (None, LONG):
        assert await wait(store, ids, timeout) == set(ids)
    assert await store.wait_for_rollouts(rollout_ids=[], timeout=None) == []


async def test_all_waiters_are_notified(store: LightningStore) -> None:
    """Invariant 48."""
    rollout = await begin(store)
    waiters = [asyncio.create_task(wait(store, [rollout.rollout_id], LONG)) for _ in range(20)]
    await asyncio.wait(waiters, timeout=0.3)
    await store.update_attempt(rollout.rollout_id, "latest", status=AttemptStatus.SUCCEEDED)
    assert await asyncio.gather(*waiters) == [{rollout.rollout_id}] * len(waiters)


@pytest.mark.parametrize("how", ["attempt", "rollout", "cancel"])
async def test_every_terminal_status_ends_the_wait(store: LightningStore, how: str) -> None:
    """Invariant 48."""
    first, second = await begin(store), await begin(store)
    ids = [first.rollout_id, second.rollout_id]
    waiting = asyncio.create_task(wait(store, ids, LONG))
    await asyncio.wait([waiting], timeout=0.2)
    for rollout_id in ids:
        if how == "attempt":
            await store.update_attempt(rollout_id, "latest", status=AttemptStatus.FAILED)
        elif how == "rollout":
            await store.update_rollout(rollout_id, status=RolloutStatus.SUCCEEDED)
        else:
            await store.cancel_rollout(rollout_id)
    assert await waiting == set(ids)


@pytest.mark.parametrize("timeout", [0.2, None])
async def test_unknown_ids_delay_no_wait(store: LightningStore, timeout: float | None) -> None:
    """Invariant 48."""
    done = await ended(store)
    assert await wait(store, [done.rollout_id, "ro-unknown"], timeout) == {done.rollout_id}
    assert await wait(store, ["ro-unknown"], timeout) == set()


async def test_a_requeued_rollout_has_not_ended(store: LightningStore) -> None:
    """Invariant 48."""
    rollout = await ended(store)
    await store.update_rollout(rollout.rollout_id, status=RolloutStatus.REQUEUING)
    assert await wait(store, [rollout.rollout_id], 0.1) == set()
