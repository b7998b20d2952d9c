"""Which workers poll a task queue."""

from __future__ import annotations

from datetime import timedelta

from temporalio.client import Client
from temporalio.service import RPCError

from relight.errors import TemporalError
from relight.temporal.pollers import pollers_of


async def pollers(client: Client, queue: str, *, activities: bool = False) -> list[str]:
    """Identities of the workers that poll a queue for workflow tasks, or for activities.

    Raises:
        TemporalError: the server does not answer.
    """
    try:
        found = await pollers_of(client, queue, activities=activities, timeout=timedelta(seconds=5))
    except RPCError as error:
        raise TemporalError(f"can't read the pollers of task queue {queue!r} from Temporal: {error}") from error
    return [poller.identity for poller in found]
