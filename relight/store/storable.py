"""Makes values from agents storable in Postgres.

JSON in Postgres has no NUL character, NaN or infinity, and orjson no integer beyond 64 bits and no lone surrogate: such
values become text that shows them. A reward that can't be trained on becomes a failure class.
"""

from __future__ import annotations

import math
import time
from typing import Any

from relight.types.rollout import FailureClass
from relight.types.wire import FinishRequest, SpanRecord

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
INT64 = 2**63
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


def storable(value: Any) -> Any:
    """A JSON value that Postgres can store."""
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, dict):
        return {storable_text(str(key)): storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, int) and not -INT64 <= value < INT64:
        return str(value)
    return value


def storable_time(seconds: float | None) -> float | None:
    """Unix seconds, or None if they are not a finite number."""
    return seconds if seconds is not None and math.isfinite(seconds) else None


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
        sound = {name: value for name, value in request.dimensions.items() if abs(value) <= LARGEST_REWARD}
        return request.model_copy(update={"dimensions": sound})
    return request.model_copy(update=changes)
