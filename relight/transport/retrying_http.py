"""HTTP to the store service with retries: a request is sent, with the same content, until it is answered.

A refused request (4xx) is never repeated. A caller whose request must not be executed twice passes `once`.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Self
from urllib.parse import unquote, urlencode, urlsplit, urlunsplit

import aiohttp
import orjson

from relight.errors import BY_STATUS, InvalidRequestError, RelightError, StoreError
from relight.retrying import Backoff, retry
from relight.transport.keepalive import alive_socket

AWAY = frozenset({502, 503, 504})
"""Statuses of outages, after which a request is repeated."""
NO_ANSWER = (aiohttp.ClientError, OSError)
"""Errors after which the request may have arrived; timeouts are among them."""
RETRY_SECONDS = 300.0
"""How long a request is repeated."""
REQUEST_SECONDS = 30.0
"""Longest wait for one answer; then the request is repeated."""
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0
JSON = {"Content-Type": "application/json"}
Content = bytes | Callable[[], bytes] | None


def error_of(status: int, body: bytes) -> RelightError:
    """The error for a service's answer."""
    try:
        data = orjson.loads(body)
        detail = str(data["detail"])
    except (ValueError, KeyError, TypeError):
        detail = f"the store service answered {status}: {body[:200].decode(errors='replace')}"
    fallback = InvalidRequestError if 400 <= status < 500 else StoreError
    return BY_STATUS.get(status, fallback)(detail)


def without_credentials(url: str) -> tuple[str, str | None]:
    """A URL without user and password, and the password: the token."""
    parts = urlsplit(url.rstrip("/"))
    if parts.username is None:
        return url.rstrip("/"), None
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    return urlunsplit(bare), unquote(parts.password or parts.username)


class RetryingHttpClient:
    """Requests to one service. Safe to share by tasks, threads and, pickled, processes; one pool an event loop."""

    first_request_seconds = 6.0
    """The wait for the first answer: on a half-open connection none comes. Each further try waits twice as long, since
    repetitions would only slow down a service that is slow.
    """

    def __init__(self, url: str, token: str | None = None, *, retry_seconds: float = RETRY_SECONDS) -> None:
        self.url, found = without_credentials(url)
        self.retry_seconds = retry_seconds
        self._token = token or found
        self._headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        self._sessions: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession] = (
            weakref.WeakKeyDictionary()
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (type(self), self.url, self._token, self.retry_seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    async def exchange(
        self,
        method: str,
        path: str,
        content: Content = None,
        *,
        retry_seconds: float | None = None,
        params: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        once: bool = False,
        answer_seconds: float | None = None,
    ) -> bytes:
        """Send until there is an answer or the time is over; with `once`, only until the request may have arrived.

        `answer_seconds` is how long the first answer may take, if the service is to wait for something.

        Raises:
            RelightError: the service refused the request.
            StoreError: no answer for `retry_seconds`.
        """
        within = self.retry_seconds if retry_seconds is None else retry_seconds
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, within_seconds=within, jitter=True)
        target = f"{path}?{urlencode(params)}" if params else path
        first_limit = REQUEST_SECONDS if once else answer_seconds or self.first_request_seconds
        limits = Backoff(first_limit, REQUEST_SECONDS)

        async def send() -> bytes:
            body = content() if callable(content) else content
            try:
                async with asyncio.timeout(limits.seconds):
                    status, raw = await self._once(method, target, body, headers)
            except TimeoutError:
                raise TimeoutError(f"no answer within {limits.advance():g} s") from None
            if 200 <= status < 300:
                return raw
            error = error_of(status, raw)
            raise ConnectionError(error.message) if status in AWAY and not once else error

        try:
            return await retry(send, *([aiohttp.ClientConnectorError] if once else NO_ANSWER), backoff=backoff)
        except NO_ANSWER as error:
            tried = f" for {within:g} s" if within else ""
            raise StoreError(
                f"no answer from the store service at {self.url}{tried}: {str(error) or type(error).__name__}; "
                "check RELIGHT_STORE_URL, or start the embedded stack with `relight up`"
            ) from error

    async def passed_on(
        self, method: str, path: str, content: bytes, headers: Mapping[str, str], seconds: float = REQUEST_SECONDS
    ) -> tuple[int, bytes]:
        """Send another client's request once, with its own headers; returns status and body of the answer.

        Raises:
            StoreError: there is no answer.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self._once(method, path, content, headers)
        except NO_ANSWER as error:
            raise StoreError(f"no answer from the store service at {self.url}: {error}") from error

    async def _once(
        self, method: str, target: str, content: bytes | None, headers: Mapping[str, str] | None
    ) -> tuple[int, bytes]:
        sent = {**(JSON if content is not None else {}), **(headers or {})}
        async with self._session().request(method, self.url + target, data=content, headers=sent) as response:
            return response.status, await response.read()

    def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.closed:
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=256,
                    keepalive_timeout=4,  # uvicorn closes idle ones after 5 s
                    socket_factory=alive_socket,
                ),
                timeout=aiohttp.ClientTimeout(total=None),  # `exchange` has its own
                headers=self._headers,
            )
            self._sessions[loop] = session
        return session


def _remade(kind: type[RetryingHttpClient], url: str, token: str | None, retry_seconds: float) -> RetryingHttpClient:
    return kind(url, token, retry_seconds=retry_seconds)
