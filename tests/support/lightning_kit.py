"""One view of each rollout store (`LightningStore`) for tests: call it, let it sweep, reach it from elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Literal

from relight.store.attempts.base import AttemptStore
from relight.store.attempts.postgres import PostgresStore
from relight.store.base import LightningStore
from relight.store.client import LightningStoreClient
from relight.store.database import Database
from relight.store.memory.attempts import MemoryAttemptStore
from relight.store.memory.lightning import InMemoryLightningStore
from relight.store.postgres import PostgresLightningStore
from relight.store.queue.sweeper import sweep
from relight.store.runs.lifecycle import finish_run
from relight.types.payloads import FinishInput
from relight.types.resources import NamedResources, PromptTemplate
from relight.types.rollout import Attempt, AttemptedRollout, Rollout, RolloutConfig
from relight.types.tracer import Span
from tests.support.postgres import fresh_database_url
from tests.support.seeds import RUN, seed_engine, seed_rollout, seed_run
from tests.support.store_service import TOKEN, memory_service, store_service

KINDS = ("memory", "postgres", "http", "memory-http")
GATEWAY = "http://gateway"
AGE = """
with aged as (
    update rollouts set created_at = created_at - make_interval(secs => $2) where rollout_id = $1
)
update attempts set started_at = started_at - make_interval(secs => $2),
    last_heartbeat = last_heartbeat - make_interval(secs => $2),
    lease_until = lease_until - make_interval(secs => $2)
where rollout_id = $1 and ended_at is null
"""


class LightningKit(ABC):
    """A store, and the means to do what its interface has no call for."""

    store: LightningStore

    @abstractmethod
    async def sweep(self) -> None:
        """Look once for attempts whose deadline has passed."""

    @abstractmethod
    async def age(self, rollout_id: str, seconds: float = 61.0) -> None:
        """As if the rollout was created, and its attempt began and last sent something, that much earlier."""

    @abstractmethod
    def elsewhere(self) -> AbstractAsyncContextManager[LightningStore]:
        """The same data as another process or event loop sees it."""

    @abstractmethod
    async def plan(self, rollout_id: str, step: int = 1) -> None:
        """A rollout of the run `demo`, as a run plans it."""

    @abstractmethod
    async def begin_run(self, run: str = RUN, *, model: bool = True) -> None:
        """A run with resources `rs-<run>`; where it trains a model, an engine serves version 0."""

    @abstractmethod
    async def load(self, version: int = 0, state: Literal["ready", "dead"] = "ready", run: str = RUN) -> None:
        """The run's engine loads a version, or dies."""

    @abstractmethod
    async def set_run(self, *, paused: bool = False, status: str = "running") -> None:
        """Change the run `demo`."""

    @abstractmethod
    async def end_run(self, status: Literal["finished", "failed", "cancelled"]) -> None:
        """End the run `demo`."""

    @abstractmethod
    async def calls(self, attempt_id: str) -> list[tuple[int | None, str]]:
        """The calls of an attempt, in order: the policy version that answered, and whether the answer was delivered."""

    @abstractmethod
    async def attempts(self) -> AttemptStore:
        """The same rows as runners and the gateway reach them."""


class MemoryLightningKit(LightningKit):
    """The twin."""

    def __init__(self) -> None:
        self.memory = InMemoryLightningStore()
        self.store: LightningStore = self.memory
        self._attempts = MemoryAttemptStore(GATEWAY, self.memory.tables)

    async def sweep(self) -> None:
        await self.memory.sweep()

    async def age(self, rollout_id: str, seconds: float = 61.0) -> None:
        row = self.memory.tables.rollouts[rollout_id]
        row.start_time -= seconds
        if attempt := row.newest:
            attempt.start_time -= seconds
            attempt.last_heartbeat_time = attempt.last_heartbeat_time and attempt.last_heartbeat_time - seconds

    @asynccontextmanager
    async def elsewhere(self) -> AsyncGenerator[LightningStore]:
        yield self.memory

    async def plan(self, rollout_id: str, step: int = 1) -> None:
        self._attempts.add_rollout(rollout_id, run=RUN, step=step)

    async def begin_run(self, run: str = RUN, *, model: bool = True) -> None:
        made = self._attempts.add_run(run, has_engines=model)
        made.resources_id = (await self.memory.update_resources(f"rs-{run}", prompts(run))).resources_id
        if model:
            await self.load(run=run)

    async def load(self, version: int = 0, state: Literal["ready", "dead"] = "ready", run: str = RUN) -> None:
        self._attempts.add_engine(f"engine-{run}", run=run, version=version, state=state)

    async def set_run(self, *, paused: bool = False, status: str = "running") -> None:
        run = self.memory.tables.runs[RUN]
        run.paused, run.status = paused, status

    async def end_run(self, status: Literal["finished", "failed", "cancelled"]) -> None:
        self._attempts.end_run(RUN, status)

    async def calls(self, attempt_id: str) -> list[tuple[int | None, str]]:
        calls = sorted(self.memory.tables.attempts[attempt_id].calls.items())
        return [(call.version_end, call.delivered) for _, call in calls]

    async def attempts(self) -> AttemptStore:
        return self._attempts


