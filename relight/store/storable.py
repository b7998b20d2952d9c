"""Makes values from agents storable in Postgres.

JSON in Postgres has no NUL character, NaN, infinity or -0.0, and orjson no integer beyond 64 bits and no lone
surrogate: such values become text that shows them, and -0.0 becomes 0.0. A reward that can't be trained on becomes a
failure class.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import orjson
from pydantic import BaseModel

from relight.errors import InvalidRequestError
from relight.types.checking import MOST_LEVELS
from relight.types.rollout import FailureClass
from relight.types.wire import FinishRequest, SpanRecord

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
SMALLEST, LARGEST = -(2**63), 2**64 - 1
"""The integers that orjson writes."""
LARGEST_REWARD = 1e18
"""Larger rewards overflow in the trainer's 32 bits, which makes the whole batch NaN."""
UNSET = "UNSET"
STATUS_CODES = frozenset({UNSET, "OK", "ERROR"})
"""OpenTelemetry's statuses of spans; any other is stored as UNSET."""


def storable_text(text: str) -> str:
    """Text without NUL characters and lone surrogates."""
    if "\x00" in text:
        text = text.replace("\x00", REPLACEMENT)
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    return text


def optional_text(text: str | None) -> str | None:
    """The same, where there may be none."""
    return None if text is None else storable_text(text)


def storable(value: Any, field: str = "value") -> Any:
    """A JSON value that Postgres can store.

    Raises:
        InvalidRequestError: it is nested too deeply, or holds what JSON can't represent; the message names the field.
    """
    try:
        return _storable(value, MOST_LEVELS)
    except _UnstorableError as error:
        raise InvalidRequestError(f"{field}: {error}") from error


class _UnstorableError(Exception):
    """What can't be stored, and what to send instead."""


def _storable(value: Any, levels: int) -> Any:
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, dict | list | tuple):
        if levels == 0:
            raise _UnstorableError(f"nested more than {MOST_LEVELS} levels deep; send it flatter, or as JSON in a text")
        if isinstance(value, dict):
            return {storable_text(str(key)): _storable(item, levels - 1) for key, item in value.items()}
        return [_storable(item, levels - 1) for item in value]
    if isinstance(value, float):
        return value + 0.0 if math.isfinite(value) else str(value)  # -0.0 becomes 0.0
    if isinstance(value, int):
        return value if SMALLEST <= value <= LARGEST else _digits(value)
    return None if value is None else _plain(value, levels)


def _digits(value: int) -> str:
    """An integer as text; Python converts none of more than 4300 digits to decimal ones."""
    try:
        return str(value)
    except ValueError:
        return hex(value)


def _plain(value: Any, levels: int) -> Any:
    """An object's fields, if it is pydantic's; what comes back of others that orjson writes: an enum, a date."""
    if isinstance(value, BaseModel):
        return _storable(value.model_dump(mode="json"), levels)
    try:
        return orjson.loads(orjson.dumps(value))
    except TypeError as error:
        kind = type(value).__name__
        raise _UnstorableError(
            f"{value!r:.100} is of type {kind}, which JSON can't represent; send text, numbers, lists or objects"
        ) from error


def storable_time(seconds: float | None) -> float | None:
    """Unix seconds, or None if they are not a finite number."""
    return seconds if seconds is not None and math.isfinite(seconds) else None


def finite(values: Mapping[str, float]) -> dict[str, float]:
    """The finite values, which JSON and Postgres can store."""
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}


def storable_span(span: SpanRecord) -> dict[str, Any]:
    """A span in the database's form; with an invalid start it starts now, with an unknown status it is UNSET."""
    row: dict[str, Any] = storable(span.model_dump(exclude={"start_time", "end_time"}))
    row["status"] = span.status if span.status in STATUS_CODES else UNSET
    start = storable_time(span.start_time)
    return row | {"start_time": time.time() if start is None else start, "end_time": storable_time(span.end_time)}


def with_reward_checked(request: FinishRequest) -> FinishRequest:
    """The request, with a failure class if its reward is missing or can't be trained on."""
    if request.failure_class is not None:
        return request.model_copy(update={"reward": None}) if request.reward is not None else request
    if request.reward is None:
        changes = {"failure_class": FailureClass.NO_REWARD, "message": request.message or "the agent gave no reward"}
    elif not abs(request.reward) <= LARGEST_REWARD:  # nor is NaN
        what = "beyond 1e18, too large to train on" if math.isfinite(request.reward) else "not a finite number"
        changes = {
            "failure_class": FailureClass.INVALID_REWARD,
            "message": request.message or f"the reward is {request.reward}, {what}",
            "reward": None,
        }
    else:
        sound = {name: value for name, value in request.end.rewards.items() if abs(value) <= LARGEST_REWARD}
        return request.model_copy(update={"end": request.end.model_copy(update={"rewards": sound})})
    return request.model_copy(update=changes)
