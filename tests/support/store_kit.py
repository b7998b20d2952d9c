"""One view of each attempt store for tests: put rows in, call it, look at what it holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from relight.store.attempts.attempt_tokens import token_hash
from relight.store.attempts.base import AttemptStore
from relight.store.database import Database
from relight.store.memory.attempts import MemoryAttemptStore
from relight.types.rollout import RolloutConfig
from relight.types.wire import (
    AgentEnd,
    AttemptOutcome,
    CallFailure,
    Choice,
    FinishRequest,
    GenerationRecord,
    GradingRequest,
    OpenAnswer,
    OpenedAttempt,
    OpenRequest,
    SpanRecord,
)
from tests.support.seeds import RUN, seed_engine, seed_rollout, seed_run


@dataclass(frozen=True)
class RolloutState:
    """What tests look at in a rollout."""

    status: str
    failure_class: str | None
    reward: float | None
    deaths: int
    attempts: int


@dataclass(frozen=True)
class AttemptState:
    """What tests look at in an attempt."""

    status: str
    failure_class: str | None
    reward: float | None
    ended: bool
    spans_dropped: int


class StoreKit(ABC):
    """A store, and the means to seed and inspect it."""

    store: AttemptStore

    @abstractmethod
    async def start(self) -> None:
        """Make the run `demo`."""

    @abstractmethod
    async def add_rollout(self, rollout_id: str, *, external: bool = False, **config: Any) -> None:
        """A rollout of step 1."""

    @abstractmethod
    async def load(self, version: int, *, engine_id: str = "engine-1", state: str = "ready") -> None:
        """An engine loads a version."""

    @abstractmethod
    async def set_run(self, *, paused: bool = False, status: str = "running") -> None:
        """Change the run."""

    @abstractmethod
    async def cancel(self, rollout_id: str) -> None:
        """Cancel a rollout."""

    @abstractmethod
    async def close(self, rollout_id: str) -> None:
        """Close its batch."""

    @abstractmethod
    async def rollout(self, rollout_id: str) -> RolloutState:
        """A rollout's row."""

    @abstractmethod
    async def attempts(self, rollout_id: str) -> list[AttemptState]:
        """Its attempts, in order."""

    @abstractmethod
    async def deliveries(self, attempt_id: str) -> dict[int, str]:
        """`delivered` by call number."""

    @abstractmethod
    async def versions(self, attempt_id: str) -> dict[int, tuple[int | None, int | None]]:
        """Policy versions at start and end by call number."""

    @abstractmethod
    async def spans(self, rollout_id: str) -> list[tuple[int, str, str]]:
        """Sequence id, attempt id, span id, in order."""

    @abstractmethod
    async def attributes(self, rollout_id: str, span_id: str) -> dict[str, Any]:
        """A span's attributes."""


