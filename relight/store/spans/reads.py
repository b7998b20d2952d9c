"""Reads the spans of a page from Postgres, model calls among them: one query each for spans, calls and bodies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import date
from typing import Any, NamedTuple

from relight.store.database import Database
from relight.store.generations import unpack_body
from relight.store.spans.model_call_attributes import SampledChoice, StoredCall, call_attributes, has_messages
from relight.store.spans.rows import digests_of, span_of_fields
from relight.types.tracer import Span

Key = tuple[str, Any]
"""Attempt, and id of a span or number of a call."""
OF_THE_GATEWAY = {"status": {"status_code": "OK"}, "attributes": {}, "extra": None, "bodies": None}
"""What the span of a call has that no tracer recorded."""


class CallRow(NamedTuple):
    """A model call, and the hashes of its request and answer."""

    call: StoredCall
    bodies: tuple[str, str]


async def read_spans(database: Database, keys: Sequence[Any]) -> list[Span]:
    """The spans of rows of `rollout_spans_v1`, which are of one rollout."""
    if not keys:
        return []
    day = keys[0]["day"]
    stored = await _read_stored(database, keys)
    calls = await _read_calls(database, day, keys)
    rows = [_row(key, stored) for key in keys]
    digests = {digest for row in rows for digest in [*digests_of(row["bodies"]), *_content_of(row, calls)]}
    found = await database.fetch("span_bodies", day, list(map(bytes.fromhex, digests))) if digests else []
    bodies = {row["hash"]: unpack_body(row["body"]) for row in found}
    return [_span(row, calls, bodies) for row in rows]


async def _read_stored(database: Database, keys: Sequence[Any]) -> dict[Key, Any]:
    ids = [list({key[name] for key in keys}) for name in ("attempt_id", "span_id")]
    found = await database.fetch("stored_spans", keys[0]["day"], keys[0]["rollout_id"], *ids)
    return {(row["attempt_id"], row["span_id"]): row for row in found}


def _row(key: Any, stored: dict[Key, Any]) -> dict[str, Any]:
    fields = dict(key)
    fields.pop("day")
    return {**fields, **dict(stored.get((key["attempt_id"], key["span_id"]), OF_THE_GATEWAY))}


async def _read_calls(database: Database, day: date, keys: Sequence[Any]) -> dict[Key, CallRow]:
    called = [key for key in keys if key["call_number"] is not None]
    if not called:
        return {}
    wanted = [list({key[name] for key in called}) for name in ("attempt_id", "call_number")]
    choices: dict[Key, list[Any]] = defaultdict(list)
    for row in await database.fetch("span_calls", day, *wanted):
        choices[row["attempt_id"], row["call_number"]].append(row)
    return {key: _call_row(found) for key, found in choices.items()}


def _call_row(choices: Sequence[Any]) -> CallRow:
    first = choices[0]
    answers = [SampledChoice(row["token_ids"], row["logprobs"], row["finish_reason"]) for row in choices]
    fields = {name: first[name] for name in StoredCall.__dataclass_fields__ if name != "choices"}
    return CallRow(StoredCall(choices=answers, **fields), (first["request"].hex(), first["response"].hex()))


def _content_of(row: dict[str, Any], calls: dict[Key, CallRow]) -> Sequence[str]:
    """The hashes of a call's bodies, unless a tracer's span has its messages."""
    call = calls.get((row["attempt_id"], row["call_number"]))
    large: dict[str, str] = (row["bodies"] or {}).get("attributes", {})
    return () if call is None or has_messages([*row["attributes"], *large]) else call.bodies


def _span(row: dict[str, Any], calls: dict[Key, CallRow], bodies: dict[str, Any]) -> Span:
    call = calls.get((row["attempt_id"], row.pop("call_number")))
    span = span_of_fields(row, bodies)
    if call is not None:
        request, response = ({}, {}) if has_messages(span.attributes) else map(bodies.__getitem__, call.bodies)
        span.attributes = call_attributes(span, call.call, request, response)
    return span
