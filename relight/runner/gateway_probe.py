"""The runner's view of the gateway: how long it kept an attempt waiting, and which calls were lost on the way."""

from __future__ import annotations

from dataclasses import dataclass

import aiohttp

from relight.runner.gateway_relay import Relay
from relight.types.wire import OpenedAttempt

TIMEOUT = aiohttp.ClientTimeout(total=5, connect=2)


@dataclass(frozen=True)
class CallStatus:
    """The gateway's status of an attempt's calls."""

    waited_seconds: float
    """Seconds of waits for engines and store so far, including the present one."""
    last_activity_seconds_ago: float | None


class GatewayProbe:
    """Queries the gateway over HTTP; any query may fail."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.relay = Relay(self.reachable)
        self._session: aiohttp.ClientSession | None = None

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=TIMEOUT)
        return self._session

    async def close(self) -> None:
        """Close the connections."""
        await self.relay.close()
        if self._session is not None:
            await self._session.close()

    async def status(self, opened: OpenedAttempt) -> CallStatus | None:
        """The status of the attempt's calls; None if the gateway does not answer."""
        url = f"{opened.base_url.removesuffix('/v1')}/status"
        try:
            async with self._http().get(url, headers={"Authorization": f"Bearer {opened.token}"}) as answer:
                if answer.status != 200:
                    return None
                data = await answer.json()
                return CallStatus(data["waited_seconds"], data["last_activity_seconds_ago"])
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, LookupError):
            return None  # no answer, or that of something else

    async def reachable(self) -> bool:
        """Whether the gateway answers."""
        try:
            async with self._http().get(f"{self.url}/healthz") as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False
