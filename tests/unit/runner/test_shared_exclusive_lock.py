"""One alone, or many at once."""

from __future__ import annotations

import asyncio

from relight.runner.shared_exclusive_lock import SharedExclusiveLock


async def test_an_exclusive_holder_waits_for_shared_ones_and_later_ones_wait_for_it() -> None:
    lock, order, first_may_end, alone_may_end = SharedExclusiveLock(), list[str](), asyncio.Event(), asyncio.Event()

    async def visit(name: str, alone: bool, may_end: asyncio.Event) -> None:
        async with lock.enter(alone):
            order.append(f"{name} in")
            await may_end.wait()
            order.append(f"{name} out")

    async with asyncio.TaskGroup() as group:
        for name, alone, may_end in (
            ("first", False, first_may_end),
            ("alone", True, alone_may_end),
            ("later", False, alone_may_end),
        ):
            group.create_task(visit(name, alone, may_end))
            await asyncio.sleep(0)
        first_may_end.set()
        while "alone in" not in order:  # noqa: ASYNC110 - the other tasks of this loop bring it about
            await asyncio.sleep(0)
        alone_may_end.set()
    assert order == ["first in", "first out", "alone in", "alone out", "later in", "later out"]


async def test_a_cancelled_wait_for_the_exclusive_lock_blocks_no_other() -> None:
    lock = SharedExclusiveLock()
    async with lock.enter(alone=False):
        waiting = asyncio.create_task(lock.enter(alone=True).__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        async with asyncio.timeout(20), lock.enter(alone=False):
            pass
