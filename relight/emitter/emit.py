"""The emitters: each call makes one span, sends it to the runner if it is made inside an attempt, and returns it.

All take further `attributes` for the span (nested ones are flattened) and, as in Agent Lightning 0.3, `propagate=False`
to return the span without sending it.
"""

from __future__ import annotations

import base64
import math
import traceback
from collections.abc import Mapping
from typing import Any, cast

from relight.emitter import names
from relight.emitter.attributes import as_json, clean_text, flatten
from relight.emitter.recorder import EmittedSpan, make_span, send

MAX_TRACEBACK_CHARACTERS = 16 * 1024
MAX_FEEDBACK_CHARACTERS = 16 * 1024


def emit_reward(
    reward: float | Mapping[str, float],
    *,
    primary_key: str | None = None,
    feedback: str | None = None,
    attributes: Mapping[str, Any] | None = None,
    propagate: bool = True,
) -> EmittedSpan:
    """Give the attempt a reward. If an attempt emits several, the last one counts.

    Args:
        reward: a finite number (also a scalar of numpy or torch), or several by name.
        primary_key: the name of the reward that is trained on; required if `reward` is a mapping.
        feedback: text that explains the reward; stored, at most 16 Ki characters.

    Raises:
        TypeError: a reward is not a number, or its name is not a string.
        ValueError: a reward is not finite, or `primary_key` is missing or not among the names.
    """
    dimensions = reward_dimensions(reward, primary_key)
    flat = reward_attributes(dimensions, feedback) | flatten(attributes or {})
    return send(make_span(names.ANNOTATION, flat), propagate)


def reward_dimensions(reward: object, primary_key: str | None = None) -> dict[str, float]:
    """Rewards by name, the primary one first; a plain number is named `primary`.

    Raises:
        TypeError, ValueError: as `emit_reward`.
    """
    if not isinstance(reward, Mapping):
        return {names.PRIMARY: _number(reward, "reward")}
    named = dict(_named(name, value) for name, value in cast("Mapping[object, object]", reward).items())
    if primary_key is None:
        raise ValueError("a reward with several names needs primary_key, the name of the one to train on")
    if primary_key not in named:
        raise ValueError(f"primary_key {primary_key!r} is not among the rewards {sorted(named)}")
    return {primary_key: named.pop(primary_key), **named}


def _named(name: object, value: object) -> tuple[str, float]:
    if not isinstance(name, str):
        raise TypeError(f"the name of a reward must be a string, not {type(name).__name__}")
    return name, _number(value, f"reward {name!r}")


def _number(value: object, what: str) -> float:
    if not isinstance(value, int | float) and callable(scalar := getattr(value, "item", None)):
        value = scalar()  # numpy's and torch's scalars
    if not isinstance(value, int | float):
        raise TypeError(f"{what} must be a number, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{what} must be a finite number, not {number}")
    return number


def reward_attributes(dimensions: Mapping[str, float], feedback: str | None = None) -> dict[str, Any]:
    """Attributes of a reward span."""
    attributes: dict[str, Any] = {}
    if feedback is not None:
        attributes[names.REWARD_FEEDBACK] = clean_text(feedback, MAX_FEEDBACK_CHARACTERS)
    for index, (name, value) in enumerate(dimensions.items()):
        attributes[f"{names.REWARD}.{index}.name"] = clean_text(name, 256)
        attributes[f"{names.REWARD}.{index}.value"] = value
    return attributes


def emit_annotation(annotation: Mapping[str, Any], propagate: bool = True) -> EmittedSpan:
    """Emit an annotation: a span with these attributes, flattened to `a.b.0` names."""
    return send(make_span(names.ANNOTATION, flatten(annotation)), propagate)


def emit_message(message: str, attributes: Mapping[str, Any] | None = None, propagate: bool = True) -> EmittedSpan:
    """Emit a message span with a text."""
    flat = {names.MESSAGE_BODY: clean_text(str(message)), **flatten(attributes or {})}
    return send(make_span(names.MESSAGE, flat), propagate)


def emit_object(value: Any, attributes: Mapping[str, Any] | None = None, propagate: bool = True) -> EmittedSpan:
    """Emit an object span: strings and numbers as text, bytes as base64, other values as JSON.

    Raises:
        RuntimeError: the value can't be represented in JSON.
    """
    return send(make_span(names.OBJECT, encode_object(value) | flatten(attributes or {})), propagate)


def encode_object(value: Any) -> dict[str, Any]:
    """Attributes that hold a value."""
    kind = type(value).__name__
    if isinstance(value, str | int | float):
        return {names.OBJECT_TYPE: kind, names.OBJECT_LITERAL: clean_text(str(value))}
    if isinstance(value, bytes):
        return {names.OBJECT_TYPE: kind, names.OBJECT_LITERAL: base64.b64encode(value).decode()}
    text = as_json(value)
    if text is None:
        raise RuntimeError(f"emit_object needs a value that JSON can hold, not {kind}")
    return {names.OBJECT_TYPE: kind, names.OBJECT_JSON: text}


def emit_exception(
    exception: BaseException, attributes: Mapping[str, Any] | None = None, propagate: bool = True
) -> EmittedSpan:
    """Emit an exception that the agent handled: its type, message and stack trace. The span's status stays UNSET."""
    flat = exception_attributes(exception) | flatten(attributes or {})
    return send(make_span(names.EXCEPTION, flat, status="UNSET"), propagate)


def exception_attributes(exception: BaseException) -> dict[str, Any]:
    """Attributes with the type, message and stack trace of an exception."""
    stack = "".join(traceback.format_exception(exception))
    return {
        names.EXCEPTION_TYPE: type(exception).__name__,
        names.EXCEPTION_MESSAGE: clean_text(str(exception), MAX_TRACEBACK_CHARACTERS),
        names.EXCEPTION_STACKTRACE: clean_text(stack[-MAX_TRACEBACK_CHARACTERS:]),
        names.EXCEPTION_ESCAPED: True,
    }
