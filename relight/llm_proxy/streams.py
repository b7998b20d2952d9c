"""Server-sent events: parses an engine's stream, assembles it to an answer, and makes a stream from a stored answer.

A stream is stored as the assembled answer, so that readers of the store need to know only one shape.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from copy import deepcopy
from typing import Any, cast

from relight.llm_proxy.requests import Route

JSON = dict[str, Any]
DONE = b"data: [DONE]\n\n"
# Parts of a chunk that are not the answer's text.
NOT_MERGED = ("index", "delta", "text", "logprobs", "token_ids", "prompt_token_ids")


async def split_events(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The `data:` fields of an event stream, without their prefix."""
    buffer = bytearray()
    async for piece in pieces:
        searched = max(len(buffer) - 1, 0)
        buffer += piece
        while (end := buffer.find(b"\n\n", searched)) >= 0:
            event, searched = bytes(buffer[:end]), 0
            del buffer[: end + 2]
            if event.startswith(b"data:"):
                yield event[5:].strip()
            elif (at := event.find(b"\ndata:")) >= 0:  # behind a comment or a name
                yield event[at + 6 :].strip()


def finishes(chunk: JSON) -> bool:
    """True for a chunk that ends a choice, and for what comes after all choices (usage)."""
    choices = cast("list[JSON]", chunk.get("choices") or ())
    return not choices or any(choice.get("finish_reason") for choice in choices)


class Assembly:
    """Assembles chunks to the answer that would have come without streaming."""

    def __init__(self, route: Route) -> None:
        self.chat = route == "chat/completions"
        self.head: JSON = {}
        self.choices: dict[int, JSON] = {}

    def add(self, chunk: JSON) -> None:
        """Add a chunk as the agent gets it."""
        for key, value in chunk.items():
            if key != "choices" and (value is not None or key not in self.head):
                self.head[key] = value
        for part in cast("list[JSON]", chunk.get("choices") or ()):
            self.add_choice(part)

    def add_choice(self, part: JSON) -> None:
        """Add one choice's part of a chunk."""
        index = part.get("index", 0)
        choice = self.choices.setdefault(index, {"index": index, "logprobs": None, "finish_reason": None})
        if self.chat:
            merge_delta(choice.setdefault("message", {"role": "assistant", "content": None}), part.get("delta") or {})
        else:
            choice["text"] = choice.get("text", "") + (part.get("text") or "")
        merge_logprobs(choice, part.get("logprobs"))
        for key in ("token_ids", "prompt_token_ids"):
            if part.get(key):
                choice[key] = choice.get(key, []) + part[key]
        choice.update({key: value for key, value in part.items() if key not in NOT_MERGED and value is not None})

    def answer(self) -> JSON:
        """The whole answer."""
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self.head, "object": kind, "choices": [self.choices[index] for index in sorted(self.choices)]}


def merge_delta(message: JSON, delta: JSON) -> None:
    """Strings grow, lists are merged by `index`, anything else is replaced."""
    for key, value in delta.items():
        known = message.get(key)
        if isinstance(value, str) and isinstance(known, str) and key not in ("role", "id", "type"):
            message[key] = known + value
        elif isinstance(value, list):
            message[key] = merge_items(cast("list[JSON]", known or []), cast("list[JSON]", value))
        elif isinstance(value, dict) and isinstance(known, dict):
            merge_delta(cast("JSON", known), cast("JSON", value))
        elif value is not None:
            message[key] = deepcopy(value)


def merge_items(known: list[JSON], parts: list[JSON]) -> list[JSON]:
    """Tool calls come in parts that name their index."""
    for part in parts:
        same = next((item for item in known if item.get("index") == part.get("index")), None)
        if same is None:
            known.append(deepcopy(part))  # the chunk itself may still have to be sent
        else:
            merge_delta(same, part)
    return known


def merge_logprobs(choice: JSON, logprobs: JSON | None) -> None:
    """Append to the lists of logprobs of either route."""
    if not logprobs:
        return
    known = choice["logprobs"] = choice["logprobs"] or {}
    for key, value in logprobs.items():
        known[key] = known.get(key, []) + value if isinstance(value, list) else value


def replay(answer: JSON) -> Iterator[JSON]:
    """The chunks of a stored answer, to be streamed again: all of it, and its usage."""
    head = {key: value for key, value in answer.items() if key not in ("choices", "usage")}
    chat = answer.get("object") == "chat.completion"
    head["object"] = "chat.completion.chunk" if chat else "text_completion"
    for choice in cast("list[JSON]", answer.get("choices") or ()):
        part = {key: value for key, value in choice.items() if key != "message"}
        if chat:
            part["delta"] = indexed_tool_calls(choice["message"])
        yield {**head, "choices": [part]}
    if answer.get("usage"):
        yield {**head, "choices": [], "usage": answer["usage"]}


def indexed_tool_calls(message: JSON) -> JSON:
    """A delta's tool calls carry their index."""
    calls = cast("list[JSON]", message.get("tool_calls") or ())
    return {**message, "tool_calls": [{"index": n, **call} for n, call in enumerate(calls)]} if calls else message
