"""Splits a chat answer into the parts of other dialects: reasoning, text, refusal, tool calls. Pure functions.

A whole answer and its chunks give the same parts; a part ends when the next one begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, cast

JSON = dict[str, Any]
Kind = Literal["reasoning", "text", "refusal", "call"]
What = Literal["began", "grew", "ended"]
FIELDS: tuple[tuple[str, Kind], ...] = (
    ("reasoning", "reasoning"),
    ("reasoning_content", "reasoning"),
    ("content", "text"),
    ("refusal", "refusal"),
)
"""The keys of a part's text in a message or a delta; `reasoning_content` is the older name of `reasoning`."""


@dataclass(slots=True)
class Segment:
    """One part of an answer, so far."""

    kind: Kind
    number: int
    """Its place in the answer."""
    tool_index: int = 0
    call_id: str = ""
    name: str = ""
    text: str = ""
    """For a tool call: its arguments."""
    logprobs: list[JSON] = field(default_factory=list[JSON])
    """Of a text, where the agent asked for them."""

    @property
    def key(self) -> tuple[str, int]:
        """What distinguishes it from adjacent parts."""
        return self.kind, self.tool_index


@dataclass(frozen=True, slots=True)
class Step:
    """The effect of a chunk on a part."""

    what: What
    segment: Segment
    delta: str = ""
    logprobs: list[JSON] = field(default_factory=list[JSON])


class Segments:
    """The parts of one answer, as its chunks come in."""

    def __init__(self) -> None:
        self.all: list[Segment] = []
        self._open: Segment | None = None

    def take(self, choice: JSON) -> Iterator[Step]:
        """The parts that a chunk's choice begins, continues and ends."""
        delta = cast("JSON", choice.get("delta") or {})
        logprobs = logprobs_of(choice)
        for name, kind in FIELDS:
            if delta.get(name):
                yield from self._grow(kind, str(delta[name]), logprobs if kind == "text" else [])
                if name == "reasoning":
                    delta = {**delta, "reasoning_content": None}  # the same text under both names
        for call in cast("list[JSON]", delta.get("tool_calls") or ()):
            yield from self._grow_call(call)

    def finish(self) -> Iterator[Step]:
        """End the answer; an empty answer gets an empty text part."""
        if not any(segment.kind != "reasoning" for segment in self.all):
            yield from self._begin(Segment("text", len(self.all)))
        yield from self._end()

    def _grow(self, kind: Kind, text: str, logprobs: list[JSON]) -> Iterator[Step]:
        if self._open is None or self._open.key != (kind, 0):
            yield from self._begin(Segment(kind, len(self.all)))
        yield self._add(text, logprobs)

    def _grow_call(self, part: JSON) -> Iterator[Step]:
        index = int(part.get("index") or 0)
        function = cast("JSON", part.get("function") or {})
        if self._open is None or self._open.key != ("call", index):
            name, call_id = str(function.get("name") or ""), str(part.get("id") or f"call_{index}")
            yield from self._begin(Segment("call", len(self.all), index, call_id, name))
        if function.get("arguments"):
            yield self._add(str(function["arguments"]), [])

    def _begin(self, segment: Segment) -> Iterator[Step]:
        yield from self._end()
        self.all.append(segment)
        self._open = segment
        yield Step("began", segment)

    def _add(self, text: str, logprobs: list[JSON]) -> Step:
        segment = cast("Segment", self._open)
        segment.text += text
        segment.logprobs += logprobs
        return Step("grew", segment, text, logprobs)

    def _end(self) -> Iterator[Step]:
        if self._open is not None:
            ended, self._open = self._open, None
            yield Step("ended", ended)


def logprobs_of(choice: JSON) -> list[JSON]:
    """The logprobs that the agent gets, in the form of chat completions."""
    return list((choice.get("logprobs") or {}).get("content") or ())


def segments_of(choice: JSON) -> list[Segment]:
    """The parts of a choice of a whole answer."""
    message = cast("JSON", choice.get("message") or {})
    calls = [{**call, "index": n} for n, call in enumerate(cast("list[JSON]", message.get("tool_calls") or ()))]
    segments = Segments()
    parts = {**choice, "delta": {**message, "tool_calls": calls}}
    for _ in (*segments.take(parts), *segments.finish()):
        pass
    if len(segments.all) > 1:  # which of the tokens made the text can't be told afterwards
        for segment in segments.all:
            segment.logprobs = []
    return segments.all