class MemoryKit(StoreKit):
    """The twin."""

    def __init__(self) -> None:
        self.memory = MemoryAttemptStore("http://gateway")
        self.store: AttemptStore = self.memory

    async def start(self) -> None:
        sampling = {"temperature": 1.0, "max_tokens": None, "top_k": -1, "agent_chooses": False}
        self.memory.add_run(RUN, sampling=sampling, engine_wait_seconds=120)

    async def add_rollout(self, rollout_id: str, *, external: bool = False, **config: Any) -> None:
        self.memory.add_rollout(
            rollout_id,
            run=None if external else RUN,
            step=None if external else 1,
            input={"question": "outside" if external else "2*3"},
            config=RolloutConfig.model_validate(config),
            seed_base=f"7/1/{len(self.memory.rollouts)}/0",
            min_version=0,
            max_version=0,
        )

    async def load(self, version: int, *, engine_id: str = "engine-1", state: str = "ready") -> None:
        self.memory.add_engine(engine_id, version=version, state=state, url=f"unix:/tmp/{engine_id}.sock")  # type: ignore[arg-type]

    async def set_run(self, *, paused: bool = False, status: str = "running") -> None:
        self.memory.runs[RUN].paused = paused
        self.memory.runs[RUN].status = status

    async def cancel(self, rollout_id: str) -> None:
        self.memory.cancel(rollout_id)

    async def close(self, rollout_id: str) -> None:
        self.memory.close(rollout_id)

    async def rollout(self, rollout_id: str) -> RolloutState:
        row = self.memory.rollouts[rollout_id]
        return RolloutState(row.status, row.failure_class, row.reward, row.deaths, len(row.attempts))

    async def attempts(self, rollout_id: str) -> list[AttemptState]:
        rows = self.memory.rollouts[rollout_id].attempts
        return [AttemptState(row.status, row.failure_class, row.reward, row.ended, row.spans_dropped) for row in rows]

    async def deliveries(self, attempt_id: str) -> dict[int, str]:
        return {number: call.delivered for number, call in self.memory.attempt(attempt_id).calls.items()}

    async def versions(self, attempt_id: str) -> dict[int, tuple[int | None, int | None]]:
        calls = self.memory.attempt(attempt_id).calls
        return {number: (call.version_start, call.version_end) for number, call in calls.items()}

    async def spans(self, rollout_id: str) -> list[tuple[int, str, str]]:
        rows = self.memory.rollouts[rollout_id].spans.values()
        return [(row.sequence_id, row.attempt_id, row.span_id) for row in rows]

    async def attributes(self, rollout_id: str, span_id: str) -> dict[str, Any]:
        rows = self.memory.rollouts[rollout_id].spans.values()
        return next(row.attributes for row in rows if row.span_id == span_id)


class PostgresKit(StoreKit):
    """A store over Postgres, directly or by HTTP."""

    def __init__(self, database: Database, store: AttemptStore) -> None:
        self.database = database
        self.store = store

    async def start(self) -> None:
        await seed_run(self.database)

    async def add_rollout(self, rollout_id: str, *, external: bool = False, **config: Any) -> None:
        await seed_rollout(self.database, rollout_id, None if external else RUN, **config)

    async def load(self, version: int, *, engine_id: str = "engine-1", state: str = "ready") -> None:
        await seed_engine(self.database, engine_id, version=version, state=state)

    async def set_run(self, *, paused: bool = False, status: str = "running") -> None:
        await self._execute("update runs set paused = $1, status = $2", paused, status)

    async def cancel(self, rollout_id: str) -> None:
        await self._execute("update rollouts set status = 'cancelled' where rollout_id = $1", rollout_id)

    async def close(self, rollout_id: str) -> None:
        await self._execute("update rollouts set final_attempt = 'none' where rollout_id = $1", rollout_id)

    async def rollout(self, rollout_id: str) -> RolloutState:
        row = await self.database.pool.fetchrow(
            "select status, failure_class, reward, deaths, attempts from rollouts where rollout_id = $1", rollout_id
        )
        return RolloutState(*row)

    async def attempts(self, rollout_id: str) -> list[AttemptState]:
        rows = await self._fetch(
            "select status, failure_class, reward, ended_at is not null, spans_dropped from attempts"
            " where rollout_id = $1 order by sequence_id",
            rollout_id,
        )
        return [AttemptState(*row) for row in rows]

    async def deliveries(self, attempt_id: str) -> dict[int, str]:
        rows = await self._fetch("select call_number, delivered from generations where attempt_id = $1", attempt_id)
        return {row[0]: row[1] for row in rows}

    async def versions(self, attempt_id: str) -> dict[int, tuple[int | None, int | None]]:
        rows = await self._fetch(
            "select call_number, version_start, version_end from generations where attempt_id = $1", attempt_id
        )
        return {row[0]: (row[1], row[2]) for row in rows}

    async def spans(self, rollout_id: str) -> list[tuple[int, str, str]]:
        rows = await self._fetch(
            "select sequence_id, attempt_id, span_id from spans where rollout_id = $1 order by sequence_id", rollout_id
        )
        return [tuple(row) for row in rows]

    async def attributes(self, rollout_id: str, span_id: str) -> dict[str, Any]:
        return await self.database.pool.fetchval(
            "select attributes from spans where rollout_id = $1 and span_id = $2", rollout_id, span_id
        )

    async def _execute(self, sql: str, *args: Any) -> None:
        await self.database.pool.execute(sql, *args)

    async def _fetch(self, sql: str, *args: Any) -> list[Any]:
        return await self.database.pool.fetch(sql, *args)


