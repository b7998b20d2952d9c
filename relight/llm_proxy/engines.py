"""The engines of each run: the policy version that each holds, and the connections to them.

The list comes from the store, where engines acknowledge the version that they loaded; it is at most a second old.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic

import orjson

from relight.errors import OverloadedError, StoreError
from relight.llm_proxy.request_errors import PassedOn
from relight.llm_proxy.requests import Route
from relight.llm_proxy.targets import Target, TargetUnavailable
from relight.store.attempts.base import AttemptStore
from relight.transport.http_client import Connection, HttpClient
from relight.types.wire import CallContext, EngineInfo

MAX_AGE_SECONDS = 1.0
MIN_AGE_SECONDS = 0.1
"""The minimum age at which a list without a suitable healthy engine is read again."""
PASSED_ON_STATUSES = frozenset({400, 413, 422})
FORGOTTEN_SECONDS = 600.0
"""The engines of a run that makes no calls are forgotten."""


class Engine(Target):
    """One engine and the connections to it."""

    def __init__(self, info: EngineInfo) -> None:
        super().__init__(info.engine_id, info.model)
        self.info = info
        self._client = HttpClient(info.url)

    @asynccontextmanager
    async def post(self, route: Route, content: bytes) -> AsyncGenerator[Connection]:
        try:
            async with self._client.request("POST", f"/v1/{route}", content) as answer:
                if answer.status != 200:
                    raise self._refused(answer.status, await answer.read())
                yield answer
        except (OSError, TimeoutError) as error:
            self.failed()
            raise TargetUnavailable(f"engine {self.name}: {type(error).__name__}: {error}") from error

    async def count(self, content: bytes) -> int:
        """The number of tokens of a prompt.

        Raises:
            PassedOn: the engine refused the request as invalid.
            TargetUnavailable: there was no other answer.
        """
        try:
            async with self._client.request("POST", "/tokenize", content) as answer:
                said = await answer.read()
                if answer.status != 200:
                    raise self._refused(answer.status, said)
            return int(orjson.loads(said)["count"])
        except (OSError, TimeoutError, ValueError, KeyError) as error:
            raise TargetUnavailable(f"engine {self.name}: {type(error).__name__}: {error}") from error

    def _refused(self, status: int, content: bytes) -> Exception:
        if status in PASSED_ON_STATUSES:
            return PassedOn(status, content)
        self.failed()
        return TargetUnavailable(f"engine {self.name}: HTTP {status}: {content[:200].decode(errors='replace')}")

    async def answers(self, seconds: float) -> bool:
        """Ask for its health; any answer in time other than a 5xx counts as healthy."""
        try:
            async with asyncio.timeout(seconds), self._client.request("GET", "/health") as answer:
                await answer.read()
                return answer.status < 500
        except (OSError, TimeoutError):
            return False

    def give_up(self) -> None:
        """Cancel the calls under way; they are repeated elsewhere."""
        self._client.break_off()

    def close(self) -> None:
        """Close its connections."""
        self._client.close()


@dataclass(slots=True)
class RunEngines:
    """The engines of one run, as of `read_at`."""

    read_at: float = float("-inf")
    engines: dict[str, Engine] = field(default_factory=dict[str, Engine])
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Engines:
    """All engines that this gateway talks to."""

    def __init__(self, store: AttemptStore) -> None:
        self._store = store
        self._runs: dict[str, RunEngines] = {}
        self._retired: list[Engine] = []

    async def pick(self, context: CallContext, model: str) -> Engine:
        """The least busy engine with this model; for the policy, one that acknowledged a version which the step allows.

        Raises:
            TargetUnavailable: there is none now.
        """
        if context.run is None:
            why = (
                f"this rollout belongs to no run that has engines, and {model!r} is not a model of its resources or of "
                "a provider"
            )
            raise TargetUnavailable(why, final=True)
        known = self._runs.setdefault(context.run, RunEngines())
        await self._refresh(context.run, known, MAX_AGE_SECONDS)
        now = monotonic()
        found = fitting(known, context, model)
        if all(engine.is_unhealthy(now) for engine in found):  # or there is none
            await self._refresh(context.run, known, MIN_AGE_SECONDS)
            found = fitting(known, context, model)
        if not found:
            raise TargetUnavailable(describe(known, context, model))
        return min(found, key=lambda engine: engine.rank(now))

    async def models(self, context: CallContext) -> list[str]:
        """The models of a run's engines.

        Raises:
            TargetUnavailable: the store does not answer, and they are not known yet.
        """
        if context.run is None:
            return []
        known = self._runs.setdefault(context.run, RunEngines())
        await self._refresh(context.run, known, MAX_AGE_SECONDS)
        return [engine.model for engine in known.engines.values()]

    def in_use(self) -> list[Engine]:
        """The engines that have calls or may get some. Runs that make no calls are forgotten."""
        now = monotonic()
        for run, known in list(self._runs.items()):
            idle = not known.lock.locked() and not any(engine.in_flight for engine in known.engines.values())
            if idle and now - known.read_at > FORGOTTEN_SECONDS:
                self._retire(list(self._runs.pop(run).engines.values()))
        return [*self._retired, *(engine for known in self._runs.values() for engine in known.engines.values())]

    async def _refresh(self, run: str, known: RunEngines, max_age_seconds: float) -> None:
        if monotonic() - known.read_at <= max_age_seconds:
            return
        async with known.lock:
            if monotonic() - known.read_at <= max_age_seconds:
                return
            try:
                listed = await self._store.engines(run)
            except (StoreError, OverloadedError) as error:
                raise TargetUnavailable(f"the store does not answer: {error}") from error
            self._update(known, listed)

    def _update(self, known: RunEngines, listed: list[EngineInfo]) -> None:
        before, known.engines = known.engines, {}
        for info in listed:
            same = before.get(info.engine_id)
            if same is not None and (same.info.url, same.model) == (info.url, info.model):
                same.info = info
                known.engines[info.engine_id] = before.pop(info.engine_id)
            else:
                known.engines[info.engine_id] = Engine(info)
        known.read_at = monotonic()
        self._retire(list(before.values()))

    def _retire(self, gone: list[Engine]) -> None:
        """Close the connections of engines that are no longer listed, once their last call has ended."""
        waiting = self._retired + gone
        self._retired = [engine for engine in waiting if engine.in_flight]
        for engine in waiting:
            if not engine.in_flight:
                engine.close()

    def close(self) -> None:
        """Close all connections."""
        for engine in self._retired + [engine for run in self._runs.values() for engine in run.engines.values()]:
            engine.close()


def fitting(known: RunEngines, context: CallContext, model: str) -> list[Engine]:
    """Engines with this model; for the policy, those whose acknowledged version is allowed, or the newest."""
    found = [engine for engine in known.engines.values() if engine.model == model]
    if model != context.model:
        return found
    low, high = context.min_version, context.max_version
    if low is None and high is None:
        low = max((engine.info.version for engine in found), default=None)
    return [
        engine
        for engine in found
        if (low is None or engine.info.version >= low) and (high is None or engine.info.version <= high)
    ]


def describe(known: RunEngines, context: CallContext, model: str) -> str:
    """Why no engine is suitable."""
    versions = sorted({engine.info.version for engine in known.engines.values() if engine.model == model})
    if not versions:
        return f"run {context.run} has no engine with the model {model!r} that is ready"
    wanted = f"{context.min_version}..{context.max_version}"
    return f"run {context.run} needs policy version {wanted}, its engines hold {', '.join(map(str, versions))}"
