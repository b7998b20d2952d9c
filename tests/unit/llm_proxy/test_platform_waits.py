"""The clock of waits, and the batches that go to the store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from relight.errors import InvalidRequestError, StoreError
from relight.llm_proxy.platform_waits import WaitClock
from relight.llm_proxy.store_batcher import Batcher


class Time:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


def test_waits_that_overlap_count_once(time: Time):
    clock = WaitClock(time)
    with clock.call() as one, clock.call() as two:
        one.begin(100.0)
        time.now = 103.0
        two.begin(103.0)
        time.now = 105.0
        assert clock.waiting
        assert clock.seconds == 5.0
        one.end()
        time.now = 106.0
        assert clock.seconds == 6.0
        two.end()
        time.now = 110.0
    assert not clock.waiting
    assert clock.seconds == 6.0
    assert (one.seconds, two.seconds) == (5.0, 3.0)


def test_a_wait_that_is_noticed_late_counts_from_its_beginning_and_no_second_twice(time: Time):
    clock = WaitClock(time)
    with clock.call() as wait:
        wait.begin(90.0)
        wait.end()
        wait.begin(95.0)
        time.now = 101.0
    assert clock.seconds == 11.0


class Sink:
    """Takes batches; the first ones may fail."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.batches: list[list[int]] = []
        self.began = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, items: list[int]) -> Sequence[int]:
        self.batches.append(items)
        self.began.set()
        await self.gate.wait()
        if self.errors:
            raise self.errors.pop(0)
        if 13 in items:
            raise InvalidRequestError("13")
        return [item * 2 for item in items]


async def running(batcher: Batcher[int, int]) -> asyncio.Task[None]:
    task = asyncio.create_task(batcher.run())
    await asyncio.sleep(0)
    return task


async def test_items_that_arrive_while_a_batch_is_in_progress_go_with_the_next():
    sink = Sink()
    batcher = Batcher[int, int]("x", sink)
    task = await running(batcher)
    sink.gate.clear()
    first = batcher.submit(1)
    await sink.began.wait()
    rest = [batcher.submit(number) for number in (2, 3, 4)]
    sink.gate.set()
    assert await first == 2
    assert [await future for future in rest] == [4, 6, 8]
    assert sink.batches == [[1], [2, 3, 4]]
    task.cancel()


async def test_an_outage_repeats_the_same_batch_and_drops_nothing():
    sink = Sink(StoreError("away"), StoreError("away"))
    batcher = Batcher[int, int]("x", sink)
    task = await running(batcher)
    assert await batcher.submit(5) == 10
    assert sink.batches == [[5], [5], [5]]
    task.cancel()


async def test_a_bad_item_fails_alone():
    batcher = Batcher[int, int]("x", Sink())
    futures = [batcher.submit(number) for number in (1, 13, 2)]
    task = await running(batcher)
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert results[0] == 2
    assert isinstance(results[1], InvalidRequestError)
    assert results[2] == 4
    task.cancel()


async def test_waits_that_the_store_did_not_take_before_the_end_are_dropped():
    sink = Sink()
    sink.gate.clear()
    batcher = Batcher[int, int]("x", sink)
    task = await running(batcher)
    under_way = batcher.submit(1)
    await sink.began.wait()
    queued = batcher.submit(2)
    task.cancel()
    batcher.close()
    for future in (under_way, queued):
        with pytest.raises(StoreError):
            await future
