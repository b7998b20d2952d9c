"""What the checks of the published client share. Runs in the peer's environment: nothing of Relight or pytest here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from agentlightning import LightningStoreClient
from agentlightning.types import AttemptedRollout, Rollout, Span

Client = LightningStoreClient
Check = Callable[[Client], Awaitable[None]]
UNKNOWN = "ro-000000000000"
CHECKS: list[Check] = []


def check(function: Check) -> Check:
    """Run it with the others, in order."""
    CHECKS.append(function)
    return function


def span_of(rollout: AttemptedRollout, sequence_id: int, name: str = "step", **fields: Any) -> Span:
    """A span of an attempt."""
    return Span.from_attributes(
        attributes={"number": sequence_id, "tags": ["a", "b"], "share": 0.25, "right": True, "text": "käse"},
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
        sequence_id=sequence_id,
        name=name,
        start_time=1_700_000_000.125,
        end_time=1_700_000_001.5,
        **fields,
    )


def status_of(rollout: Rollout | None) -> str:
    """Of a rollout that must be there."""
    assert rollout is not None
    return rollout.status


async def dequeued(client: Client) -> AttemptedRollout:
    """The next rollout; one that is tried again may come after a pause."""
    while True:
        rollout = await client.dequeue_rollout()
        if rollout is not None:
            return rollout
        await asyncio.sleep(0.05)


async def refused(call: Awaitable[Any]) -> int:
    """The status of an answer that must be an error."""
    try:
        await call
    except aiohttp.ClientResponseError as error:
        return error.status
    raise AssertionError("the server took it")
