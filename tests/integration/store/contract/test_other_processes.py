"""Other threads, event loops and processes see the same store."""

from __future__ import annotations

import asyncio
import sys
import threading

from relight.store.base import LightningStore
from relight.types.rollout import AttemptStatus
from tests.support.lightning_kit import LightningKit, ServedKit, begin, claimed, rollout_of, span_of

SCRIPT = """
import asyncio, sys
from relight.store.client import LightningStoreClient
from tests.support.lightning_kit import span_of

async def main(url, token):
    async with LightningStoreClient(url, token) as store:
        rollout = await store.dequeue_rollout("child")
        await store.add_span(span_of(rollout, "from-child"))
        await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")

asyncio.run(main(*sys.argv[1:]))
"""


async def test_another_loop_in_another_thread_works_on_the_same_store(kit: LightningKit) -> None:
    """Invariant 57."""
    made = await kit.store.enqueue_rollout("x")

    async def elsewhere() -> None:
        async with kit.elsewhere() as store:
            rollout = await claimed(store, "w")
            await store.add_span(span_of(rollout, "there"))
            await store.update_attempt(rollout.rollout_id, "latest", status=AttemptStatus.SUCCEEDED)

    waiting = asyncio.create_task(kit.store.wait_for_rollouts(rollout_ids=[made.rollout_id], timeout=60))
    await asyncio.wait([waiting], timeout=0.1)
    await asyncio.to_thread(asyncio.run, elsewhere())
    (done,) = await asyncio.wait_for(waiting, 10)
    assert done.status == "succeeded"
    assert [span.span_id for span in await kit.store.query_spans(made.rollout_id)] == ["there"]


async def test_loops_in_several_threads_share_the_queue(kit: LightningKit) -> None:
    """Invariants 15, 57."""
    taken: list[str] = []
    lock = threading.Lock()

    async def produce_and_consume(store: LightningStore) -> None:
        for number in range(10):
            await store.enqueue_rollout(number)
        while rollout := await store.dequeue_rollout():
            with lock:
                taken.append(rollout.rollout_id)

    async def elsewhere() -> None:
        async with kit.elsewhere() as store:
            await produce_and_consume(store)

    await asyncio.gather(*[asyncio.to_thread(asyncio.run, elsewhere()) for _ in range(3)])
    async with asyncio.timeout(30):
        while rollout := await kit.store.dequeue_rollout():
            taken.append(rollout.rollout_id)
    assert len(taken) == len(set(taken)) == 30


async def test_what_another_process_writes_is_there(service: ServedKit) -> None:
    """Invariant 58."""
    made = await service.store.enqueue_rollout("x")
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", SCRIPT, service.service_url, service.token)
    (done,) = await service.store.wait_for_rollouts(rollout_ids=[made.rollout_id], timeout=60)
    assert await child.wait() == 0
    assert done.status == "succeeded"
    assert [span.span_id for span in await service.store.query_spans(made.rollout_id)] == ["from-child"]


async def test_capabilities_say_what_the_store_can(store: LightningStore) -> None:
    """Invariant 57."""
    assert store.capabilities.get("async_safe") is True
    assert set(store.capabilities) <= {"thread_safe", "async_safe", "zero_copy", "otlp_traces"}
    assert all(isinstance(value, bool) for value in store.capabilities.values())
    if store.capabilities.get("otlp_traces"):
        assert store.otlp_traces_endpoint().endswith("/v1/traces")


async def test_a_rollout_begun_here_is_finished_there(kit: LightningKit) -> None:
    """Invariant 57."""
    rollout = await begin(kit.store)
    async with kit.elsewhere() as other:
        await other.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status=AttemptStatus.SUCCEEDED)
    assert (await rollout_of(kit.store, rollout.rollout_id)).status == "succeeded"
