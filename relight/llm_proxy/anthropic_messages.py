"""Anthropic's Messages API: translates the answers, chunks and errors of chat completions."""

from __future__ import annotations

import json
from typing import Any

import orjson

from relight.llm_proxy.answer_parts import Segment, Segments, Step, segments_of
from relight.llm_proxy.anthropic_request import RAW_ARGUMENTS, is_raw, read_request
from relight.llm_proxy.dialects import Dialect, named_event
from relight.llm_proxy.request_errors import RequestError

JSON = dict[str, Any]
STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class Messages(Dialect):
    """One call."""

    name = "messages"

    def __init__(self) -> None:
        super().__init__()
        self._stops: list[Any] = []
        self._head: JSON = {}
        self._segments = Segments()
        self._choice: JSON = {}
        """The choice of the last chunk, with its finish reason."""
        self._usage: JSON = {}

    def read(self, asked: JSON) -> JSON:
        """Translate a request to chat completions."""
        self._stops = asked.get("stop_sequences") or []
        return read_request(asked)

    def answer(self, shown: JSON) -> bytes:
        """Translate an answer of chat completions to a message."""
        choice = shown["choices"][0]
        segments = segments_of(choice)
        content = [block_of(segment) for segment in segments]
        ending = self._ending(choice, segments)
        return orjson.dumps(self._message(shown, content, shown.get("usage") or {}) | ending)

    def chunk(self, chunk: JSON) -> bytes:
        """Translate a chunk to events."""
        events: list[bytes] = []
        if not self._head:
            self._head = chunk
            message = self._message(chunk, [], {"prompt_tokens": self.prompt_tokens})
            events.append(named_event({"type": "message_start", "message": message}))
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices") or ():
            if choice.get("finish_reason"):
                self._choice = choice
            events += [self._event(step) for step in self._segments.take(choice)]
        return b"".join(events)

    def end(self) -> bytes:
        """The last block's end, and the message's."""
        events = [self._event(step) for step in self._segments.finish()]
        ending = self._ending(self._choice, self._segments.all)
        events.append(named_event({"type": "message_delta", "delta": ending, "usage": usage_of(self._usage)}))
        events.append(named_event({"type": "message_stop"}))
        return b"".join(events)

    def error_body(self, error: RequestError) -> bytes:
        """An error as Anthropic writes it."""
        return orjson.dumps(error_of(error))

    def error_event(self, error: RequestError) -> bytes:
        return named_event(error_of(error))

    def _message(self, head: JSON, content: list[JSON], usage: JSON) -> JSON:
        return {
            "id": f"msg_{str(head.get('id')).rpartition('-')[2]}",
            "type": "message",
            "role": "assistant",
            "model": head.get("model"),
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_of(usage),
        }

    def _ending(self, choice: JSON, segments: list[Segment]) -> JSON:
        """Why the model stopped."""
        reason, stop = choice.get("finish_reason"), choice.get("stop_reason")
        if reason == "stop" and isinstance(stop, str) and stop in self._stops:
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        if reason == "stop" and any(segment.kind == "call" for segment in segments):
            return {"stop_reason": "tool_use", "stop_sequence": None}  # `tool_choice` named the tool
        return {"stop_reason": STOP_REASONS.get(reason or "", "end_turn"), "stop_sequence": None}

    def _event(self, step: Step) -> bytes:
        segment = step.segment
        position = {"index": segment.number}
        if step.what == "began":
            block = begun_block(segment)
            return named_event({"type": "content_block_start", **position, "content_block": block})
        if step.what == "ended":
            return named_event({"type": "content_block_stop", **position})
        delta = {
            "reasoning": {"type": "thinking_delta", "thinking": step.delta},
            "call": {"type": "input_json_delta", "partial_json": step.delta},
        }.get(segment.kind, {"type": "text_delta", "text": step.delta})
        return named_event({"type": "content_block_delta", **position, "delta": delta})


def block_of(segment: Segment) -> JSON:
    """A part of an answer as a content block."""
    if segment.kind == "reasoning":
        return {"type": "thinking", "thinking": segment.text, "signature": ""}
    if segment.kind == "call":
        call = {"id": segment.call_id, "name": segment.name, "input": arguments_of(segment.text)}
        return {"type": "tool_use", **call}
    return {"type": "text", "text": segment.text}


def begun_block(segment: Segment) -> JSON:
    """A content block before its first delta."""
    if segment.kind == "call":
        return {"type": "tool_use", "id": segment.call_id, "name": segment.name, "input": {}}
    return block_of(segment)


def arguments_of(text: str) -> JSON:
    """A tool call's arguments as the object that this API requires."""
    try:
        arguments = json.loads(text or "{}", parse_constant=refuse_constant)
        orjson.dumps(arguments)
    except (ValueError, TypeError, RecursionError):  # not JSON, or not serializable again
        arguments = None
    if not isinstance(arguments, dict) or is_raw(arguments):  # the second: a model that wrote the key itself
        return {RAW_ARGUMENTS: text}
    return arguments


def refuse_constant(name: str) -> None:
    """NaN and the infinities are not valid JSON."""
    raise ValueError(name)


def usage_of(usage: JSON) -> JSON:
    """Chat's counts under this API's names."""
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return {
        "input_tokens": (usage.get("prompt_tokens") or 0) - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.get("completion_tokens") or 0,
    }


def error_of(error: RequestError) -> JSON:
    """An error as Anthropic writes it."""
    kind = ERROR_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    message = error.payload["error"].get("message") or error.message
    return {"type": "error", "error": {"type": kind, "message": message}}
