"""The model APIs that agents may use. Each is served by one of the engine's two routes that return token ids.

A dialect translates the agent's request to the engine's, and the engine's answer, chunks and errors to the form that
the agent's client expects. There is one object for each call. The store records the engine's side, in the shape of chat
completions.
"""

from __future__ import annotations

from typing import Any, ClassVar

import orjson

from relight.llm_proxy.request_errors import RequestError
from relight.llm_proxy.requests import Route
from relight.llm_proxy.streams import DONE

JSON = dict[str, Any]


class Dialect:
    """Chat completions, the engine's own API; base class of the others."""

    name: ClassVar[str] = "chat/completions"
    """The `route` under which its calls are recorded."""
    route: ClassVar[Route] = "chat/completions"
    """The engine's route that serves it."""

    def __init__(self) -> None:
        self.sampling: JSON = {}
        """The sampling parameters in force."""
        self.prompt_tokens = 0
        """Known from the first token of a stream."""

    def read(self, asked: JSON) -> JSON:
        """Translate the agent's request to the engine's.

        Raises:
            RequestError: it asks for something that can't be served.
        """
        return asked

    def answer(self, shown: JSON) -> bytes:
        """An answer in one piece, from the engine's."""
        return orjson.dumps(shown)

    def chunk(self, chunk: JSON) -> bytes:
        """The events for a chunk of the engine's stream."""
        return b"data: " + orjson.dumps(chunk) + b"\n\n"

    def end(self) -> bytes:
        """The events that end a stream."""
        return DONE

    def error_body(self, error: RequestError) -> bytes:
        """An error."""
        return error.body

    def error_event(self, error: RequestError) -> bytes:
        """The event that ends a stream with an error."""
        return b"data: " + self.error_body(error) + b"\n\n"


class Completions(Dialect):
    """Text completions."""

    name = "completions"
    route = "completions"


def named_event(data: JSON) -> bytes:
    """An event whose name is its data's `type`."""
    return b"event: " + str(data["type"]).encode() + b"\ndata: " + orjson.dumps(data) + b"\n\n"
