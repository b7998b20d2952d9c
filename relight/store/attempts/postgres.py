"""The attempt store on Postgres.

The rules are SQL functions (`schema/07_attempts.sql`), so that opening and finishing are one round trip and one
transaction each. This class adds what Postgres need not know: tokens, addresses, and values made storable.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from typing import Any, Self

from relight.errors import ConflictError, NotFoundError, UnauthorizedError
from relight.faults import FaultPoint, fault_point
from relight.observability.redaction import Redactor
from relight.store.attempts.attempt_tokens import (
    attempt_token,
    attempt_url,
    new_attempt_id,
    new_key,
    open_key,
    token_hash,
)
from relight.store.attempts.bound_resources import AttemptEndpoint, bind_resources
from relight.store.database import Database
from relight.store.generations import commit_generations, undelivered, unpack_body
from relight.store.storable import storable, storable_span, storable_text, with_reward_checked
from relight.store.workers import register_worker
from relight.types.hyperparameters import corrects
from relight.types.names import POLICY
from relight.types.wire import (
    AttemptOutcome,
    CallContext,
    CallFailure,
    CommitResult,
    DeliveryMark,
    EndedAttempts,
    EngineInfo,
    FinishRequest,
    GenerationRecord,
    GradingRequest,
    OpenAnswer,
    OpenRequest,
    RecalledCall,
    RecallRequest,
    ResolveRequest,
    SpanRecord,
    Transcript,
    WorkerReport,
)

OF_CALLS = ("run", "min_version", "max_version", "engine_wait_seconds", "next_call_number", "upstreams", "models")
"""Columns that are fields of `CallContext`."""


async def attempt_key(database: Database) -> bytes:
    """The key from which attempt tokens are derived; created if there is none."""
    fresh, key = new_key(), None
    while key is None:  # None: another process made it just now
        key = await database.value("attempt_key", fresh)
    return key


class PostgresStore:
    """Implements `AttemptStore`; any number of them may share one Postgres."""

    def __init__(self, database: Database, gateway_url: str, key: bytes, redactor: Redactor) -> None:
        self.database = database
        self.redactor = redactor
        self.gateway_url = gateway_url
        self._key = key

    @classmethod
    async def create(cls, database: Database, gateway_url: str, redactor: Redactor | None = None) -> Self:
        """A store that gives attempts addresses under `gateway_url`; creates the key of attempt tokens if there is
        none.
        """
        return cls(database, gateway_url, await attempt_key(database), redactor or Redactor())

    async def open_attempt(self, request: OpenRequest) -> OpenAnswer:
        attempt_id = new_attempt_id()
        row = await self.database.one(
            "open_attempt",
            request.rollout_id,
            request.try_number,
            open_key(request.rollout_id, request.try_number, request.execution),
            request.worker_id,
            attempt_id,
            token_hash(attempt_token(self._key, attempt_id)),
        )
        answer = row["answer"]
        if answer["attempt"]:
            fault_point(FaultPoint.OPENED)
            self._add_access(answer["attempt"], row["policy"])
        return OpenAnswer.model_validate(answer)

    def _add_access(self, attempt: dict[str, Any], policy: bool) -> None:
        attempt["token"] = attempt_token(self._key, attempt["attempt_id"])
        attempt["base_url"] = attempt_url(self.gateway_url, attempt["rollout_id"], attempt["attempt_id"])
        endpoint = AttemptEndpoint(self.gateway_url, policy, attempt["rollout_id"], attempt["attempt_id"])
        bound = bind_resources(attempt["resources"], endpoint, attempt["token"])
        attempt["resources"] = bound.resources
        attempt["model"] = bound.main.model if bound.main else POLICY
        attempt["sampling"] = bound.main.sampling_parameters if bound.main else _sampling(attempt["sampling"])

    async def finish_attempt(self, request: FinishRequest) -> AttemptOutcome:
        final = with_reward_checked(request)
        try:
            outcome = await self.database.value("finish_attempt", self._clean_request(final))
        except ConflictError:
            await self._keep_spans(final)
            raise
        fault_point(FaultPoint.FINISHED)
        return AttemptOutcome.model_validate(outcome)

    def _clean_request(self, request: GradingRequest) -> dict[str, Any]:
        """As the functions in SQL take it. Rewards are a list: JSON in Postgres keeps no order of names. Fields keep
        their names, also where a pattern of the settings matches them.
        """
        row: dict[str, Any] = storable(request.model_dump(exclude={"spans"}))
        row["end"] = {name: self.redactor.value(value) for name, value in row["end"].items()}
        row["end"]["rewards"] = [(self._clean_text(name), value) for name, value in request.end.rewards.items()]
        if isinstance(request, FinishRequest):
            row |= {"message": self.redactor.text(row["message"]), "spans": self._clean_spans(request.spans)}
        return row

    def _clean_text(self, text: str) -> str:
        return storable_text(self.redactor.text(text))

    def _clean_spans(self, spans: Iterable[SpanRecord]) -> list[dict[str, Any]]:
        return [self.redactor.value(storable_span(span)) for span in spans]

    async def _keep_spans(self, request: FinishRequest) -> None:
        if request.spans:
            rollout_id = await self.database.value("rollout_of_attempt", request.attempt_id)
            await self.add_spans(rollout_id, request.attempt_id, request.fence, request.spans)

    async def await_grading(self, request: GradingRequest) -> None:
        await self.database.execute("await_grading", self._clean_request(request))

    async def transcript(self, attempt_id: str) -> Transcript:
        row = await self.database.row("transcript", attempt_id)
        if row is None:
            raise NotFoundError(f"there is no attempt {attempt_id}")
        calls = await self.database.fetch("transcript_calls", row["day"], attempt_id)
        bodies = [{side: unpack_body(call[side]) for side in ("request", "response")} for call in calls]
        return Transcript.model_validate(
            {"input": row["task"], "calls": bodies, "output": row["output"], "outcome": row["outcome"]}
        )

    async def heartbeat(self, attempt_id: str, fence: int, worker_id: str) -> None:
        if await self.database.value("heartbeat", attempt_id, fence, worker_id) is None:
            if await self.database.value("rollout_of_attempt", attempt_id) is None:
                raise NotFoundError(f"there is no attempt {attempt_id}")
            raise ConflictError(f"attempt {attempt_id} is over, or has another fence")

    async def add_spans(self, rollout_id: str, attempt_id: str, fence: int | None, spans: Sequence[SpanRecord]) -> int:
        rows = self._clean_spans(spans)
        return int(await self.database.value("add_spans", rollout_id, attempt_id, fence, rows))

    async def resolve(self, request: ResolveRequest) -> CallContext:
        row = await self._behind(request)
        calls: list[Any] = []
        if row["next_call_number"] > 1:
            calls = await self.database.fetch("undelivered_calls", row["day"], request.attempt_id)
        endpoint = AttemptEndpoint(self.gateway_url, row["run"] is not None, request.rollout_id, request.attempt_id)
        bound = bind_resources(row["resources"], endpoint, request.token)
        return CallContext(
            **{name: row[name] for name in OF_CALLS},
            rollout_id=request.rollout_id,
            attempt_id=request.attempt_id,
            model=bound.main.model if bound.main else POLICY,
            seed_base=f"{row['seed_base']}/{row['try_number']}",
            sampling=_sampling(row["sampling"]),
            agent_chooses_sampling=bool(row["sampling"].get("agent_chooses", False)),
            corrected=corrects(row["numbers"]),
            undelivered=undelivered(calls),
            resource_models=bound.forwarded,
        )

    async def ended_attempts(self, request: EndedAttempts) -> EndedAttempts:
        rows = await self.database.fetch("attempts_that_may_call", request.attempt_ids)
        valid = {row["attempt_id"] for row in rows}
        return EndedAttempts(attempt_ids=[name for name in request.attempt_ids if name not in valid])

    async def recall(self, request: RecallRequest) -> RecalledCall:
        row = await self._behind(request)
        found = await self.database.fetch("recall_call", row["day"], request.attempt_id, request.call_number)
        return RecalledCall(call=next(iter(undelivered(found)), None))

    async def _behind(self, request: ResolveRequest) -> Any:
        row = await self.database.row("call_context", request.attempt_id, request.rollout_id)
        if row is None or not hmac.compare_digest(row["token_hash"], token_hash(request.token)):
            raise UnauthorizedError(f"the token is not that of attempt {request.attempt_id}")
        if not row["alive"]:
            raise ConflictError(f"attempt {request.attempt_id} is over")
        return row

    async def commit_generations(self, items: Sequence[GenerationRecord]) -> list[CommitResult]:
        results = await commit_generations(self.database, items, self.redactor)
        fault_point(FaultPoint.GENERATION_COMMITTED)
        return results

    async def record_call_failures(self, items: Sequence[CallFailure]) -> None:
        await self.database.execute(
            "add_call_failures",
            [item.attempt_id for item in items],
            [item.token_hash for item in items],
            [item.call_number for item in items],
            [storable_text(item.request_hash) for item in items],
            [self._clean_text(item.message) for item in items],
        )

    async def mark_delivered(self, items: Sequence[DeliveryMark]) -> None:
        final: dict[tuple[str, int], str] = {}
        for item in items:
            key = (item.attempt_id, item.call_number)
            final[key] = "yes" if "yes" in (item.delivered, final.get(key)) else item.delivered
        await self.database.execute(
            "mark_delivered",
            [attempt for attempt, _ in final],
            [number for _, number in final],
            list(final.values()),
        )

    async def engines(self, run: str) -> list[EngineInfo]:
        return await self.database.models(EngineInfo, "ready_engines", run)

    async def register_worker(self, worker: WorkerReport) -> None:
        await register_worker(self.database, worker)


def _sampling(plan: dict[str, Any]) -> dict[str, Any]:
    """Sampling parameters as engines know them: those that are set."""
    return {key: value for key, value in plan.items() if value is not None and key != "agent_chooses"}
