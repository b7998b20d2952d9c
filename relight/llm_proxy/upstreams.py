"""Upstream providers: other models, called by name, with a base URL and a key that only the gateway holds.

Their answers are recorded without token ids, even if they have some, so that they are never trained on.
"""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from relight.llm_proxy.provider_addresses import AddressGuard, ForbiddenAddressError
from relight.llm_proxy.request_errors import PassedOn
from relight.llm_proxy.requests import Route
from relight.llm_proxy.targets import Target, TargetUnavailable
from relight.transport.keepalive import alive_socket
from relight.types.upstreams import Upstream
from relight.types.wire import CallContext, ResourceModel

PASSED_ON_STATUSES = frozenset({400, 404, 413, 422})
"""Statuses that are passed on; 404: the provider does not have the model."""
KEY_ERROR_STATUSES = frozenset({401, 403})
CONNECT_SECONDS = 10.0
ERROR_BYTES = 2**16
LONGEST_RETRY_SECONDS = 60.0
REMOVED = b"[removed]"
SocketFactory = Callable[[tuple[Any, ...]], socket.socket]
MOST_RESOURCES = 1024
"""How many models of resources are kept with their state."""


class UpstreamAnswer:
    """A provider's answer as it comes in, with line ends as engines write them."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def pieces(self) -> AsyncIterator[bytes]:
        """Its body."""
        rest = b""
        async for piece in self._response.content.iter_any():
            whole = rest + piece
            rest = b"\r" if whole.endswith(b"\r") else b""
            yield whole.removesuffix(b"\r").replace(b"\r\n", b"\n")
        yield rest


class Provider(Target):
    """One provider and its state."""

    def __init__(self, known: Upstream | ResourceModel, key: str | None, session: aiohttp.ClientSession) -> None:
        own = isinstance(known, ResourceModel)
        super().__init__(f"upstream:{known.resource if own else known.name}", known.model if own else "")
        self._base_url = known.base_url
        self._key = _usable(key)
        self._quoted = _quoted(self._key) if self._key else None
        self._session = session
        self.lacks = None if own or self._key else known.api_key_env
        """The variable with the key, where the gateway's environment does not hold it."""

    @asynccontextmanager
    async def post(self, route: Route, content: bytes) -> AsyncGenerator[UpstreamAnswer]:
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        url = f"{self._base_url}/{route}"
        try:
            # A redirect would carry the key elsewhere.
            async with self._session.post(url, data=content, headers=headers, allow_redirects=False) as response:
                if response.status != 200:
                    raise await self._refused(response)
                yield UpstreamAnswer(response)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self.failed()
            refused = getattr(error, "os_error", error)
            if isinstance(refused, ForbiddenAddressError):
                raise TargetUnavailable(f"{self.name}: {refused}", final=True) from error
            raise TargetUnavailable(f"{self.name}: {type(error).__name__}") from error

    async def _refused(self, response: aiohttp.ClientResponse) -> Exception:
        content = self.clean(await response.content.read(ERROR_BYTES))
        if response.status in PASSED_ON_STATUSES:
            return PassedOn(response.status, content)
        self.failed()
        if response.status in KEY_ERROR_STATUSES:
            # Its answer may quote the key and is not passed on.
            return TargetUnavailable(
                f"{self.name} does not accept the gateway's key (HTTP {response.status})", final=True
            )
        said = content[:200].decode(errors="replace")
        return TargetUnavailable(f"{self.name}: HTTP {response.status}: {said}", retry_after(response))

    def clean(self, data: bytes) -> bytes:
        """The data without the key, which a provider may quote, as it is or with its characters escaped as in JSON."""
        return self._quoted.sub(REMOVED, data) if self._quoted else data


def retry_after(response: aiohttp.ClientResponse) -> float:
    """The wait that a provider asks for by Retry-After, in seconds."""
    value = response.headers.get("retry-after", "")
    return min(float(value), LONGEST_RETRY_SECONDS) if value.isdecimal() else 0.0


def open_session(open_socket: SocketFactory) -> aiohttp.ClientSession:
    """Connections to providers, one for each call; the time of calls is limited elsewhere."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
    connector = aiohttp.TCPConnector(limit=0, socket_factory=open_socket)
    return aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=True)


def _usable(key: str | None) -> str | None:
    """The key as a header value; None if there is none, or it can't be one."""
    key = (key or "").strip()
    return key if key and key.isascii() and key.isprintable() else None


def _quoted(key: str) -> re.Pattern[bytes]:
    """Matches a key in JSON, any of whose characters may be escaped."""
    return re.compile(b"".join(b"(?:\\\\?%s|\\\\u(?i:%04x))" % (re.escape(c.encode()), ord(c)) for c in key))


class Upstreams:
    """All providers that this gateway uses: its own, and those of run files."""

    def __init__(
        self,
        own: Sequence[Upstream],
        environment: Mapping[str, str],
        guard: AddressGuard | None = None,
        allowed_hosts: Collection[str] = (),
    ) -> None:
        self._own = own
        self._environment = environment
        self._guard = guard or AddressGuard()
        self._allowed_hosts = frozenset(allowed_hosts)
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        """By whether they are to hosts that may be anywhere."""
        self._known: dict[tuple[str, str, str | None], Provider] = {}
        self._of_resources: dict[tuple[str, str, str, str | None], Provider] = {}

    def models(self, context: CallContext) -> list[str]:
        """The models that an attempt may call, each once."""
        of_resources = [one.name for one in context.resource_models]
        named = [model for one in (*context.upstreams, *self._own) for model in one.models]
        return list(dict.fromkeys([*of_resources, *named]))

    def pick(self, context: CallContext, model: str) -> Target:
        """A provider of a model: that of the rollout's resources, else one of the run's, else one of the gateway's.

        Raises:
            TargetUnavailable: the gateway has none of their keys.
        """
        for one in context.resource_models:
            if one.name == model:
                return self._of_resource(one)
        named = [one for one in context.upstreams if model in one.models]
        found = [self._provider(one) for one in named or self._own if model in one.models]
        ready = [provider for provider in found if not provider.lacks]
        if not ready:
            why = (f"{one.name} needs the variable {one.lacks} in the gateway's environment" for one in found)
            raise TargetUnavailable("; ".join(why), final=True)
        now = monotonic()
        return min(ready, key=lambda provider: provider.rank(now))

    def _of_resource(self, model: ResourceModel) -> Provider:
        identity = model.resource, model.base_url, model.model, model.api_key
        if identity not in self._of_resources:
            if len(self._of_resources) >= MOST_RESOURCES:
                self._of_resources.clear()
            self._of_resources[identity] = Provider(model, model.api_key, self._connections(model.base_url))
        return self._of_resources[identity]

    def _connections(self, base_url: str) -> aiohttp.ClientSession:
        allowed = urlsplit(base_url).hostname in self._allowed_hosts
        if allowed not in self._sessions:
            self._sessions[allowed] = open_session(alive_socket if allowed else self._guard.open)
        return self._sessions[allowed]

    def _provider(self, upstream: Upstream) -> Provider:
        identity = upstream.name, upstream.base_url, upstream.api_key_env
        if identity not in self._known:
            key = self._environment.get(upstream.api_key_env or "")
            self._known[identity] = Provider(upstream, key, self._connections(upstream.base_url))
        return self._known[identity]

    async def close(self) -> None:
        """Close all connections."""
        for session in self._sessions.values():
            await session.close()
