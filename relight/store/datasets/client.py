"""Client for the data sets of the store service; it repeats requests during outages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import quote
from uuid import uuid4

import orjson

from relight.errors import DatasetError
from relight.transport.retrying_http import RetryingHttpClient
from relight.types.names import RELIGHT_API
from relight.types.views import DatasetView, Page

PREFIX = f"{RELIGHT_API}/datasets"
JSONL = {"Content-Type": "application/jsonl"}


class DatasetClient(RetryingHttpClient):
    """Puts, lists, shows and deletes data sets."""

    async def put(
        self,
        name: str,
        pieces: Iterable[tuple[int, bytes]],
        required: Sequence[str] = (),
        *,
        replace: bool = False,
    ) -> DatasetView:
        """Send a set's pieces, each with the number of its first line, and name the whole.

        Raises:
            DatasetError: there are no rows.
            RelightError: the store refused a line or the name; the message says which and why.
        """
        upload, number, path = uuid4().hex, 0, f"{PREFIX}/{quote(name, safe='')}"
        fields = "".join(f"&required={quote(field, safe='')}" for field in required)
        for first_line, piece in pieces:
            query = f"upload={upload}&first_line={first_line}{fields}"
            await self.exchange("PUT", f"{path}/pieces/{number}?{query}", piece, headers=JSONL)
            number += 1
        if not number:
            raise DatasetError(f"data set {name}: it has no rows; give at least one task")
        body = orjson.dumps({"upload": upload, "pieces": number, "replace": replace})
        return DatasetView.model_validate_json(await self.exchange("PUT", path, body))

    async def list(self) -> list[DatasetView]:
        """All, by name."""
        found: list[DatasetView] = []
        while True:
            after = quote(found[-1].name) if found else ""
            page = Page[DatasetView].model_validate_json(await self.exchange("GET", f"{PREFIX}?after={after}"))
            found += page.items
            if page.next is None:
                return found

    async def show(self, name: str, sample: int = 0) -> DatasetView:
        """One, with its first rows."""
        path = f"{PREFIX}/{quote(name, safe='')}?sample={sample}"
        return DatasetView.model_validate_json(await self.exchange("GET", path))

    async def delete(self, name: str) -> None:
        """Delete one that no run uses."""
        await self.exchange("DELETE", f"{PREFIX}/{quote(name, safe='')}")
