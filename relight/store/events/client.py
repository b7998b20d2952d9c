"""Follows a store's events over HTTP: an iterator that reconnects after outages and restarts.

    async for event in follow_events("http://127.0.0.1:4747", token, run="calculator"):
        print(event.kind, event.data["status"])

A reader may continue from `event.cursor`, in another process or on another day.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from datetime import datetime

import aiohttp
import orjson

from relight.errors import RelightError
from relight.retrying import Backoff
from relight.transport.retrying_http import error_of, without_credentials
from relight.types.events import EventKind, StoreEvent

SILENCE_SECONDS = 45.0
"""The service sends something every 15 s; otherwise the connection is dead."""
CONNECT_SECONDS = 10.0
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
MAX_LINE_BYTES = 1 << 20


async def follow_events(
    url: str,
    token: str | None = None,
    *,
    run: str | None = None,
    rollout: str | None = None,
    kinds: Collection[EventKind] = (),
    after: str | None = None,
    since: datetime | None = None,
    follow: bool = True,
) -> AsyncGenerator[StoreEvent]:
    """The changes from now on, or after a cursor, or since a time; without end unless `follow` is False.

    An event of the kind `reset` says that some events were missed, since they are no longer kept.

    Raises:
        RelightError: the service refused the request, because of a wrong token or cursor for instance.
    """
    bare, found = without_credentials(url)
    token = token or found
    stream = _Stream(after or "")
    given = {"run": run, "rollout": rollout, "since": since.isoformat() if since else None}
    params = [(name, value) for name, value in given.items() if value] + [("kind", kind) for kind in kinds]
    params += [] if follow else [("follow", "false")]
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, jitter=True)
    async with aiohttp.ClientSession(timeout=timeout, headers=headers, read_bufsize=MAX_LINE_BYTES) as session:
        async for _ in backoff:
            try:
                async with session.get(f"{bare}/v1/relight/events", params=params, headers=stream.headers) as answer:
                    if answer.status != 200:
                        raise error_of(answer.status, await answer.read())
                    async for event in stream.events(answer.content):
                        backoff.reset()
                        yield event
                if not follow:
                    return
            except RelightError as error:
                if error.http_status < 500:
                    raise
            except (aiohttp.ClientError, TimeoutError, OSError):
                continue  # the service does not answer, or its answer was cut: reconnect with the last cursor


class _Stream:
    """The reader's position, over all connections."""

    def __init__(self, cursor: str) -> None:
        self.cursor = cursor

    @property
    def headers(self) -> dict[str, str]:
        """The headers for the next connection."""
        return {"Last-Event-ID": self.cursor} if self.cursor else {}

    async def events(self, content: aiohttp.StreamReader) -> AsyncGenerator[StoreEvent]:
        """The events of one connection; an incomplete one is dropped."""
        data, cursor = b"", ""
        async for line in content:
            name, _, value = line.rstrip(b"\r\n").partition(b":")
            if name == b"data":
                data = value.strip()
            elif name == b"id":
                cursor = value.strip().decode()
            elif line in (b"\n", b"\r\n"):
                self.cursor = cursor or self.cursor
                if data:
                    yield StoreEvent.model_validate({**orjson.loads(data), "cursor": self.cursor})
                data = b""
