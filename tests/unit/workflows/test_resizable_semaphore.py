"""ResizableSemaphore whose number changes while they are taken."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from relight.types.concurrency_shares import share
from relight.workflows.resizable_semaphore import ResizableSemaphore


async def test_more_slots_admit_waiters_and_fewer_admit_none_until_enough_are_released() -> None:
    slots, inside, go_on = ResizableSemaphore(1), set[int](), [asyncio.Event() for _ in range(5)]

    async def enter(number: int) -> None:
        async with slots:
            inside.add(number)
            await go_on[number].wait()
            inside.discard(number)

    async def settle() -> set[int]:
        for _ in range(5):
            await asyncio.sleep(0)
        return set(inside)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(enter(number)) for number in range(5)]
        assert await settle() == {0}
        slots.resize(3)
        assert await settle() == {0, 1, 2}
        slots.resize(1)
        go_on[0].set()
        assert await settle() == {1, 2}
        tasks[3].cancel()
        for number in (1, 2):
            go_on[number].set()
        assert await settle() == {4}
        go_on[4].set()
    assert slots.taken == 0


@given(st.integers(1, 500), st.integers(1, 40))
def test_shares_add_up_to_the_limit_unless_there_are_more_batches_than_slots(limit: int, batches: int) -> None:
    shares = [share(limit, batches, number) for number in range(batches)]
    assert sum(shares) == max(limit, batches)
    assert max(shares) - min(shares) <= 1
