"""Limits on the size and duration of model calls. The gateway holds requests and answers in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relight.llm_proxy.exchange import MAX_BODY_BYTES
from relight.llm_proxy.request_errors import RequestError, unavailable
from relight.transport.byte_budgets import ByteBudget, held_bytes

if TYPE_CHECKING:
    from relight.llm_proxy.attempt_states import GatewayAttempt


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """The limits of a gateway on its calls, and the intervals of its background tasks."""

    request_bytes: int = MAX_BODY_BYTES
    answer_bytes: int = 64 * 2**20
    """As the engine sends it: about 200 bytes for each token with its id and logprob."""
    call_seconds: float = 3600.0
    """From the forward to the end of the answer; waiting for an engine does not count."""
    attempt_calls: int = 256
    """Calls of one attempt under way at once."""
    attempt_bytes: int = 64 * 2**20
    """Requests of one attempt that are held at once."""
    total_bytes: int = 512 * 2**20
    """Requests of all attempts that are held at once."""
    noticed_seconds: float = 0.25
    """If an agent disconnects after a shorter wait, the wait was not the reason."""
    mark_seconds: float = 0.25
    """Marks of delivered answers are collected for this time, unless their attempt makes another call."""
    ended_seconds: float = 0.5
    """Between two questions to the store which attempts have ended; after that their tokens permit nothing here."""
    check_seconds: float = 5.0
    """Between two health checks of an engine, and how long it may take to answer."""
    give_up_seconds: float = 30.0
    """After this time without an answer the engine's calls are cancelled and repeated, if possible on another one."""

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


class HeldRequests:
    """The requests that are held while their calls are served: of each attempt, and of all together."""

    def __init__(self, limits: GatewayLimits) -> None:
        self._limits = limits
        self._total = ByteBudget(limits.total_bytes, _all_held)
        self._of_attempts: dict[tuple[str, str], ByteBudget] = {}
        """Of attempts with a call under way."""

    @contextmanager
    def hold(self, attempt: GatewayAttempt) -> Generator[Callable[[int], None]]:
        """Count a call of an attempt; what is yielded takes the bytes of its request as they come.

        Raises:
            RequestError: the attempt has too much under way, or all attempts together.
        """
        if attempt.under_way >= self._limits.attempt_calls:
            raise too_many(f"{attempt.under_way} calls of this attempt are under way, which is the most at once")
        own = self._of_attempts.setdefault(attempt.key, ByteBudget(self._limits.attempt_bytes, _too_many_bytes))
        attempt.under_way += 1
        try:
            with held_bytes(own, self._total) as take:
                yield take
        finally:
            attempt.under_way -= 1
            if not attempt.under_way:
                self._of_attempts.pop(attempt.key, None)


def _all_held(limit: int) -> RequestError:
    return unavailable(f"the gateway holds {limit} bytes of requests, as many as it can; try again")


def _too_many_bytes(limit: int) -> RequestError:
    return too_many(f"requests of this attempt take {limit} bytes, the most at once")


def too_many(message: str) -> RequestError:
    return RequestError(429, f"{message}; wait for one to end", "rate_limit_exceeded", "rate_limit_error", final=False)


def answer_too_large(limit: int) -> RequestError:
    message = f"the answer is longer than {limit} bytes; ask for fewer choices, tokens or logprobs"
    return RequestError(413, message, "answer_too_large")
