"""Group commit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from relight.errors import OverloadedError, PostgresError
from relight.store.group_commit import GroupCommit


class Disk:
    """Takes groups when it is told to, and remembers them."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.free = asyncio.Event()
        self.error: Exception | None = None

    async def flush(self, items: Sequence[int]) -> list[int]:
        self.groups.append(list(items))
        await self.free.wait()
        if self.error:
            raise self.error
        return [item * 10 for item in items]


async def settle() -> None:
    """Let everything that can run, run."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_items_that_arrive_during_a_commit_share_the_next_one_and_get_their_own_answers() -> None:
    disk = Disk()
    group: GroupCommit[int, int] = GroupCommit(disk.flush)
    first = asyncio.create_task(group.submit([1]))
    await settle()
    others = [asyncio.create_task(group.submit([n, n + 100])) for n in (2, 3, 4)]
    await settle()
    assert disk.groups == [[1]]
    assert not first.done()
    disk.free.set()
    assert await first == [10]
    assert [await other for other in others] == [[20, 1020], [30, 1030], [40, 1040]]
    assert disk.groups == [[1], [2, 102, 3, 103, 4, 104]]


async def test_requests_that_arrive_together_share_one_commit() -> None:
    disk = Disk()
    disk.free.set()
    group: GroupCommit[int, int] = GroupCommit(disk.flush)
    assert await asyncio.gather(*(group.submit([n]) for n in range(5))) == [[n * 10] for n in range(5)]
    assert disk.groups == [[0, 1, 2, 3, 4]]


async def test_a_commit_that_fails_fails_for_all_in_it_and_the_next_one_works() -> None:
    disk = Disk()
    disk.free.set()
    disk.error = PostgresError("away")
    group: GroupCommit[int, int] = GroupCommit(disk.flush)
    answers = await asyncio.gather(group.submit([1]), group.submit([2]), return_exceptions=True)
    assert [type(answer) for answer in answers] == [PostgresError, PostgresError]
    disk.error = None
    assert await group.submit([3]) == [30]


async def test_groups_stay_below_their_limit() -> None:
    disk = Disk()
    disk.free.set()
    group: GroupCommit[int, int] = GroupCommit(disk.flush, max_group=4)
    await asyncio.gather(*(group.submit([n, n, n]) for n in range(3)), group.submit(list(range(9))))
    assert [len(items) for items in disk.groups] == [3, 3, 3, 9]


async def test_too_many_waiting_are_refused_at_once() -> None:
    disk = Disk()
    group: GroupCommit[int, int] = GroupCommit(disk.flush, max_waiting=3)
    under_way = asyncio.create_task(group.submit([0, 0, 0]))
    await settle()
    waiting = asyncio.create_task(group.submit([1, 2]))
    await settle()
    with pytest.raises(OverloadedError):
        await group.submit([3, 4])
    disk.free.set()
    assert await under_way == [0, 0, 0]
    assert await waiting == [10, 20]
    assert await group.submit([3, 4]) == [30, 40]


async def test_a_cancelled_caller_does_not_fail_the_others() -> None:
    disk = Disk()
    group: GroupCommit[int, int] = GroupCommit(disk.flush)
    leaving = asyncio.create_task(group.submit([1]))
    staying = asyncio.create_task(group.submit([2]))
    await settle()
    leaving.cancel()
    await settle()
    disk.free.set()
    assert await staying == [20]
    assert disk.groups == [[1, 2]]


async def test_closing_waits_for_the_commit_in_progress() -> None:
    disk = Disk()
    group: GroupCommit[int, int] = GroupCommit(disk.flush)
    work = asyncio.create_task(group.submit([1]))
    await settle()
    closing = asyncio.create_task(group.aclose())
    await settle()
    assert not closing.done()
    disk.free.set()
    await closing
    assert await work == [10]


async def test_no_items_need_no_commit() -> None:
    disk = Disk()
    group: GroupCommit[int, int] = GroupCommit(disk.flush)
    assert await group.submit([]) == []
    assert disk.groups == []


async def test_enough_items_are_committed_beside_the_commit_in_progress_and_fewer_wait_for_it() -> None:
    disk = Disk()
    group: GroupCommit[int, int] = GroupCommit(disk.flush, max_writers=2, min_beside=3)
    tasks = [asyncio.create_task(group.submit([1]))]
    await settle()
    tasks.append(asyncio.create_task(group.submit([2, 3])))
    await settle()
    assert disk.groups == [[1]]
    tasks.append(asyncio.create_task(group.submit([4])))
    await settle()
    assert disk.groups == [[1], [2, 3, 4]]
    tasks.append(asyncio.create_task(group.submit([5, 6, 7])))
    await settle()
    assert disk.groups == [[1], [2, 3, 4]]
    disk.free.set()
    assert await asyncio.gather(*tasks) == [[10], [20, 30], [40], [50, 60, 70]]
    await group.aclose()
