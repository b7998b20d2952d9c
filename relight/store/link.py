"""The store service as gateway and runners ask it: the same client, on cheaper HTTP where its address allows that."""

from __future__ import annotations

import asyncio
from urllib.parse import urlencode, urlsplit

from relight.http_client import HttpClient
from relight.store.client import PATIENCE_SECONDS, PREFIX, REQUEST_SECONDS, StoreClient


class StoreLink(StoreClient):
    """A `StoreClient` for one event loop. An address with TLS or with credentials in it is left to its parent."""

    def __init__(self, url: str, token: str | None, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        super().__init__(url, token, patience_seconds=patience_seconds)
        plain = urlsplit(url).scheme == "http" and urlsplit(url).username is None
        self._http = HttpClient(self.url, self._headers) if plain else None

    async def aclose(self) -> None:
        """Close the connections."""
        if self._http is not None:
            self._http.close()
        await super().aclose()

    async def _once(
        self, method: str, path: str, content: bytes | None, params: dict[str, str] | None
    ) -> tuple[int, bytes]:
        if self._http is None:
            return await super()._once(method, path, content, params)
        target = f"{PREFIX}{path}?{urlencode(params)}" if params else f"{PREFIX}{path}"
        async with asyncio.timeout(REQUEST_SECONDS), self._http.request(method, target, content or b"") as answer:
            return answer.status, await answer.read()
