"""What changed in the store, as those who follow it are told."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from relight.types.views import View

EventKind = Literal["rollout", "attempt", "run", "step", "version", "audit", "command"]


class StoreEvent(View):
    """Something that changed. Of one thing, the event with the greater id is the newer."""

    kind: EventKind | Literal["reset"]
    """`reset`: some events are no longer kept; read what you show anew, what follows is complete again."""
    id: int = 0
    time: float = 0.0
    """Seconds since 1970."""
    run: str | None = None
    rollout_id: str | None = None
    attempt_id: str | None = None
    step: int | None = None
    data: dict[str, Any] = Field(default_factory=dict[str, Any])
    """`status` and what it was `before`, and what else a kind has."""
    cursor: str = ""
    """Where to go on after it: the `Last-Event-ID`, or `after`."""
