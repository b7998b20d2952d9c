"""The error of an activity that may not begin yet: Temporal retries it, without an event in the history."""

from __future__ import annotations

from datetime import timedelta

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

PAUSE_SECONDS = 2.0
"""How soon a paused run is checked again."""


def retry_later(reason: str, after_seconds: float = PAUSE_SECONDS) -> ApplicationError:
    """An error after which Temporal retries the activity soon, without logging it."""
    return ApplicationError(
        reason,
        type="Waiting",
        next_retry_delay=timedelta(seconds=after_seconds),
        category=ApplicationErrorCategory.BENIGN,
    )
