"""The store client of gateway and runners: the same client, over a faster HTTP client unless the address needs TLS."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from relight.store.attempts.client import StoreClient
from relight.transport.http_client import HttpClient
from relight.transport.retrying_http import RETRY_SECONDS


class StoreLink(StoreClient):
    """A `StoreClient` for one event loop. An address with TLS is left to its parent."""

    def __init__(self, url: str, token: str | None, *, retry_seconds: float = RETRY_SECONDS) -> None:
        super().__init__(url, token, retry_seconds=retry_seconds)
        plain = urlsplit(url).scheme == "http"
        self._http = HttpClient(self.url, self._headers) if plain else None

    async def aclose(self) -> None:
        if self._http is not None:
            self._http.close()
        await super().aclose()

    async def _once(
        self, method: str, target: str, content: bytes | None, headers: Mapping[str, str] | None
    ) -> tuple[int, bytes]:
        if self._http is None or headers:
            return await super()._once(method, target, content, headers)
        async with self._http.request(method, target, content or b"") as answer:
            return answer.status, await answer.read()
