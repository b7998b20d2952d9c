"""The APIs that agents speak. Each is served by one of the engine's two routes that return token ids.

A dialect reads the agent's request into the engine's, and writes the engine's answer, its chunks and errors as the
agent's client expects them. One object a call. What is recorded is always the engine's side, in chat's shape.
"""

from __future__ import annotations

from typing import Any, ClassVar

import orjson

from relight.llm_proxy.request_errors import RequestError
from relight.llm_proxy.requests import Route
from relight.llm_proxy.streams import DONE

JSON = dict[str, Any]


class Dialect:
    """Chat completions: what the engine speaks. The base of the others."""

    name: ClassVar[str] = "chat/completions"
    """Under which its calls are recorded."""
    route: ClassVar[Route] = "chat/completions"
    """The engine's route that serves it."""

    def __init__(self) -> None:
        self.sampling: JSON = {}
        """The sampling parameters in force."""
        self.prompt_tokens = 0
        """Known from a stream's first token on."""

    def read(self, asked: JSON) -> JSON:
        """The engine's request that an agent's request amounts to.

        Raises:
            Refusal: it asks for what can't be served.
        """
        return asked

    def answer(self, shown: JSON) -> bytes:
        """An answer in one piece, from the engine's."""
        return orjson.dumps(shown)

    def chunk(self, chunk: JSON) -> bytes:
        """The events that a chunk of the engine's stream amounts to."""
        return b"data: " + orjson.dumps(chunk) + b"\n\n"

    def end(self) -> bytes:
        """The events that end a stream."""
        return DONE

    def refusal(self, refusal: RequestError) -> bytes:
        """An error."""
        return refusal.body

    def broken(self, refusal: RequestError) -> bytes:
        """The event that ends a stream which can't go on."""
        return b"data: " + self.refusal(refusal) + b"\n\n"


class Completions(Dialect):
    """Text completions."""

    name = "completions"
    route = "completions"


def named_event(data: JSON) -> bytes:
    """An event whose name is its data's `type`."""
    return b"event: " + str(data["type"]).encode() + b"\ndata: " + orjson.dumps(data) + b"\n\n"
