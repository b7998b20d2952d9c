"""One store, many threads: their loops share what belongs to one."""

from __future__ import annotations

import asyncio
import threading

import pytest

from relight.errors import NotFoundError
from relight.store.base import LightningStore
from relight.store.database import Database
from relight.store.postgres import PostgresLightningStore
from relight.store.threading import LightningStoreThreaded


async def test_threads_share_a_store_and_its_queue(database: Database) -> None:
    store = LightningStoreThreaded(await PostgresLightningStore.create(database))
    assert isinstance(store, LightningStore)
    assert store.capabilities == {"thread_safe": True, "async_safe": True, "zero_copy": False, "otlp_traces": False}
    taken: list[str] = []
    together = threading.Barrier(4)

    async def work() -> None:
        together.wait(30)
        for number in range(10):
            await store.enqueue_rollout(number)
        while rollout := await store.dequeue_rollout():
            taken.append(rollout.rollout_id)
            await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")  # type: ignore[arg-type]

    await asyncio.gather(*[asyncio.to_thread(asyncio.run, work()) for _ in range(4)])
    taken += [rollout.rollout_id for rollout in await store.dequeue_many_rollouts(100)]
    assert len(taken) == len(set(taken)) == 40


async def test_errors_and_waits_cross_threads(database: Database) -> None:
    own = await PostgresLightningStore.create(database)
    store = LightningStoreThreaded(own)
    rollout = await store.start_rollout("x")

    async def elsewhere() -> str:
        with pytest.raises(NotFoundError):
            await store.start_attempt("ro-unknown")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
        (ended,) = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=30)
        return ended.status

    waiting = asyncio.create_task(asyncio.to_thread(asyncio.run, elsewhere()))
    await asyncio.wait([waiting], timeout=0.3)
    await store.update_attempt(rollout.rollout_id, "latest", status="failed")  # type: ignore[arg-type]
    assert await waiting == "failed"
    await own.aclose()
