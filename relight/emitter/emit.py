"""The emitters: each call makes one span, sends it to the runner if it is made inside an attempt, and returns it.

All take further `attributes` for the span (nested ones are flattened) and, as in Agent Lightning 0.3, `propagate=False`
to return the span without sending it; `name` names the span otherwise than after its kind. Where a tracer is active, it
makes the span.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any, cast

from relight import semconv
from relight.emitter.attributes import as_json, clean_text, exception_attributes, flatten
from relight.emitter.plain_spans import create_plain_span
from relight.emitter.scope import await_number, get_active_tracer
from relight.semconv import LightningSpanAttributes as Attribute
from relight.types.tracer import SpanCoreFields, StatusCode, TraceStatus

MAX_FEEDBACK_CHARACTERS = 16 * 1024


def emit_reward(
    reward: float | Mapping[str, float],
    *,
    primary_key: str | None = None,
    feedback: str | None = None,
    attributes: Mapping[str, Any] | None = None,
    propagate: bool = True,
) -> SpanCoreFields:
    """Give the attempt a reward. If an attempt emits several, the last one counts.

    It returns once the reward has its place in the order of the attempt's spans and model calls, or after 2 seconds
    without an answer of the runner.

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
    span = _emit(semconv.AGL_ANNOTATION, flat, propagate)
    if propagate:
        await_number()
    return span


def _emit(name: str, flat: dict[str, Any], propagate: bool, status: StatusCode = "OK") -> SpanCoreFields:
    tracer = get_active_tracer() if propagate else None
    if tracer is not None:
        return tracer.create_span(name, attributes=flat, status=TraceStatus(status_code=status))
    return create_plain_span(name, flat, status=TraceStatus(status_code=status), propagate=propagate)


def reward_dimensions(reward: object, primary_key: str | None = None) -> dict[str, float]:
    """Rewards by name, the primary one first; a plain number is named `primary`.

    Raises:
        TypeError, ValueError: as `emit_reward`.
    """
    if not isinstance(reward, Mapping):
        return {semconv.PRIMARY_REWARD: _number(reward, "reward")}
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
        attributes[semconv.REWARD_FEEDBACK] = clean_text(feedback, MAX_FEEDBACK_CHARACTERS)
    for index, (name, value) in enumerate(dimensions.items()):
        attributes[f"{Attribute.REWARD}.{index}.name"] = clean_text(name, 256)
        attributes[f"{Attribute.REWARD}.{index}.value"] = value
    return attributes


def emit_annotation(
    annotation: Mapping[str, Any], propagate: bool = True, *, name: str | None = None
) -> SpanCoreFields:
    """Emit an annotation: a span with these attributes, flattened to `a.b.0` names."""
    return _emit(name or semconv.AGL_ANNOTATION, flatten(annotation), propagate)


def emit_message(
    message: str, attributes: Mapping[str, Any] | None = None, propagate: bool = True, *, name: str | None = None
) -> SpanCoreFields:
    """Emit a message span with a text."""
    flat = {Attribute.MESSAGE_BODY.value: clean_text(str(message)), **flatten(attributes or {})}
    return _emit(name or semconv.AGL_MESSAGE, flat, propagate)


def emit_object(
    value: Any, attributes: Mapping[str, Any] | None = None, propagate: bool = True, *, name: str | None = None
) -> SpanCoreFields:
    """Emit an object span: strings and numbers as text, bytes as base64, other values as JSON.

    Raises:
        RuntimeError: the value can't be represented in JSON.
    """
    return _emit(name or semconv.AGL_OBJECT, encode_object(value) | flatten(attributes or {}), propagate)


def encode_object(value: Any) -> dict[str, Any]:
    """Attributes that hold a value."""
    kind = type(value).__name__
    if isinstance(value, str | int | float):
        return {Attribute.OBJECT_TYPE.value: kind, Attribute.OBJECT_LITERAL.value: clean_text(str(value))}
    if isinstance(value, bytes):
        return {Attribute.OBJECT_TYPE.value: kind, Attribute.OBJECT_LITERAL.value: base64.b64encode(value).decode()}
    text = as_json(value)
    if text is None:
        raise RuntimeError(f"emit_object needs a value that JSON can hold, not {kind}")
    return {Attribute.OBJECT_TYPE.value: kind, Attribute.OBJECT_JSON.value: text}


def emit_exception(
    exception: BaseException,
    attributes: Mapping[str, Any] | None = None,
    propagate: bool = True,
    *,
    name: str | None = None,
) -> SpanCoreFields:
    """Emit an exception that the agent handled: its type, message and stack trace. The span's status stays UNSET."""
    flat = exception_attributes(exception) | flatten(attributes or {})
    return _emit(name or semconv.AGL_EXCEPTION, flat, propagate, status="UNSET")
