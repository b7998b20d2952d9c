"""OpenAI's Responses API: translates the answers and chunks of chat completions, with events in the official order."""

from __future__ import annotations

from typing import Any

import orjson

from relight.llm_proxy.answer_parts import Segment, Segments, Step, segments_of
from relight.llm_proxy.dialects import Dialect, named_event
from relight.llm_proxy.request_errors import RequestError
from relight.llm_proxy.responses_request import LOGPROBS, read_request

JSON = dict[str, Any]
ECHOED = ("instructions", "metadata", "max_output_tokens", "max_tool_calls", "user", "prompt_cache_key")
INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
PREFIXES = {"reasoning": "rs", "call": "fc", "text": "msg", "refusal": "msg"}


class Responses(Dialect):
    """One call. Nothing is kept for later calls, whatever `store` says; the answer has `store: false`."""

    name = "responses"

    def __init__(self) -> None:
        super().__init__()
        self._asked: JSON = {}
        self._head: JSON = {}
        self._segments = Segments()
        self._finish: str | None = None
        self._usage: JSON | None = None
        self._sequence = 0

    def read(self, asked: JSON) -> JSON:
        """Translate a request to chat completions."""
        self._asked = asked
        return read_request(asked)

    def answer(self, shown: JSON) -> bytes:
        """Translate an answer of chat completions to a response."""
        self._head = shown
        choice = shown["choices"][0]
        self._finish, self._usage = choice.get("finish_reason"), shown.get("usage")
        return orjson.dumps(self._response(self._status, segments_of(choice)))

    def chunk(self, chunk: JSON) -> bytes:
        """Translate a chunk to events."""
        events: list[bytes] = []
        if not self._head:
            self._head = chunk
            begun = self._response("in_progress", [])
            events += [self._event(f"response.{kind}", response=begun) for kind in ("created", "in_progress")]
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices") or ():
            for step in self._segments.take(choice):
                events += self._step(step)
            self._finish = choice.get("finish_reason") or self._finish
        return b"".join(events)

    def end(self) -> bytes:
        """The last part's end, and the whole response."""
        events = [event for step in self._segments.finish() for event in self._step(step)]
        kind = f"response.{self._status}"
        events.append(self._event(kind, response=self._response(self._status, self._segments.all)))
        return b"".join(events)

    def error_event(self, error: RequestError) -> bytes:
        """The event that ends a stream; official clients raise an exception because of its `error`."""
        described = error.payload["error"]
        fields = {key: described.get(key) for key in ("code", "message", "param")}
        return self._event("error", **fields, error=described)

    @property
    def _status(self) -> str:
        return "incomplete" if self._finish in INCOMPLETE else "completed"

    def _event(self, kind: str, **data: Any) -> bytes:
        self._sequence += 1
        return named_event({"type": kind, "sequence_number": self._sequence - 1, **data})

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{str(self._head.get('id')).rpartition('-')[2]}"

    def _response(self, status: str, segments: list[Segment]) -> JSON:
        reason = INCOMPLETE.get(self._finish or "") if status == "incomplete" else None
        asked, created = self._asked, self._head.get("created")
        return {
            "id": self._id("resp"),
            "object": "response",
            "created_at": created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": reason} if reason else None,
            "model": self._head.get("model"),
            "output": [self._item(segment, last=segment is segments[-1]) for segment in segments],
            "parallel_tool_calls": asked.get("parallel_tool_calls", True),
            "previous_response_id": None,
            "reasoning": asked.get("reasoning") or {"effort": None, "summary": None},
            "store": False,
            "temperature": self.sampling.get("temperature"),
            "text": asked.get("text") or {"format": {"type": "text"}},
            "tool_choice": asked.get("tool_choice") or "auto",
            "tools": asked.get("tools") or [],
            "top_p": self.sampling.get("top_p"),
            "truncation": "disabled",
            "usage": None if status == "in_progress" else usage_of(self._usage),
            **{key: asked.get(key) for key in ECHOED},
        }

    def _item(self, segment: Segment, last: bool = False, status: str | None = None) -> JSON:
        """A part as an item of the output."""
        status = status or (self._status if last else "completed")
        item: JSON = {"id": self._item_id(segment), "status": status}
        if segment.kind == "reasoning":
            return {"type": "reasoning", **item, "summary": [], "content": [self._part(segment)]}
        if segment.kind == "call":
            call = {"call_id": segment.call_id, "name": segment.name, "arguments": segment.text}
            return {"type": "function_call", **item, **call}
        return {"type": "message", **item, "role": "assistant", "content": [self._part(segment)]}

    def _item_id(self, segment: Segment) -> str:
        return f"{self._id(PREFIXES[segment.kind])}_{segment.number}"

    def _part(self, segment: Segment) -> JSON:
        if segment.kind == "reasoning":
            return {"type": "reasoning_text", "text": segment.text}
        if segment.kind == "refusal":
            return {"type": "refusal", "refusal": segment.text}
        part: JSON = {"type": "output_text", "text": segment.text, "annotations": []}
        return part | ({"logprobs": segment.logprobs} if LOGPROBS in (self._asked.get("include") or ()) else {})

    def _step(self, step: Step) -> list[bytes]:
        return {"began": self._began, "grew": self._grew, "ended": self._ended}[step.what](step)

    def _began(self, step: Step) -> list[bytes]:
        segment = step.segment
        item = self._item(segment, status="in_progress")
        part = item.pop("content", [None])[0]
        if part is not None:
            item["content"] = []
        events = [self._event("response.output_item.added", output_index=segment.number, item=item)]
        if part is not None:
            events.append(self._event("response.content_part.added", **self._position(segment), part=part))
        return events

    def _grew(self, step: Step) -> list[bytes]:
        kind = {
            "reasoning": "response.reasoning_text.delta",
            "text": "response.output_text.delta",
            "refusal": "response.refusal.delta",
            "call": "response.function_call_arguments.delta",
        }[step.segment.kind]
        data: JSON = {"delta": step.delta} | ({"logprobs": step.logprobs} if step.segment.kind == "text" else {})
        return [self._event(kind, **self._position(step.segment), **data)]

    def _ended(self, step: Step) -> list[bytes]:
        segment, position = step.segment, self._position(step.segment)
        item = self._item(segment, last=True)
        if segment.kind == "call":
            data: JSON = {"name": segment.name, "arguments": segment.text}
            events = [self._event("response.function_call_arguments.done", **position, **data)]
        else:
            kind, data = {
                "reasoning": ("response.reasoning_text.done", {"text": segment.text}),
                "text": ("response.output_text.done", {"text": segment.text, "logprobs": segment.logprobs}),
                "refusal": ("response.refusal.done", {"refusal": segment.text}),
            }[segment.kind]
            events = [self._event(kind, **position, **data)]
            events.append(self._event("response.content_part.done", **position, part=item["content"][0]))
        return [*events, self._event("response.output_item.done", output_index=segment.number, item=item)]

    def _position(self, segment: Segment) -> JSON:
        position: JSON = {"item_id": self._item_id(segment), "output_index": segment.number}
        return position if segment.kind == "call" else position | {"content_index": 0}


def usage_of(usage: JSON | None) -> JSON | None:
    """Chat's counts under this API's names."""
    if usage is None:
        return None
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    thought = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    return {
        "input_tokens": usage.get("prompt_tokens") or 0,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage.get("completion_tokens") or 0,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": usage.get("total_tokens") or 0,
    }
