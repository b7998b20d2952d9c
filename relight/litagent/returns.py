"""The meaning of an agent's return value.

- None: the reward was emitted, or a grader gives it.
- A number: the reward.
- Numbers by name: several rewards. The only one is trained on, or the one called `primary`, or the one that a pair
names (`return {"exact": 1.0, "short": 0.2}, "exact"`). Text under the name `feedback` explains them.
- A list of spans, OpenTelemetry's or the store's: they are sent unchanged.

Any other value is not a reward; the attempt still succeeded, and the runner gets a message about the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from relight.emitter.attributes import as_json, safe_repr
from relight.emitter.emit import reward_attributes, reward_dimensions
from relight.emitter.foreign_spans import as_emitted, field_of
from relight.emitter.scope import EmittedSpan, make_span
from relight.semconv import AGL_ANNOTATION, PRIMARY_REWARD

MAX_VALUE_BYTES = 1024 * 1024
FEEDBACK = "feedback"


@dataclass(frozen=True, slots=True)
class Returned:
    """A parsed return value."""

    rewards: dict[str, float] = field(default_factory=dict[str, float])
    """Primary one first."""
    feedback: str | None = None
    """The feedback that was returned with them."""
    spans: list[Any] = field(default_factory=list[Any])
    """Emitted ones, which were returned in place of rewards."""
    value: Any = None
    """The value itself, if its JSON has at most 1 MiB."""
    invalid: str | None = None
    """Why it is neither a reward nor None."""


def parse_return(value: Any) -> Returned:
    """Parse a return value. Never raises; an invalid value is reported in `invalid`."""
    if value is None:
        return Returned()
    try:
        if isinstance(value, list) and all(_is_span(item) for item in cast("list[Any]", value)):
            return Returned(spans=[as_emitted(item) for item in cast("list[Any]", value)])
        rewards, feedback = _rewards(value)
    except Exception as error:  # the value may be of a user's type, whose methods may raise anything
        return Returned(value=_portable(value), invalid=f"the agent returned {describe(value)}: {error}")
    return Returned(rewards=rewards, feedback=feedback, value=_portable(value))


def returned_spans(returned: Returned) -> list[EmittedSpan]:
    """The spans of a return value; a reward is one too, as if it had been emitted."""
    if not returned.rewards:
        return returned.spans
    return [*returned.spans, make_span(AGL_ANNOTATION, reward_attributes(returned.rewards, returned.feedback))]


def _rewards(value: Any) -> tuple[dict[str, float], str | None]:
    if isinstance(value, tuple) and len(cast("Sequence[Any]", value)) == 2:
        named, primary = cast("tuple[Any, Any]", value)
        if isinstance(named, Mapping) and isinstance(primary, str):
            numbers, feedback = _split(cast("Mapping[str, Any]", named))
            return reward_dimensions(numbers, primary), feedback
    if isinstance(value, Mapping):
        numbers, feedback = _split(cast("Mapping[str, Any]", value))
        return reward_dimensions(numbers, _primary_key(numbers)), feedback
    return reward_dimensions(value), None


def _split(named: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Rewards and feedback."""
    feedback = named.get(FEEDBACK)
    if not isinstance(feedback, str):
        return dict(named), None
    return {name: value for name, value in named.items() if name != FEEDBACK}, feedback


def _primary_key(named: Mapping[str, Any]) -> str:
    if len(named) == 1:
        return next(iter(named))
    if PRIMARY_REWARD in named:
        return PRIMARY_REWARD
    raise ValueError(f"call the reward to train on {PRIMARY_REWARD!r}, or return (rewards, its name)")


def _portable(value: Any) -> Any:
    text = as_json(value)
    return orjson.loads(text) if text is not None and len(text) <= MAX_VALUE_BYTES else None


def describe(value: Any) -> str:
    """The type and a short form of a value of any size."""
    if isinstance(value, str | bytes) and len(value) > 200:
        return f"{type(value).__name__} of length {len(value)}"
    return f"{type(value).__name__} {safe_repr(value, 200)}"


def _is_span(item: Any) -> bool:
    return isinstance(field_of(item, "name"), str) and isinstance(field_of(item, "attributes"), Mapping | None)
