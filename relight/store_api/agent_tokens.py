"""Looks up the attempt of a token, with which an agent may write only its own attempt's spans.

A token is valid while its attempt is open. If the attempt ended by itself, it is valid for a minute more, for exporters
that flush at the end; not if the platform ended it, once a newer attempt exists, or once its rollout is cancelled.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from relight.store.attempts.attempt_tokens import TOKEN_PREFIX, token_hash

AGENT_KEY = "relight.agent"
"""Key of the ASGI scope for the attempt whose agent sent a request; absent for the administrator."""
CACHED_SECONDS = 0.5
MAX_CACHED = 4096


@dataclass(frozen=True)
class AuthenticatedAttempt:
    """An attempt whose token came with a request."""

    rollout_id: str
    attempt_id: str
    graded: bool
    """A grader gives its reward: rewards that the agent emits don't count."""


class AgentTokens:
    """Looks up tokens, and caches those that it found for half a second."""

    def __init__(self, agent_of_token: Callable[[str], Awaitable[AuthenticatedAttempt | None]]) -> None:
        self._agent_of_token = agent_of_token
        self._known: dict[str, tuple[float, AuthenticatedAttempt]] = {}

    async def find(self, token: str) -> AuthenticatedAttempt | None:
        """The attempt of a token, or None.

        Raises:
            PostgresError: it can't be looked up.
        """
        if not token.startswith(TOKEN_PREFIX):
            return None
        digest = token_hash(token)
        until, agent = self._known.get(digest, (0.0, None))
        if agent and time.monotonic() < until:
            return agent
        found = await self._agent_of_token(digest)
        if found is None:
            return None
        if len(self._known) >= MAX_CACHED:
            self._known.clear()
        self._known[digest] = (time.monotonic() + CACHED_SECONDS, found)
        return found
