"""When a child that has ended is started again."""

from __future__ import annotations

import asyncio
import math

import pytest

from relight.processes.restart_backoff import RestartBackoff


@pytest.mark.parametrize(
    ("healthy_seconds", "pauses"), [(math.inf, [0.001, 0.002, 0.004, 0.004]), (0.0, [0.001, 0.001, 0.001, 0.001])]
)
async def test_the_pauses_grow_while_the_child_dies_early_and_begin_anew_after_a_healthy_one(
    healthy_seconds: float, pauses: list[float]
) -> None:
    restarts, seen = RestartBackoff(0.001, 0.004, healthy_seconds), list[float]()
    async for _ in restarts:
        restarts.ready()
        restarts.ended()
        seen.append(restarts.seconds)
        if len(seen) == 4:
            break
    assert seen == pauses


async def test_a_child_that_was_not_ready_was_not_healthy() -> None:
    restarts, seen = RestartBackoff(0.001, 0.004, 0.0), list[float]()
    restarts.ready()
    restarts.ended()
    async for _ in restarts:
        restarts.ended()
        seen.append(restarts.seconds)
        if len(seen) == 3:
            break
    assert seen == [0.001, 0.002, 0.004]


async def test_failures_are_counted_until_the_child_is_ready() -> None:
    restarts = RestartBackoff(0.001, 0.001)
    for _ in range(3):
        restarts.ended()
    assert restarts.failures == 3
    restarts.ready()
    assert restarts.failures == 0


async def test_closing_ends_a_pause_and_the_child_is_not_started_again() -> None:
    restarts, starts = RestartBackoff(60.0, 60.0), 0
    async with asyncio.timeout(20):
        async for _ in restarts:
            starts += 1
            asyncio.get_running_loop().call_later(0.01, restarts.closing.set)
    assert starts == 1
    with pytest.raises(StopAsyncIteration):
        await anext(restarts)
