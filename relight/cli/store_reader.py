"""Client of the store's views over HTTP, for the commands that show runs; it also sends commands to runs."""

from __future__ import annotations

from typing import Any, Self, TypeVar

import orjson

from relight.settings import Settings
from relight.transport.retrying_http import RetryingHttpClient
from relight.types import views

ANSWER_SECONDS = 15.0
"""A command is waited for by the service itself."""
V = TypeVar("V", bound=views.View)


class StoreReader(RetryingHttpClient):
    """A session with the store service; each request is sent once."""

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """The store of these settings."""
        return cls(settings.store_url, settings.token_value, retry_seconds=0)

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
        headers = {"Idempotency-Key": key} if key else None
        content = None if body is None else orjson.dumps(body)
        raw = await self.exchange(
            method, f"/v1/relight{path}", content, params=params, headers=headers, answer_seconds=ANSWER_SECONDS
        )
        return model.model_validate_json(raw)