class PostgresLightningKit(LightningKit):
    """A store over Postgres."""

    def __init__(self, database: Database, store: LightningStore, url: str) -> None:
        self.database = database
        self.store = store
        self.url = url

    async def sweep(self) -> None:
        await sweep(self.database)

    async def age(self, rollout_id: str, seconds: float = 61.0) -> None:
        await self.database.pool.execute(AGE, rollout_id, seconds)

    @asynccontextmanager
    async def elsewhere(self) -> AsyncGenerator[LightningStore]:
        database = await Database.connect(self.url, max_size=2)
        try:
            async with postgres_lightning(database) as store:
                yield store
        finally:
            await database.close()

    async def plan(self, rollout_id: str, step: int = 1) -> None:
        if not await self.database.pool.fetchval("select exists (select from runs)"):
            await seed_run(self.database)
        await seed_rollout(self.database, rollout_id)
        await self.database.pool.execute("update rollouts set step = $2 where rollout_id = $1", rollout_id, step)

    async def begin_run(self, run: str = RUN, *, model: bool = True) -> None:
        await seed_run(self.database, run, **({} if model else {"model": None}))
        made = await self.store.update_resources(f"rs-{run}", prompts(run))
        resources = "update runs set resources_id = $2, resources_version = $3 where run = $1"
        await self.database.pool.execute(resources, run, made.resources_id, made.version)
        if model:
            await self.load(run=run)

    async def load(self, version: int = 0, state: Literal["ready", "dead"] = "ready", run: str = RUN) -> None:
        await seed_engine(self.database, f"engine-{run}", run, version=version, state=state)

    async def set_run(self, *, paused: bool = False, status: str = "running") -> None:
        await self.database.pool.execute("update runs set paused = $1, status = $2 where run = $3", paused, status, RUN)

    async def end_run(self, status: Literal["finished", "failed", "cancelled"]) -> None:
        await finish_run(self.database, FinishInput(run=RUN, epoch=1, status=status))

    async def calls(self, attempt_id: str) -> list[tuple[int | None, str]]:
        query = "select version_end, delivered from generations where attempt_id = $1 order by call_number"
        return [tuple(row) for row in await self.database.pool.fetch(query, attempt_id)]

    async def attempts(self) -> AttemptStore:
        return await PostgresStore.create(self.database, GATEWAY)


class ServedKit(LightningKit):
    """A store behind the service, over a socket."""

    service_url: str
    token = TOKEN

    @asynccontextmanager
    async def elsewhere(self) -> AsyncGenerator[LightningStore]:
        async with LightningStoreClient(self.service_url, self.token) as client:
            yield client


class HttpLightningKit(ServedKit, PostgresLightningKit):
    """A store on Postgres behind the service."""


class MemoryHttpLightningKit(ServedKit, MemoryLightningKit):
    """The twin behind the service."""


@asynccontextmanager
async def postgres_lightning(database: Database) -> AsyncGenerator[LightningStore]:
    """The store over Postgres."""
    store = await PostgresLightningStore.create(database)
    try:
        yield store
    finally:
        await store.aclose()