async def open_(kit: StoreKit, rollout_id: str = "r1", try_number: int = 1, execution: str = "x1") -> OpenAnswer:
    """Open an attempt."""
    request = OpenRequest(rollout_id=rollout_id, try_number=try_number, execution=execution, worker_id="runner-1")
    return await kit.store.open_attempt(request)


async def opened(kit: StoreKit, rollout_id: str = "r1", try_number: int = 1, execution: str = "x1") -> OpenedAttempt:
    """Open an attempt that must open."""
    answer = await open_(kit, rollout_id, try_number, execution)
    assert answer.attempt is not None, answer
    return answer.attempt


async def finish(kit: StoreKit, attempt: OpenedAttempt, **fields: Any) -> AttemptOutcome:
    """Finish an attempt; well, with reward 1, unless `fields` say otherwise; those of `AgentEnd` are what it left."""
    end = AgentEnd.model_validate({name: fields.pop(name) for name in AgentEnd.model_fields if name in fields})
    given: dict[str, Any] = {"attempt_id": attempt.attempt_id, "fence": attempt.fence, "end": end}
    if "failure_class" not in fields:
        given["reward"] = 1.0
    request = FinishRequest(**(given | fields))
    return await kit.store.finish_attempt(request)


def grading_of(attempt: OpenedAttempt, **left: Any) -> GradingRequest:
    """The request to leave an attempt, whose agent left this, to its grader."""
    return GradingRequest(attempt_id=attempt.attempt_id, fence=attempt.fence, end=AgentEnd.model_validate(left))


def call(attempt: OpenedAttempt, number: int = 1, request_hash: str = "hash-1", **fields: Any) -> GenerationRecord:
    """A model call of an attempt."""
    values: dict[str, Any] = {
        "rollout_id": attempt.rollout_id,
        "attempt_id": attempt.attempt_id,
        "token_hash": token_hash(attempt.token),
        "call_number": number,
        "request_hash": request_hash,
        "route": "chat/completions",
        "request": {"messages": [{"role": "user", "content": request_hash}]},
        "response": {"id": f"chatcmpl-{number}", "choices": [{"text": "56"}]},
        "prompt_token_ids": [1, 2, number],
        "choices": [Choice(index=0, response_token_ids=[3, 4], logprobs=[-0.5, -0.25], finish_reason="stop")],
        "sampling": {"temperature": 1.0},
        "seed": 3,
        "engine_id": "engine-1",
        "model": "policy",
        "duration_seconds": 0.0,
    }
    return GenerationRecord(**(values | fields))


def failure(attempt: OpenedAttempt, number: int = 1, request_hash: str = "hash-1", **fields: Any) -> CallFailure:
    """A model call that the platform failed."""
    values: dict[str, Any] = {
        "rollout_id": attempt.rollout_id,
        "attempt_id": attempt.attempt_id,
        "token_hash": token_hash(attempt.token),
        "call_number": number,
        "request_hash": request_hash,
        "message": "the engine did not answer",
    }
    return CallFailure(**(values | fields))


def span(span_id: str = "span-1", **fields: Any) -> SpanRecord:
    """A span of an agent."""
    values: dict[str, Any] = {
        "trace_id": "trace",
        "span_id": span_id,
        "name": "step",
        "start_time": 1.0,
        "end_time": 2.0,
    }
    return SpanRecord(**(values | fields))
