"""Tries with growing pauses, and loops that do something every few seconds."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.errors import StoreError
from relight.retrying import Backoff, Every, in_background, logged, retry


@given(
    st.floats(min_value=0.001, max_value=1),
    st.floats(min_value=1, max_value=60),
    st.integers(min_value=2, max_value=2000),
)
def test_pauses_double_up_to_their_limit(first: float, longest: float, tries: int) -> None:
    backoff = Backoff(first, longest)
    pauses = [backoff.advance() for _ in range(tries)]
    assert pauses[0] == first
    assert all(later == min(2 * earlier, longest) for earlier, later in pairwise(pauses))
    backoff.reset()
    assert backoff.advance() == first


def test_jitter_takes_at_most_half_of_a_pause() -> None:
    backoff = Backoff(1.0, 1.0, jitter=True)
    assert all(0.5 <= backoff.advance() <= 1.0 for _ in range(100))


async def test_a_call_is_repeated_until_it_succeeds_and_each_error_is_seen() -> None:
    seen: list[str] = []

    async def call() -> str:
        if len(seen) < 3:
            raise StoreError(f"away {len(seen)}")
        return "there"

    async def note(error: StoreError) -> None:
        seen.append(str(error))

    answer = await retry(call, StoreError, backoff=Backoff(0.001, 0.002), on_error=note)
    assert (answer, seen) == ("there", ["away 0", "away 1", "away 2"])


async def test_the_last_error_is_raised_after_the_time_limit_and_an_unexpected_one_at_once() -> None:
    tries = 0

    async def call() -> None:
        nonlocal tries
        tries += 1
        raise StoreError(f"try {tries}")

    with pytest.raises(StoreError, match="try 1"):
        await retry(call, StoreError, backoff=Backoff(0.01, 0.01, within_seconds=0))
    with pytest.raises(StoreError, match="try 2"):
        await retry(call, OSError, backoff=Backoff(0.01, 0.01))
    with pytest.raises(StoreError, match=r"try [2-9]"):
        await retry(call, StoreError, backoff=Backoff(0.01, 0.01, within_seconds=0.05))


async def test_a_pause_takes_as_long_as_the_error_asks_for_at_least() -> None:
    began, tries = monotonic(), 0

    async def call() -> float:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise StoreError("later")
        return monotonic() - began

    async def asked_for(error: StoreError) -> float:
        return 0.2

    assert await retry(call, StoreError, backoff=Backoff(0.001, 0.001), on_error=asked_for) >= 0.19


async def test_an_error_that_is_raised_on_an_error_ends_the_retries() -> None:
    async def call() -> None:
        raise StoreError("away")

    async def refuse(error: StoreError) -> None:
        raise ValueError("no more") from error

    with pytest.raises(ValueError, match="no more"):
        await retry(call, StoreError, backoff=Backoff(0.001, 0.001), on_error=refuse)


async def test_a_cancellation_ends_the_retries() -> None:
    async def call() -> None:
        raise StoreError("away")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await retry(call, StoreError, backoff=Backoff(0.01, 60.0))


async def test_a_periodic_loop_logs_what_fails_and_continues(caplog: pytest.LogCaptureFixture) -> None:
    count = 0
    async for _ in Every(0.001):
        count += 1
        if count == 3:
            break
        with logged(logging.getLogger("x"), "can't look: %s", StoreError, action="look_failed"):
            raise StoreError(f"away {count}")
    assert [record.getMessage() for record in caplog.records] == ["can't look: away 1", "can't look: away 2"]
    assert {vars(record)["action"] for record in caplog.records} == {"look_failed"}


async def test_a_periodic_loop_begins_at_once_or_after_its_period() -> None:
    await asyncio.wait_for(anext(Every(60.0)), 20)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(Every(60.0, at_once=False)), 0.05)


async def test_a_wake_ends_a_pause_early_and_repeats_the_body_until_it_is_cleared() -> None:
    wake, count = asyncio.Event(), 0
    async with asyncio.timeout(20):
        async for _ in Every(60.0, wake=wake):
            count += 1
            if count == 1:
                asyncio.get_running_loop().call_later(0.01, wake.set)
            if count == 3:
                break


async def test_an_unexpected_error_ends_a_periodic_loop() -> None:
    with pytest.raises(ValueError, match="unforeseen"), logged(logging.getLogger("x"), "%s", StoreError):
        raise ValueError("unforeseen")


async def test_a_background_task_runs_during_the_block_and_has_ended_after_it() -> None:
    seen: list[str] = []

    async def work() -> None:
        seen.append("began")
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            seen.append("cleaned up")

    async def block() -> None:
        async with in_background(work(), work()):
            await asyncio.sleep(0)
            assert seen == ["began"] * 2
            raise ValueError("of the block")

    with pytest.raises(ValueError, match="of the block"):
        await block()
    assert seen[2:] == ["cleaned up"] * 2


async def test_the_result_of_a_background_task_can_be_taken_after_the_block() -> None:
    async def answer() -> int:
        return 4

    async with in_background(answer(), asyncio.sleep(60, 5)) as (done, cancelled):
        await asyncio.wait([done])
    assert done.result() == 4
    assert cancelled.cancelled()
