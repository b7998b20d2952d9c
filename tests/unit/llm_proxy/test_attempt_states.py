"""What the gateway knows of attempts stays bounded, and what counts is kept."""

from __future__ import annotations

from typing import Any, cast

import pytest

from relight.llm_proxy.attempt_states import GatewayAttempt, GatewayAttempts
from relight.llm_proxy.platform_waits import WaitClock
from relight.types.wire import CallContext, ResolveRequest

KEPT = 4


class Resolver:
    """Knows every attempt."""

    async def resolve(self, request: ResolveRequest) -> CallContext:
        return CallContext(
            rollout_id=request.rollout_id,
            attempt_id=request.attempt_id,
            run="run",
            model="policy",
            seed_base="1",
            sampling={},
            agent_chooses_sampling=False,
            min_version=0,
            max_version=0,
            engine_wait_seconds=300,
            next_call_number=1,
        )


@pytest.fixture
def attempts() -> GatewayAttempts:
    attempts = GatewayAttempts(cast("Any", Resolver()))
    attempts.kept_attempts = KEPT
    return attempts


async def find(attempts: GatewayAttempts, number: int) -> GatewayAttempt:
    return await attempts.find("rollout", f"attempt-{number}", "token")


async def test_of_many_attempts_the_least_recently_used_are_evicted(attempts: GatewayAttempts) -> None:
    for number in range(KEPT + 3):
        (await find(attempts, number)).known_since -= 1000 - number
    attempts.sweep()
    known = [number for number in range(KEPT + 3) if attempts.get("rollout", f"attempt-{number}")]
    assert known == list(range(3, KEPT + 3))


async def test_an_attempt_with_a_call_or_a_wait_or_a_platform_failure_is_kept(attempts: GatewayAttempts) -> None:
    busy, asking, waited, failed, *rest = [await find(attempts, number) for number in range(KEPT + 3)]
    for attempt in (asking, waited, failed, *rest):
        attempt.known_since -= 1000
    waited.clock = WaitedLong()
    failed.failed.add("a request")
    with asking.repeatable_call("a long one", declared_retry=False):
        attempts.sweep()
    assert all(attempts.get(*attempt.key) for attempt in (busy, asking, waited, failed))


class WaitedLong(WaitClock):
    """Through an outage."""

    @property
    def seconds(self) -> float:
        return 60.0
