"""Which failures pause a run."""

from __future__ import annotations

from typing import Any

import pytest

from relight.store.runs.health import assess_failures
from relight.types.run_file import Failures


def failures(**given: Any) -> Failures:
    return Failures.model_validate(given)


@pytest.mark.parametrize(
    ("ended", "given"),
    [
        ({}, {}),
        ({"": 8}, {}),
        ({"": 1, "agent_error": 9}, {}),
        ({"": 4, "engine_error": 4}, {}),
        ({"cancelled": 8}, {}),
        ({"timeout": 8}, {"rewards": {"timeout": 0}}),
        ({"": 1, "agent_error": 99, "engine_error": 99}, {"pause_above": None}),
        ({"agent_error": 8}, {"pause_without_reward": False, "pause_above": None}),
        ({"": 8, "cancelled": 80}, {"pause_above": 0.1}),
    ],
)
def test_failures_below_the_limits_pause_nothing(ended: dict[str, int], given: dict[str, Any]) -> None:
    assert assess_failures(failures(**given), ended) is None


@pytest.mark.parametrize(
    ("ended", "given", "classes", "says"),
    [
        (
            {"agent_error": 3, "timeout": 5},
            {},
            ["agent_error", "timeout"],
            "8 of 8 rollouts failed (timeout 5, agent_error 3)",
        ),
        ({"": 1, "agent_error": 10}, {}, ["agent_error"], "more than `failures.pause_above.agent` (0.9)"),
        (
            {"": 3, "engine_error": 3, "infrastructure": 1},
            {},
            ["engine_error", "infrastructure"],
            "`failures.pause_above.platform` (0.5)",
        ),
        ({"": 3, "no_reward": 1}, {"pause_above": 0.2}, ["no_reward"], "1 of 4 rollouts failed (no_reward 1)"),
        ({"": 3, "grader_error": 1, "agent_error": 3}, {"pause_above": {"platform": 0}}, ["grader_error"], "platform"),
        ({"cancelled": 7, "agent_error": 1}, {}, ["agent_error"], "not one real reward: 1 of 1"),
    ],
)
def test_too_many_failures_are_named_with_their_numbers(
    ended: dict[str, int], given: dict[str, Any], classes: list[str], says: str
) -> None:
    verdict = assess_failures(failures(**given), ended)
    assert verdict is not None
    assert verdict.classes == classes
    assert says in verdict.text


def test_one_limit_applies_to_agent_and_platform_failures() -> None:
    assert failures(pause_above=0.25).pause_above.model_dump() == {"agent": 0.25, "platform": 0.25}
    assert failures(pause_above=None).pause_above.model_dump() == {"agent": None, "platform": None}
