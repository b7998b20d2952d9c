"""Limits on the size and duration of model calls. The gateway holds requests and answers in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from relight.llm_proxy.exchange import MAX_BODY_BYTES
from relight.llm_proxy.request_errors import RequestError


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a gateway, for each of its calls."""

    request_bytes: int = MAX_BODY_BYTES
    answer_bytes: int = 64 * 2**20
    """As the engine sends it: about 200 bytes for each token with its id and logprob."""
    call_seconds: float = 3600.0
    """From the forward to the end of the answer; waiting for an engine does not count."""

    async def within(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Pass an answer on while it is within the limit.

        Raises:
            RequestError: it is too long.
        """
        left = self.answer_bytes
        async for piece in pieces:
            left -= len(piece)
            if left < 0:
                raise answer_too_large(self.answer_bytes)
            yield piece


def answer_too_large(limit: int) -> RequestError:
    message = f"the answer is longer than {limit} bytes; ask for fewer choices, tokens or logprobs"
    return RequestError(413, message, "answer_too_large")
