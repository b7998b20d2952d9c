"""What an agent's return value means."""

from __future__ import annotations

import math
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relight.litagent.returns import sort_out


@pytest.mark.parametrize(
    ("value", "rewards"),
    [
        (None, {}),
        ([], {}),
        (True, {"primary": 1.0}),
        (0, {"primary": 0.0}),
        (0.5, {"primary": 0.5}),
        ({"only": 1}, {"only": 1.0}),
        ({"b": 2, "primary": 1}, {"primary": 1.0, "b": 2.0}),
        (({"a": 1, "b": 2}, "b"), {"b": 2.0, "a": 1.0}),
    ],
)
def test_a_reward_is_understood(value: Any, rewards: dict[str, float]) -> None:
    returned = sort_out(value)
    assert list(returned.rewards.items()) == list(rewards.items())
    assert returned.invalid is None


class Scalar:
    def item(self) -> float:
        return 0.25


def test_a_scalar_of_numpy_or_torch_is_a_number() -> None:
    assert sort_out(Scalar()).rewards == {"primary": 0.25}


class Awkward:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "value",
    [
        *(math.nan, math.inf, -math.inf, 10**400, "1.0", b"x", object(), Awkward(), [1], (1, 2), {}, {"a": 1, "b": 2}),
        *({"a": "x"}, {"a": math.nan}, ({"a": 1}, "b"), "\ud800", {Awkward(): 1}),
    ],
)
def test_anything_else_is_invalid_and_described(value: Any) -> None:
    returned = sort_out(value)
    assert returned.rewards == {}
    assert returned.invalid is not None
    assert returned.invalid.startswith("the agent returned ")
    orjson.dumps({"value": returned.value, "invalid": returned.invalid})


def test_a_small_value_is_kept_for_graders_and_a_large_one_is_not() -> None:
    assert sort_out({"answer": [1, "x"]}).value == {"answer": [1, "x"]}
    assert sort_out("x" * 2_000_000).value is None


def test_a_list_of_spans_is_sent_as_it_is() -> None:
    returned = sort_out([{"name": "tool", "attributes": {"a": {"b": 1}}, "start_time": 5, "end_time": 6.5}])
    assert returned.invalid is None
    assert returned.spans[0]["attributes"] == {"a.b": 1}
    assert (returned.spans[0]["start_time"], returned.spans[0]["end_time"]) == (5.0, 6.5)


@settings(max_examples=50, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(), st.lists))
def test_no_value_is_too_odd(value: Any) -> None:
    returned = sort_out(value)
    assert all(math.isfinite(reward) for reward in returned.rewards.values())
    orjson.dumps([returned.value, returned.invalid, returned.rewards])