@asynccontextmanager
async def lightning_kit(kind: str, postgres_url: str | None) -> AsyncGenerator[LightningKit]:
    """A store of that kind, empty."""
    if kind == "memory":
        yield MemoryLightningKit()
        return
    if kind == "memory-http":
        async with memory_http_kit() as kit:
            yield kit
        return
    assert postgres_url is not None
    async with fresh_database_url(postgres_url) as url:
        database = await Database.connect(url)
        try:
            async with http_kit(database, url) if kind == "http" else postgres_kit(database, url) as kit:
                yield kit
        finally:
            await database.close()


@asynccontextmanager
async def postgres_kit(database: Database, url: str) -> AsyncGenerator[PostgresLightningKit]:
    """The store over Postgres, directly."""
    async with postgres_lightning(database) as store:
        yield PostgresLightningKit(database, store, url)


@asynccontextmanager
async def http_kit(database: Database, url: str) -> AsyncGenerator[HttpLightningKit]:
    """The real service on a free port, and our client."""
    store = await PostgresStore.create(database, GATEWAY)
    async with (
        store_service(store, database, gateway_url=GATEWAY) as service_url,
        LightningStoreClient(service_url, TOKEN) as client,
    ):
        kit = HttpLightningKit(database, client, url)
        kit.service_url = service_url
        yield kit


@asynccontextmanager
async def memory_http_kit() -> AsyncGenerator[MemoryHttpLightningKit]:
    """The service over a store in memory, and our client."""
    kit = MemoryHttpLightningKit()
    async with memory_service(kit.memory) as kit.service_url, LightningStoreClient(kit.service_url, TOKEN) as kit.store:
        yield kit


def config(**values: Any) -> RolloutConfig:
    """A configuration without back-off."""
    return RolloutConfig.model_validate({"backoff_seconds": 0} | values)


def retrying(*failures: str, tries: int = 2, **values: Any) -> RolloutConfig:
    """A configuration that tries again after attempts with these statuses."""
    classes = ["agent_error" if failure == "failed" else failure for failure in failures]
    return config(max_attempts=tries, retry_condition=classes, **values)


def prompts(template: str = "{question}?") -> NamedResources:
    """Resources that hold one prompt."""
    return {"prompt": PromptTemplate(template=template)}


def span_of(attempt: Attempt | AttemptedRollout, span_id: str = "span-1", sequence_id: int = 1, **values: Any) -> Span:
    """A span of an attempt."""
    at = attempt.attempt if isinstance(attempt, AttemptedRollout) else attempt
    fields: dict[str, Any] = {
        "rollout_id": at.rollout_id,
        "attempt_id": at.attempt_id,
        "sequence_id": sequence_id,
        "trace_id": "trace-1",
        "span_id": span_id,
        "name": "step",
        "start_time": 1.0,
        "end_time": 2.0,
    }
    return Span.model_validate(fields | values)


async def begin(store: LightningStore, **values: Any) -> AttemptedRollout:
    """A rollout with its first attempt, through the queue."""
    await store.enqueue_rollout({"question": "1+1"}, **values)
    return await claimed(store, values.get("worker_id"))


async def claimed(store: LightningStore, worker_id: str | None = None) -> AttemptedRollout:
    """The next of the queue, which must not be empty."""
    rollout = await store.dequeue_rollout(worker_id)
    assert rollout is not None, "the queue is empty"
    return rollout


async def running(store: LightningStore, **values: Any) -> AttemptedRollout:
    """A rollout whose attempt has shown a sign of life."""
    rollout = await begin(store, **values)
    await store.add_span(span_of(rollout, "first"))
    return rollout


async def ended(store: LightningStore, status: str = "succeeded", **values: Any) -> AttemptedRollout:
    """A rollout whose first attempt has ended so."""
    rollout = await begin(store, **values)
    await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status=status)  # type: ignore[arg-type]
    return rollout


async def rollout_of(store: LightningStore, rollout_id: str) -> Rollout:
    """A rollout that must be there."""
    rollout = await store.get_rollout_by_id(rollout_id)
    assert rollout is not None, f"there is no rollout {rollout_id}"
    return rollout


async def newest(store: LightningStore, rollout_id: str) -> Attempt:
    """Its newest attempt, which must be there."""
    attempt = await store.get_latest_attempt(rollout_id)
    assert attempt is not None, f"rollout {rollout_id} has no attempt"
    return attempt
