"""When a failed try is followed by another, and after what wait; whose attempt it is."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from relight.types.rollout import Attempt, AttemptedRollout, FailureClass, RolloutConfig, backoff_seconds, may_retry


@pytest.mark.parametrize(
    ("first", "number", "seconds"),
    [(1.0, 1, 1.0), (1.0, 4, 8.0), (1.0, 7, 60.0), (1.0, 1025, 60.0), (0.0, 5000, 0.0), (1e308, 5000, 60.0)],
)
def test_the_wait_doubles_with_every_try_up_to_a_minute(first: float, number: int, seconds: float) -> None:
    assert backoff_seconds(RolloutConfig(backoff_seconds=first), number) == seconds


@pytest.mark.parametrize(
    ("failure", "number", "retried"),
    [(FailureClass.TIMEOUT, 2, True), (FailureClass.TIMEOUT, 3, False), (FailureClass.AGENT_ERROR, 1, False)],
)
def test_a_failure_that_may_be_retried_is_until_the_last_try(failure: FailureClass, number: int, retried: bool) -> None:
    config = RolloutConfig(max_attempts=3, retry_condition=[FailureClass.TIMEOUT])
    assert may_retry(config, failure, number) is retried


def test_an_attempt_of_another_rollout_is_refused() -> None:
    other = Attempt(rollout_id="ro-2", attempt_id="at-1", sequence_id=1, start_time=1.0)
    with pytest.raises(ValidationError, match="is one of rollout 'ro-2', not of 'ro-1'"):
        AttemptedRollout(rollout_id="ro-1", start_time=1.0, attempt=other)
