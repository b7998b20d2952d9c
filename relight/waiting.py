"""What an activity answers while it may not begin: come again, without costing anything."""

from __future__ import annotations

from datetime import timedelta

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

PAUSE_SECONDS = 2.0
"""How soon a paused run is looked at again."""


def come_again(reason: str, after_seconds: float = PAUSE_SECONDS) -> ApplicationError:
    """An error that Temporal answers by trying again, soon and without noise."""
    return ApplicationError(
        reason,
        type="Waiting",
        next_retry_delay=timedelta(seconds=after_seconds),
        category=ApplicationErrorCategory.BENIGN,
    )
