"""The spans of a rollout in memory, its model calls among them, by the rules of `rollout_spans_v1`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from typing import Any

import orjson

from relight.adapter.model_calls import PROXY_CALLS, response_id
from relight.observability.redaction import Redactor
from relight.store.generations import response_id_of, to_json
from relight.store.memory.rows import AttemptRow, MemoryCall, RolloutRow
from relight.store.spans.model_call_attributes import SampledChoice, StoredCall, call_attributes, has_messages
from relight.types.tracer import Span

Key = tuple[str, str]
"""Attempt and span."""


class RolloutTrace:
    """Spans without what their model calls add to them; `complete` adds it to those that are returned."""

    def __init__(self, row: RolloutRow, attempt_id: str | None) -> None:
        if attempt_id == "latest" and row.newest:
            attempt_id = row.newest.attempt_id
        self.spans: list[Span] = []
        self._calls: dict[Key, MemoryCall] = {}
        for attempt in row.attempts:
            if attempt_id in (None, attempt.attempt_id):
                self._add_attempt(attempt, [span for (at, _), span in row.spans.items() if at == attempt.attempt_id])
        self.spans.sort(key=_place)

    def complete(self, spans: Iterable[Span]) -> None:
        """Give copies of these spans the attributes of their calls."""
        for span in spans:
            if call := self._calls.get((span.attempt_id, span.span_id)):
                content = {} if has_messages(span.attributes) else call.record.request
                answer = {} if has_messages(span.attributes) else call.record.response
                span.attributes = call_attributes(span, _stored(call), _redacted(content), _redacted(answer))

    def _add_attempt(self, attempt: AttemptRow, spans: list[Span]) -> None:
        calls = [call for _, call in sorted(attempt.calls.items()) if call.delivered != "no"]
        joined = dict(_joined(calls, sorted(spans, key=_innermost_first)))
        for span in spans:
            if call := joined.get(span.span_id):
                self._calls[attempt.attempt_id, span.span_id] = call
                span = span.model_copy(update={"sequence_id": call.sequence_id})
            self.spans.append(span)
        alone = [call for call in calls if all(call is not other for other in joined.values())]
        root = _root(spans) if alone else None
        for call in alone:
            span = _span(attempt, call, root)
            self._calls[attempt.attempt_id, span.span_id] = call
            self.spans.append(span)


def _place(span: Span) -> tuple[int, bool, float, str]:
    return span.sequence_id, span.start_time is None, span.start_time or 0.0, span.span_id


def _innermost_first(span: Span) -> tuple[int, float, str]:
    """Spans of one call: the innermost ended first; of those with one number it began last."""
    return span.sequence_id, -(span.start_time or 0.0), span.span_id


def _joined(calls: Iterable[MemoryCall], spans: Sequence[Span]) -> Iterator[tuple[str, MemoryCall]]:
    """Ids of spans with their calls, each once."""
    by_answer: dict[str, list[str]] = defaultdict(list)
    for span in spans:
        by_answer[response_id(span) or ""].append(span.span_id)
    known: set[str] = set()
    for call in calls:
        answer = response_id_of(call.record.response)
        last = (answer or "").rpartition("-")[2]
        if answer and last not in known:
            known.add(last)
            found = [name for alias in (answer, f"msg_{last}", f"resp_{last}") for name in by_answer[alias]]
            if found:
                yield next(span.span_id for span in spans if span.span_id in found), call


def _root(spans: list[Span]) -> Span | None:
    parents = {span.parent_id for span in spans}
    found = [
        span
        for span in spans
        if span.parent_id is None and span.span_id in parents and not span.name.startswith("agentlightning.")
    ]
    return found[0] if len(found) == 1 else None


def _span(attempt: AttemptRow, call: MemoryCall, root: Span | None) -> Span:
    identity = f"{attempt.attempt_id}/{call.record.call_number}"
    return Span.model_validate(
        {
            "rollout_id": attempt.rollout_id,
            "attempt_id": attempt.attempt_id,
            "sequence_id": call.sequence_id,
            "trace_id": root.trace_id if root else _digest(attempt.attempt_id)[:32],
            "span_id": _digest(identity)[:16],
            "parent_id": root.span_id if root else None,
            "name": PROXY_CALLS[0],
            "status": {"status_code": "OK"},
            "start_time": call.created_at - call.record.duration_seconds,
            "end_time": call.created_at,
        }
    )


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _stored(call: MemoryCall) -> StoredCall:
    record = call.record
    choices = [
        SampledChoice(choice.response_token_ids, choice.logprobs, choice.finish_reason) for choice in record.choices
    ]
    return StoredCall(
        call_number=record.call_number,
        route=record.route,
        engine_id=record.engine_id,
        seed=record.seed,
        version_start=call.version_start,
        version_end=call.version_end,
        response_id=response_id_of(record.response),
        prompt_token_ids=record.prompt_token_ids,
        choices=choices,
    )


@cache
def _redactor() -> Redactor:
    return Redactor()


def _redacted(body: Mapping[str, Any]) -> dict[str, Any]:
    return orjson.loads(_redactor().json(to_json(dict(body))))
