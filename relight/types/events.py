"""Events of the store, as the event streams send them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from relight.types.views import View

EventKind = Literal["rollout", "attempt", "run", "step", "version", "audit", "command"]


class StoreEvent(View):
    """A change in the store. Of two events of one object, the one with the greater id is newer."""

    kind: EventKind | Literal["reset"]
    """`reset`: some events are no longer kept; read the current state again, the events that follow are complete."""
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
    """Cursor after this event: for `Last-Event-ID`, or `after`."""
