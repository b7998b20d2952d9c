"""Client of the store's views over HTTP, for the commands that show runs; it also sends commands to runs."""

from __future__ import annotations

import json
from typing import Any, Self, TypeVar

import aiohttp

from relight.errors import BY_STATUS, StoreError
from relight.settings import Settings
from relight.types import views

V = TypeVar("V", bound=views.View)


class StoreReader:
    """A session with the store service."""

    def __init__(self, url: str, token: str | None, *, timeout_seconds: float = 15.0) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """The store of these settings."""
        return cls(settings.store_url, settings.token_value)

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(headers=self._headers, timeout=self._timeout)
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._session:
            await self._session.close()

    async def runs(self, limit: int = 100) -> list[views.RunSummary]:
        """Runs, newest first."""
        return (await self._get(views.Page[views.RunSummary], "/runs", limit=limit)).items

    async def run(self, run: str) -> views.RunView:
        """One run with its progress."""
        return await self._get(views.RunView, f"/runs/{run}")

    async def steps(self, run: str, *, after: int = 0, recorded: bool | None = None) -> list[views.StepView]:
        """All training steps after `after`."""
        found: list[views.StepView] = []
        while True:
            page = await self._get(views.Page[views.StepView], f"/runs/{run}/steps", after=after, recorded=recorded)
            found += page.items
            if page.next is None:
                return found
            after = int(page.next)

    async def rollouts(self, run: str, **filters: Any) -> views.Page[views.RolloutSummary]:
        """A page of a run's rollouts."""
        return await self._get(views.Page[views.RolloutSummary], f"/runs/{run}/rollouts", **filters)

    async def rollout(self, rollout_id: str) -> views.RolloutView:
        """A rollout with its attempts and rewards."""
        return await self._get(views.RolloutView, f"/rollouts/{rollout_id}")

    async def generations(self, rollout_id: str, *, bodies: bool = True) -> list[views.GenerationView]:
        """A rollout's model calls."""
        path = f"/rollouts/{rollout_id}/generations"
        return (await self._get(views.Page[views.GenerationView], path, bodies=bodies)).items

    async def versions(self, run: str) -> list[views.VersionView]:
        """The policy versions of a run."""
        return (await self._get(views.Page[views.VersionView], f"/runs/{run}/versions")).items

    async def audit(self, run: str) -> list[views.AuditView]:
        """Changes to a run."""
        return (await self._get(views.Page[views.AuditView], f"/runs/{run}/audit", limit=1000)).items

    async def cluster(self) -> views.ClusterView:
        """All workers that reported, GPU hosts and engines."""
        return await self._get(views.ClusterView, "/cluster")

    async def give_command(self, run: str, action: str, value: dict[str, Any], key: str) -> views.CommandView:
        """Give a run a command; the same key twice is one command."""
        return await self._ask("POST", views.CommandView, f"/runs/{run}/{action}", key=key, body=value)

    async def _get(self, model: type[V], path: str, **query: Any) -> V:
        given = {key: str(value).lower() if isinstance(value, bool) else value for key, value in query.items()}
        return await self._ask("GET", model, path, {key: value for key, value in given.items() if value is not None})

    async def _ask(
        self, method: str, model: type[V], path: str, params: Any = None, *, key: str | None = None, body: Any = None
    ) -> V:
        assert self._session is not None, "use the reader in an `async with`"
        headers = {"Idempotency-Key": key} if key else None
        url = f"{self._url}/v1/relight{path}"
        try:
            async with self._session.request(method, url, params=params, json=body, headers=headers) as answer:
                content = await answer.read()
                status = answer.status
        except (aiohttp.ClientError, TimeoutError) as error:
            raise StoreError(
                f"can't reach the store service at {self._url}: {error or type(error).__name__}; "
                "check RELIGHT_STORE_URL, or start the embedded stack with `relight up`"
            ) from error
        if status not in (200, 202):
            raise BY_STATUS.get(status, StoreError)(self._reason(status, content))
        return model.model_validate_json(content)

    def _reason(self, status: int, body: bytes) -> str:
        try:
            return str(json.loads(body)["detail"])
        except (ValueError, KeyError, TypeError):
            return f"the store service at {self._url} answered {status}"
