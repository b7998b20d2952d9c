"""What a scripted model says, as OpenAI's chat completions: whole, and in the chunks of a stream."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import orjson

JSON = dict[str, Any]
PIECE = 8
"""Characters of a tool call's arguments in one chunk."""
_numbers = count(1)


@dataclass(frozen=True)
class ToolCall:
    """A call of one of the agent's tools."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def as_message(self) -> JSON:
        """The call as it stands in a message, with an id of its own."""
        function = {"name": self.name, "arguments": orjson.dumps(dict(self.arguments)).decode()}
        return {"id": f"call_{next(_numbers)}", "type": "function", "function": function}


@dataclass(frozen=True)
class Answer:
    """One answer: text, calls of tools, or both."""

    text: str = ""
    tools: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    """By default `tool_calls` or `stop`."""
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further fields of the whole answer, such as `prompt_token_ids`."""
    choice_fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further fields of its choice, such as `token_ids`."""

    def whole(self, model: str) -> JSON:
        """The answer in one piece."""
        choice = {"index": 0, "message": self._message(), "finish_reason": self._ending(), "logprobs": None}
        answer = {**_head(model, "chat.completion"), "choices": [choice | dict(self.choice_fields)]}
        return answer | {"usage": self.usage()} | dict(self.fields)

    def chunks(self, model: str, with_usage: bool) -> Iterator[JSON]:
        """The answer as a stream: word by word, and tool calls by their arguments' pieces."""
        head = _head(model, "chat.completion.chunk")
        deltas = list(deltas_of(self._message(), words=True)) or [{"content": ""}]
        deltas[0] = {"role": "assistant", **deltas[0]}
        for delta in deltas[:-1]:
            yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        yield {**head, "choices": [{"index": 0, "delta": deltas[-1], "finish_reason": self._ending()}]}
        if with_usage:
            yield {**head, "choices": [], "usage": self.usage()}

    def usage(self) -> JSON:
        """Counts of tokens, as if a word was one; the prompt has five."""
        said = len(self.text.split()) + sum(1 + len(call.arguments) for call in self.tools)
        return {"prompt_tokens": 5, "completion_tokens": said, "total_tokens": 5 + said}

    def _message(self) -> JSON:
        message: JSON = {"role": "assistant", "content": self.text or None}
        return message | ({"tool_calls": [call.as_message() for call in self.tools]} if self.tools else {})

    def _ending(self) -> str:
        return self.finish_reason or ("tool_calls" if self.tools else "stop")


def deltas_of(message: Mapping[str, Any], size: int = PIECE, *, words: bool = False) -> Iterator[JSON]:
    """A message as the deltas of a stream: texts by words or by `size` characters, then the tool calls."""
    for name in ("reasoning", "content"):
        text = message.get(name) or ""
        yield from ({name: piece} for piece in (re.findall(r"\S+\s*|\s+", text) if words else _pieces(text, size)))
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        head = {"index": index, "id": call["id"], "type": "function", "function": {"name": function["name"]}}
        yield {"tool_calls": [head]}
        for piece in _pieces(function["arguments"], size):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _pieces(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def _head(model: str, kind: str) -> JSON:
    return {"id": f"chatcmpl-{next(_numbers)}", "object": kind, "created": 1, "model": model}
