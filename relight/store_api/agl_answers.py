"""Answers under `/v1/agl`: exactly 0.3's fields, which its client can read, or on request all fields.

0.3 has three reasons for a retry, Relight ten; 0.3's attributes are flat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import orjson
from pydantic import BaseModel
from pydantic_core import to_json

from relight.types.rollout import Attempt, AttemptedRollout, Rollout, RolloutConfig
from relight.types.store import PaginatedResult
from relight.types.tracer import Span, as_plain

ROLLOUT_FIELDS = ("rollout_id", "input", "start_time", "end_time", "mode", "resources_id", "status", "metadata")
ATTEMPT_FIELDS = (
    "rollout_id",
    "attempt_id",
    "sequence_id",
    "start_time",
    "end_time",
    "status",
    "worker_id",
    "last_heartbeat_time",
    "metadata",
)


def dump(value: Any) -> bytes:
    """JSON, also with integers beyond 64 bits; NaN and infinity become null."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return to_json(value, inf_nan_mode="null")


def listed(items: Iterable[bytes]) -> bytes:
    """A JSON array of what is JSON already."""
    return b"[" + b",".join(items) + b"]"


def page(result: PaginatedResult[Any], encode: Callable[[Any], bytes], cursor: str | None = None) -> bytes:
    """0.3's page object; with a cursor, also the `next` one."""
    bounds = b',"limit":%d,"offset":%d,"total":%d' % (result.limit, result.offset, result.total)
    following = b',"next":' + orjson.dumps(result.next) if cursor is not None else b""
    return b'{"items":' + listed(encode(item) for item in result) + bounds + following + b"}"


def whole(model: BaseModel, complete: bool = True) -> bytes:
    """All fields of a model; of a worker and of a snapshot of resources 0.3 knows them all."""
    return model.__pydantic_serializer__.to_json(model)


def rollout_json(rollout: Rollout, complete: bool) -> bytes:
    """A rollout, with its attempt where it has one."""
    return whole(rollout) if complete else dump(_plain_rollout(rollout))


def bare_rollout_json(rollout: Rollout, complete: bool) -> bytes:
    """A rollout without an attempt, as 0.3 answers where it was changed, enqueued or waited for."""
    if not complete:
        return dump(_plain_rollout(rollout, bare=True))
    if isinstance(rollout, AttemptedRollout):
        return rollout.model_dump_json(exclude={"attempt"}).encode()
    return whole(rollout)


def attempt_json(attempt: Attempt, complete: bool) -> bytes:
    """An attempt."""
    return whole(attempt) if complete else dump(_plain_attempt(attempt))


def span_json(span: Span, complete: bool) -> bytes:
    """A span."""
    return whole(span) if complete else dump(_plain_span(span))


def _plain_rollout(rollout: Rollout, *, bare: bool = False) -> dict[str, Any]:
    values = rollout.__dict__
    plain: dict[str, Any] = {name: values[name] for name in ROLLOUT_FIELDS}
    plain["config"] = _plain_config(rollout.config)
    if not bare and isinstance(rollout, AttemptedRollout):
        plain["attempt"] = _plain_attempt(rollout.attempt)
    return plain


def _plain_config(config: RolloutConfig) -> dict[str, Any]:
    return {
        "timeout_seconds": config.timeout_seconds,
        "unresponsive_seconds": config.unresponsive_seconds,
        "max_attempts": config.max_attempts,
        "retry_condition": list(dict.fromkeys(kind.attempt_status.value for kind in config.retry_condition)),
    }


def _plain_attempt(attempt: Attempt) -> dict[str, Any]:
    values = attempt.__dict__
    return {name: values[name] for name in ATTEMPT_FIELDS}


def _plain_span(span: Span) -> dict[str, Any]:
    plain: dict[str, Any] = as_plain(span)
    plain["status"] = {"status_code": span.status.status_code, "description": span.status.description}
    for part in (plain, plain["resource"], *plain["events"], *plain["links"]):
        part["attributes"] = _flat(part["attributes"])
    return plain


def _flat(attributes: Any) -> dict[str, Any]:
    """Attributes whose values 0.3 knows; others, nested ones above all, are given as JSON text."""
    if not isinstance(attributes, dict):
        return {}
    known = cast("dict[str, Any]", attributes)
    return {name: value if _is_attribute(value) else dump(value).decode() for name, value in known.items()}


def _is_attribute(value: Any) -> bool:
    if isinstance(value, str | int | float):
        return True
    if not isinstance(value, list):
        return False
    kinds = {type(item) for item in cast("list[Any]", value)}
    return not kinds or kinds in ({str}, {bool}, {int}, {float}, {int, float})
