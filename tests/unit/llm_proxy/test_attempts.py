"""What the gateway knows of attempts stays bounded, and what counts is kept."""

from __future__ import annotations

from typing import Any, cast

import pytest

from relight.llm_proxy import attempts as module
from relight.llm_proxy.attempts import Attempt, Attempts
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
            step=1,
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
def attempts(monkeypatch: pytest.MonkeyPatch) -> Attempts:
    monkeypatch.setattr(module, "KEPT_ATTEMPTS", KEPT)
    return Attempts(cast("Any", Resolver()))


async def find(attempts: Attempts, number: int) -> Attempt:
    return await attempts.find("rollout", f"attempt-{number}", "token")


async def test_of_many_attempts_the_longest_quiet_ones_are_forgotten(attempts: Attempts) -> None:
    for number in range(KEPT + 3):
        (await find(attempts, number)).known_since -= 1000 - number
    attempts.sweep()
    known = [number for number in range(KEPT + 3) if attempts.get("rollout", f"attempt-{number}")]
    assert known == list(range(3, KEPT + 3))


async def test_an_attempt_that_calls_that_waited_or_that_the_platform_failed_is_kept(attempts: Attempts) -> None:
    busy, asking, waited, failed, *rest = [await find(attempts, number) for number in range(KEPT + 3)]
    for attempt in (asking, waited, failed, *rest):
        attempt.known_since -= 1000
    waited.clock = WaitedLong()
    failed.failed.add("a request")
    with asking.asking("a long one", declared_retry=False):
        attempts.sweep()
    assert all(attempts.get(*attempt.key) for attempt in (busy, asking, waited, failed))


class WaitedLong(WaitClock):
    """Through an outage."""

    @property
    def seconds(self) -> float:
        return 60.0
