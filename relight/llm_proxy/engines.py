"""The engines of each run: which hold a version that a call may use, and the connections to them.

The list comes from the store, where engines acknowledge what they loaded; it is at most a second old.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from time import monotonic

from relight.errors import OverloadedError, StoreError
from relight.http_client import Connection, HttpClient
from relight.llm_proxy.refusal import PassedOn
from relight.llm_proxy.requests import Route
from relight.store.interface import AttemptStore
from relight.types.wire import CallContext, EngineInfo

MAX_AGE_SECONDS = 1.0
MIN_AGE_SECONDS = 0.1
"""A list in which no engine fits is asked for again, but no more often than this."""
SHUNNED_SECONDS = 1.0
"""An engine that just failed is chosen last."""
AGENTS_FAULT = frozenset({400, 413, 422})


class EngineAway(Exception):
    """No engine can serve the call now; it is worth asking again."""


class Engine:
    """One engine and the connections to it."""

    def __init__(self, info: EngineInfo) -> None:
        self.info = info
        self.in_flight = 0
        self.failed_at = float("-inf")
        self._client = HttpClient(info.url)

    def rank(self, now: float) -> tuple[bool, int]:
        """Lower is chosen first."""
        return now - self.failed_at < SHUNNED_SECONDS, self.in_flight

    @contextmanager
    def lease(self) -> Generator[None]:
        """Count a call."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    @asynccontextmanager
    async def post(self, route: Route, content: bytes) -> AsyncGenerator[Connection]:
        """Forward a call. Leaving before the answer is read aborts it in the engine.

        Raises:
            PassedOn: the engine refuses the request as such.
            EngineAway: anything else that is not an answer.
        """
        try:
            async with self._client.request("POST", f"/v1/{route}", content) as answer:
                if answer.status != 200:
                    raise self._refused(answer.status, await answer.read())
                yield answer
        except (OSError, TimeoutError) as error:
            self.failed_at = monotonic()
            raise EngineAway(f"engine {self.info.engine_id}: {type(error).__name__}: {error}") from error

    def _refused(self, status: int, content: bytes) -> Exception:
        if status in AGENTS_FAULT:
            return PassedOn(status, content)
        self.failed_at = monotonic()
        return EngineAway(f"engine {self.info.engine_id}: HTTP {status}: {content[:200].decode(errors='replace')}")

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

    async def pick(self, context: CallContext) -> Engine:
        """The least busy engine that acknowledged a version which the call's step allows.

        Raises:
            EngineAway: there is none now.
        """
        if context.run is None:
            raise EngineAway("this rollout belongs to no run, so no engine serves it")
        known = self._runs.setdefault(context.run, RunEngines())
        await self._refresh(context.run, known, MAX_AGE_SECONDS)
        found = fitting(known, context)
        if not found:
            await self._refresh(context.run, known, MIN_AGE_SECONDS)
            found = fitting(known, context)
        if not found:
            raise EngineAway(describe(known, context))
        now = monotonic()
        return min(found, key=lambda engine: engine.rank(now))

    async def _refresh(self, run: str, known: RunEngines, max_age_seconds: float) -> None:
        if monotonic() - known.read_at <= max_age_seconds:
            return
        async with known.lock:
            if monotonic() - known.read_at <= max_age_seconds:
                return
            try:
                listed = await self._store.engines(run)
            except (StoreError, OverloadedError) as error:
                raise EngineAway(f"the store is away: {error}") from error
            self._update(known, listed)

    def _update(self, known: RunEngines, listed: list[EngineInfo]) -> None:
        before, known.engines = known.engines, {}
        for info in listed:
            same = before.get(info.engine_id)
            if same is not None and same.info.url == info.url:
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


def fitting(known: RunEngines, context: CallContext) -> list[Engine]:
    """Engines whose acknowledged version is allowed."""
    low, high = context.min_version, context.max_version
    return [
        engine
        for engine in known.engines.values()
        if (low is None or engine.info.version >= low) and (high is None or engine.info.version <= high)
    ]


def describe(known: RunEngines, context: CallContext) -> str:
    """Why none fits."""
    versions = sorted({engine.info.version for engine in known.engines.values()})
    if not versions:
        return f"run {context.run} has no engine that is ready"
    wanted = f"{context.min_version}..{context.max_version}"
    return f"run {context.run} needs policy version {wanted}, its engines hold {', '.join(map(str, versions))}"
