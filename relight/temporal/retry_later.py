"""The error of an activity that may not begin yet: Temporal retries it, without an event in the history."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from relight.errors import DiskFullError, PausedError

PAUSE_SECONDS = 2.0
"""How soon a paused run is checked again."""
FULL_DISK_SECONDS = 3.0
"""How soon a full disk is checked again."""


def retry_later(reason: str, after_seconds: float, kind: str = "Waiting") -> ApplicationError:
    """An error after which Temporal retries the activity soon, without logging it."""
    return ApplicationError(
        reason,
        type=kind,
        next_retry_delay=timedelta(seconds=after_seconds),
        category=ApplicationErrorCategory.BENIGN,
    )


@contextmanager
def waiting_retried_later() -> Generator[None]:
    """Have an activity that a pause or a full disk prevents retried soon."""
    try:
        yield
    except PausedError as error:
        raise retry_later(error.message, PAUSE_SECONDS) from error
    except DiskFullError as error:
        raise retry_later(error.message, FULL_DISK_SECONDS) from error
