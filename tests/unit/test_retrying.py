"""Tries with growing pauses, and loops that do something every few seconds."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.errors import StoreError
from relight.retrying import Every, ExponentialBackoff, logged, retry


@given(
    st.floats(min_value=0.001, max_value=1),
    st.floats(min_value=1, max_value=60),
    st.integers(min_value=2, max_value=2000),
)
def test_pauses_double_up_to_their_limit(first: float, longest: float, tries: int) -> None:
    backoff = ExponentialBackoff(first, longest)
    pauses = [backoff.advance() for _ in range(tries)]
    assert pauses[0] == first
    assert all(later == min(2 * earlier, longest) for earlier, later in pairwise(pauses))
    backoff.reset()
    assert backoff.advance() == first


def test_jitter_takes_at_most_half_of_a_pause() -> None:
    backoff = ExponentialBackoff(1.0, 1.0, jitter=True)
    assert all(0.5 <= backoff.advance() <= 1.0 for _ in range(100))


async def test_a_call_is_repeated_until_it_succeeds_and_each_error_is_seen() -> None:
    seen: list[str] = []

    async def call() -> str:
        if len(seen) < 3:
            raise StoreError(f"away {len(seen)}")
        return "there"

    backoff = ExponentialBackoff(0.001, 0.002)
    answer = await retry(call, StoreError, backoff=backoff, on_error=lambda error: seen.append(str(error)))
    assert (answer, seen) == ("there", ["away 0", "away 1", "away 2"])


async def test_the_last_error_is_raised_after_the_time_limit_and_an_unexpected_one_at_once() -> None:
    tries = 0

    async def call() -> None:
        nonlocal tries
        tries += 1
        raise StoreError(f"try {tries}")

    with pytest.raises(StoreError, match="try 1"):
        await retry(call, StoreError, backoff=ExponentialBackoff(0.01, 0.01, within_seconds=0))
    with pytest.raises(StoreError, match="try 2"):
        await retry(call, OSError, backoff=ExponentialBackoff(0.01, 0.01))
    with pytest.raises(StoreError, match=r"try [2-9]"):
        await retry(call, StoreError, backoff=ExponentialBackoff(0.01, 0.01, within_seconds=0.05))


async def test_a_cancellation_ends_the_retries() -> None:
    async def call() -> None:
        raise StoreError("away")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await retry(call, StoreError, backoff=ExponentialBackoff(0.01, 60.0))


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


async def test_an_unexpected_error_ends_a_periodic_loop() -> None:
    with pytest.raises(ValueError, match="unforeseen"), logged(logging.getLogger("x"), "%s", StoreError):
        raise ValueError("unforeseen")
