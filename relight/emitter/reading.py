"""Reads what the emitters wrote from spans, which may be dictionaries or objects with the same fields."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import orjson

from relight.emitter import names

S = TypeVar("S")
_LITERALS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "bool": "True".__eq__}


def _field(span: object, name: str) -> Any:
    return cast("Mapping[str, Any]", span).get(name) if isinstance(span, Mapping) else getattr(span, name, None)


def _attributes(span: object) -> Mapping[str, Any]:
    return _field(span, "attributes") or {}


def get_reward_values(span: object) -> dict[str, float]:
    """Rewards of a span by name, the primary one first; empty if it has none or one is not a finite number."""
    attributes = _attributes(span)
    if not _may_hold_reward(_field(span, "name"), attributes):
        return {}
    values: dict[str, float] = {}
    index = 0
    while (value := attributes.get(f"{names.REWARD}.{index}.value")) is not None:
        if not isinstance(value, int | float) or not math.isfinite(value):
            return {}
        values[str(attributes.get(f"{names.REWARD}.{index}.name", index))] = float(value)
        index += 1
    return values


def _may_hold_reward(name: object, attributes: Mapping[str, Any]) -> bool:
    if name == names.OPERATION:
        return attributes.get(names.OPERATION_NAME) == names.REWARD_SPAN
    return name in (names.ANNOTATION, names.REWARD_SPAN)


def get_reward_value(span: object) -> float | None:
    """The primary reward of a span; None if it has none."""
    return next(iter(get_reward_values(span).values()), None)


def is_reward_span(span: object) -> bool:
    """Whether a span has a reward."""
    return get_reward_value(span) is not None


def find_reward_spans(spans: Sequence[S]) -> list[S]:
    """The spans that have a reward, in order."""
    return [span for span in spans if is_reward_span(span)]


def find_final_reward(spans: Sequence[object]) -> float | None:
    """The primary reward of the last span that has one; None if none has."""
    return next((value for span in reversed(spans) if (value := get_reward_value(span)) is not None), None)


def get_message_value(span: object) -> str | None:
    """The text of a message span; None for other spans."""
    return _attributes(span).get(names.MESSAGE_BODY) if _field(span, "name") == names.MESSAGE else None


def get_object_value(span: object) -> Any:
    """The value of an object span; None for other spans."""
    if _field(span, "name") != names.OBJECT:
        return None
    attributes = _attributes(span)
    if names.OBJECT_JSON in attributes:
        return orjson.loads(attributes[names.OBJECT_JSON])
    literal = attributes.get(names.OBJECT_LITERAL)
    if literal is None:
        return None
    if attributes.get(names.OBJECT_TYPE) == "bytes":
        return base64.b64decode(literal)
    return _LITERALS.get(attributes.get(names.OBJECT_TYPE, "str"), str)(literal)
