"""The in-memory attempt store, with the same rules as on Postgres, for programs and tests without a Postgres.

Nothing survives the process. Runs, rollouts and engines are added by methods, and all rows can be read.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Sequence
from typing import Any, Literal

from relight.errors import ConflictError, NotFoundError, UnauthorizedError
from relight.store.attempts.attempt_tokens import attempt_token, attempt_url, open_key, token_hash
from relight.store.attempts.bound_resources import AttemptEndpoint, BoundResources, bind_resources
from relight.store.memory.rows import AttemptRow, EngineState, MemoryCall, MemoryEngine, MemoryRun, RolloutRow
from relight.store.memory.tables import OWN_PROCESS_AFTER_DEATHS, Tables, locked
from relight.store.queue.rules import ENDED
from relight.store.storable import storable_span, with_reward_checked
from relight.types import wire
from relight.types.names import POLICY, Isolation, Network
from relight.types.resources import NamedResources
from relight.types.rollout import PLATFORM_FAILURES, AttemptStatus, FailureClass, RolloutConfig, RolloutStatus
from relight.types.store import Worker
from relight.types.tracer import NEXT_NUMBER, Span


class MemoryAttemptStore:
    """Implements `AttemptStore` in memory, over tables that an `InMemoryLightningStore` may share."""

    def __init__(self, gateway_url: str = "http://127.0.0.1:4748", tables: Tables | None = None) -> None:
        self.gateway_url = gateway_url
        self.tables = tables or Tables()

    @property
    def runs(self) -> dict[str, MemoryRun]:
        """Runs by name."""
        return self.tables.runs

    @property
    def rollouts(self) -> dict[str, RolloutRow]:
        """Rollouts by id."""
        return self.tables.rollouts

    def add_run(
        self,
        run: str,
        *,
        sampling: dict[str, Any] | None = None,
        isolation: Isolation = "process",
        network: Network = "internet",
        engine_wait_seconds: float = 300.0,
        grader: str | None = None,
        has_engines: bool = True,
    ) -> MemoryRun:
        """Add a run; `add_rollout` and `add_engine` do so automatically, with defaults."""
        self.runs[run] = MemoryRun(
            sampling or {}, isolation, network, engine_wait_seconds, grader, has_engines=has_engines
        )
        return self.runs[run]

    def end_run(self, run: str, status: str = "finished") -> None:
        """End a run, and with it the rollouts from outside that it has."""
        self.runs[run].status = status
        for row in self.rollouts.values():
            if row.outside and row.run == run and row.status not in ENDED:
                self.tables.cancel(row, "its run ended")

    def add_rollout(
        self,
        rollout_id: str,
        *,
        run: str | None = "demo",
        step: int | None = 1,
        input: Any = None,
        mode: Literal["train", "val", "test"] | None = "train",
        resources: NamedResources | None = None,
        config: RolloutConfig | None = None,
        seed_base: str | None = None,
        min_version: int | None = None,
        max_version: int | None = None,
        metadata: dict[str, Any] | None = None,
        resources_id: str | None = None,
    ) -> RolloutRow:
        """Add a rollout that a workflow drives."""
        if run is not None and run not in self.runs:
            self.add_run(run)
        row = self.rollouts[rollout_id] = RolloutRow(
            rollout_id=rollout_id,
            by_queue=False,
            outside=run is None,
            run=run,
            step=step,
            input=input,
            mode=mode,
            config=config or RolloutConfig(),
            seed_base=rollout_id if seed_base is None else seed_base,
            min_version=min_version,
            max_version=max_version,
            metadata=metadata or {},
        )
        if resources is not None:
            resources_id = self.tables.set_resources(resources_id or f"rs-{rollout_id}", resources).resources_id
        self.tables.pin(row, resources_id)
        return row

    def add_engine(
        self,
        engine_id: str = "engine-1",
        *,
        run: str = "demo",
        policy: str = POLICY,
        url: str = "http://127.0.0.1:8000",
        model: str = POLICY,
        version: int = 0,
        state: EngineState = "ready",
    ) -> MemoryEngine:
        """Add an engine, or let it load another version or change its state."""
        if run not in self.runs:
            self.add_run(run)
        old = self.tables.engines.get(engine_id)
        loads = [*(old.loads if old else []), (time.time(), version)]
        info = wire.EngineInfo(engine_id=engine_id, run=run, policy=policy, url=url, model=model, version=version)
        self.tables.engines[engine_id] = MemoryEngine(info, state, loads)
        return self.tables.engines[engine_id]

    def cancel(self, rollout_id: str) -> None:
        """Cancel a rollout."""
        self.tables.set_status(self.rollouts[rollout_id], RolloutStatus.CANCELLED)

    def close(self, rollout_id: str, attempt_id: str = "none") -> None:
        """Set the attempt that counts, as the closing of its batch does."""
        self.rollouts[rollout_id].final_attempt = attempt_id

    def attempt(self, attempt_id: str) -> AttemptRow:
        """An attempt's row."""
        return self.tables.attempts[attempt_id]

    @locked
    async def open_attempt(self, request: wire.OpenRequest) -> wire.OpenAnswer:
        """Open an attempt, or say why none is opened."""
        rollout = self.tables.row(request.rollout_id)
        key = open_key(request.rollout_id, request.try_number, request.execution)
        if rollout.status is RolloutStatus.CANCELLED:
            return wire.OpenAnswer(state="gone", reason="the rollout is cancelled")
        newest = rollout.newest
        if newest and newest.open_key == key and not newest.ended:
            return self._opened(rollout, newest)
        refusal = self._refusal(rollout, request.try_number, key)
        if refusal:
            return refusal
        if newest and not newest.ended:
            self.tables.end_open_attempt(
                rollout, FailureClass.INFRASTRUCTURE, "its process died, or lost its connection"
            )
            if self.tables.count_death(rollout):
                return wire.OpenAnswer(state="finished", reason="quarantined", outcome=newest.outcome)
        attempt = self.tables.begin_attempt(rollout, request.worker_id, try_number=request.try_number, open_key=key)
        attempt.last_heartbeat_time = attempt.start_time
        return self._opened(rollout, attempt)

    def _refusal(self, rollout: RolloutRow, try_number: int, key: str) -> wire.OpenAnswer | None:
        newest = rollout.newest
        for attempt in reversed(rollout.attempts):
            if attempt.ended and attempt.try_number == try_number and attempt.failure_class not in PLATFORM_FAILURES:
                return wire.OpenAnswer(state="finished", reason="this try has ended", outcome=attempt.outcome)
        if rollout.final_attempt is not None:
            return wire.OpenAnswer(state="gone", reason="the batch of this rollout is closed")
        if rollout.status in ENDED and newest and newest.ended:
            return wire.OpenAnswer(state="finished", reason="the rollout has ended", outcome=newest.outcome)
        if rollout.status in ENDED:
            return wire.OpenAnswer(state="gone", reason=f"the rollout has ended as {rollout.status}")
        if newest and try_number < newest.try_number:
            return wire.OpenAnswer(state="gone", reason=f"try {newest.try_number} has begun")
        if newest and newest.open_key != key and any(attempt.open_key == key for attempt in rollout.attempts):
            return wire.OpenAnswer(state="gone", reason="another execution has taken over")
        reason = self.tables.waits(rollout)
        gone = not rollout.outside and self.tables.run_of(rollout).status != "running"
        return wire.OpenAnswer(state="gone" if gone else "wait", reason=reason) if reason else None

    def _opened(self, rollout: RolloutRow, attempt: AttemptRow) -> wire.OpenAnswer:
        run = self.tables.run_of(rollout)
        token = attempt_token(self.tables.key, attempt.attempt_id)
        bound = self._bound(rollout, attempt.attempt_id, token)
        opened = wire.OpenedAttempt(
            rollout_id=rollout.rollout_id,
            attempt_id=attempt.attempt_id,
            sequence_id=attempt.sequence_id,
            fence=attempt.fence,
            token=token,
            base_url=attempt_url(self.gateway_url, rollout.rollout_id, attempt.attempt_id),
            run=rollout.run,
            step=rollout.step,
            mode=rollout.mode,
            metadata=rollout.metadata,
            input=rollout.input,
            resources_id=rollout.resources_id,
            resources=bound.resources,
            model=bound.main.model if bound.main else POLICY,
            sampling=bound.main.sampling_parameters if bound.main else run.set_sampling,
            config=rollout.config,
            isolation=run.isolation,
            network=run.network,
            alone=rollout.deaths >= OWN_PROCESS_AFTER_DEATHS,
            deaths=rollout.deaths,
            grader=run.grader,
        )
        return wire.OpenAnswer(state="opened", attempt=opened)

    def _bound(self, rollout: RolloutRow, attempt_id: str, token: str) -> BoundResources:
        policy = self.tables.has_engines(rollout)
        endpoint = AttemptEndpoint(self.gateway_url, policy, rollout.rollout_id, attempt_id)
        return bind_resources(self.tables.resources_of(rollout), endpoint, token)

    @locked
    async def finish_attempt(self, request: wire.FinishRequest) -> wire.AttemptOutcome:
        """Close an attempt and move its rollout on."""
        final = with_reward_checked(request)
        attempt = self._known(final.attempt_id)
        rollout = self.rollouts[attempt.rollout_id]
        if attempt.fence != final.fence or attempt is not rollout.newest:
            await self.add_spans(rollout.rollout_id, attempt.attempt_id, final.fence, final.spans)
            raise ConflictError(f"attempt {attempt.attempt_id} has been superseded")
        if attempt.ended:
            return attempt.outcome
        await self.add_spans(rollout.rollout_id, attempt.attempt_id, final.fence, final.spans)
        self._end(rollout, attempt, final)
        if final.died and attempt.failure_class is FailureClass.INFRASTRUCTURE:
            self.tables.count_death(rollout)
        return attempt.outcome

    def _end(self, rollout: RolloutRow, attempt: AttemptRow, final: wire.FinishRequest) -> None:
        attempt.end()
        failure_class, message = final.failure_class, final.message
        if failure_class in (None, FailureClass.AGENT_ERROR) and attempt.has_unresolved_failure():
            failure_class = FailureClass.ENGINE_ERROR
            message = ": ".join(filter(None, ["a model call failed on the platform's side", message]))
        attempt.status = failure_class.attempt_status if failure_class else AttemptStatus.SUCCEEDED
        attempt.failure_class, attempt.message = failure_class, message
        attempt.reward = None if failure_class else final.reward
        attempt.grader, attempt.graded = final.grader, final.end
        if final.grader == "agent":
            attempt.left = final.end
        self.tables.follow(rollout, attempt)

    def _known(self, attempt_id: str) -> AttemptRow:
        attempt = self.tables.attempts.get(attempt_id)
        if attempt is None:
            raise NotFoundError(f"there is no attempt {attempt_id}")
        return attempt

    @locked
    async def await_grading(self, request: wire.GradingRequest) -> None:
        """Store the agent's output; the attempt stays open for its grader."""
        attempt = self._known(request.attempt_id)
        if attempt.fence != request.fence or attempt is not self.rollouts[attempt.rollout_id].newest:
            raise ConflictError(f"attempt {attempt.attempt_id} has been superseded")
        if not attempt.ended:
            self._touch(attempt)
            attempt.settle_deliveries()
            attempt.left = request.end

    @locked
    async def transcript(self, attempt_id: str) -> wire.Transcript:
        """What a grader gets of an attempt."""
        attempt = self._known(attempt_id)
        calls = [call for _, call in sorted(attempt.calls.items()) if call.delivered != "no"]
        return wire.Transcript(
            input=self.rollouts[attempt.rollout_id].input,
            calls=[wire.TranscriptCall(request=call.record.request, response=call.record.response) for call in calls],
            output=attempt.left.output,
            outcome=attempt.outcome if attempt.ended else None,
        )

    @locked
    async def heartbeat(self, attempt_id: str, fence: int, worker_id: str) -> None:
        """Record that an attempt's process is alive."""
        attempt = self._known(attempt_id)
        if attempt.ended or attempt.fence != fence:
            raise ConflictError(f"attempt {attempt_id} is over, or has another fence")
        attempt.last_heartbeat_time, attempt.worker_id = time.time(), worker_id

    @locked
    async def add_spans(
        self, rollout_id: str, attempt_id: str, fence: int | None, spans: Sequence[wire.SpanRecord]
    ) -> int:
        """Store spans; returns how many were new."""
        given = [_span(rollout_id, attempt_id, span) for span in spans]
        added = sum(self.tables.add_span(span) is not None for span in given)
        attempt = self.tables.attempts.get(attempt_id)
        if attempt is None or attempt.rollout_id != rollout_id:
            raise NotFoundError(f"rollout {rollout_id} has no attempt {attempt_id}")
        if spans and not attempt.ended and attempt.fence == fence:
            self._touch(attempt)
        return added

    def _touch(self, attempt: AttemptRow) -> None:
        self.tables.alive(self.rollouts[attempt.rollout_id], attempt)

    @locked
    async def resolve(self, request: wire.ResolveRequest) -> wire.CallContext:
        """The attempt of a token, and how its model calls are served."""
        attempt = self._behind(request)
        rollout = self.rollouts[attempt.rollout_id]
        run = self.tables.run_of(rollout)
        bound = self._bound(rollout, attempt.attempt_id, request.token)
        return wire.CallContext(
            rollout_id=rollout.rollout_id,
            attempt_id=attempt.attempt_id,
            run=rollout.run if self.tables.has_engines(rollout) else None,
            model=bound.main.model if bound.main else POLICY,
            seed_base=f"{rollout.seed_base}/{attempt.try_number}",
            sampling=run.set_sampling,
            agent_chooses_sampling=bool(run.sampling.get("agent_chooses", False)),
            corrected=run.corrected,
            min_version=rollout.min_version,
            max_version=rollout.max_version,
            engine_wait_seconds=run.engine_wait_seconds,
            next_call_number=attempt.free_number(),
            undelivered=attempt.undelivered(),
            upstreams=run.upstreams,
            models=run.models,
            resource_models=bound.forwarded,
        )

    @locked
    async def ended_attempts(self, request: wire.EndedAttempts) -> wire.EndedAttempts:
        """Those of these attempts for which `resolve` would raise; unknown ones among them."""
        known = self.tables.attempts
        ended = [name for name in request.attempt_ids if name not in known or not self._is_alive(known[name])]
        return wire.EndedAttempts(attempt_ids=ended)

    @locked
    async def recall(self, request: wire.RecallRequest) -> wire.RecalledCall:
        """A call whose answer did not arrive, as the agent says."""
        return wire.RecalledCall(call=self._behind(request).recalled(request.call_number))

    def _behind(self, request: wire.ResolveRequest) -> AttemptRow:
        attempt = self.tables.attempts.get(request.attempt_id)
        known = attempt is not None and attempt.rollout_id == request.rollout_id
        if attempt is None or not known or not hmac.compare_digest(attempt.token_hash, token_hash(request.token)):
            raise UnauthorizedError(f"the token is not that of attempt {request.attempt_id}")
        if not self._is_alive(attempt):
            raise ConflictError(f"attempt {request.attempt_id} is over")
        return attempt

    def _is_alive(self, attempt: AttemptRow) -> bool:
        return not attempt.ended and self.rollouts[attempt.rollout_id].status is not RolloutStatus.CANCELLED

    @locked
    async def commit_generations(self, items: Sequence[wire.GenerationRecord]) -> list[wire.CommitResult]:
        """Record model calls."""
        return [self._commit(item) for item in items]

    def _commit(self, item: wire.GenerationRecord) -> wire.CommitResult:
        attempt = self.tables.attempts.get(item.attempt_id)
        if attempt is None or attempt.rollout_id != item.rollout_id or attempt.token_hash != item.token_hash:
            return wire.CommitResult(state="conflict", reason="the token is not this attempt's")
        holder = attempt.calls.get(item.call_number)
        if holder and holder.record.request_hash == item.request_hash:
            return wire.CommitResult(state="committed")
        if not self._is_alive(attempt):
            return wire.CommitResult(state="conflict", reason="the attempt is over")
        if holder:
            return wire.CommitResult(
                state="renumber",
                reason=f"call {item.call_number} is another request's",
                next_call_number=attempt.free_number(),
            )
        if not item.choices:
            return wire.CommitResult(state="conflict", reason="not storable: a call has no choices")
        engine = self.tables.engines.get(item.engine_id)
        start = engine.version_at(item.duration_seconds) if engine else None
        end = engine.version_at(0) if engine else None
        rollout = self.tables.rollouts[item.rollout_id]
        attempt.calls[item.call_number] = MemoryCall(item, item.delivered, start, end, rollout.next_sequence)
        rollout.next_sequence += len(item.choices)
        self._touch(attempt)
        return wire.CommitResult(state="committed")

    @locked
    async def record_call_failures(self, items: Sequence[wire.CallFailure]) -> None:
        """Record calls that the platform failed."""
        for item in items:
            attempt = self.tables.attempts.get(item.attempt_id)
            if attempt and attempt.token_hash == item.token_hash and not attempt.ended:
                attempt.failures.add((item.call_number, item.request_hash))
                self._touch(attempt)

    @locked
    async def mark_delivered(self, items: Sequence[wire.DeliveryMark]) -> None:
        """Record whether answers reached the agent."""
        for item in items:
            attempt = self.tables.attempts.get(item.attempt_id)
            call = attempt.calls.get(item.call_number) if attempt and not attempt.ended else None
            if call and call.delivered != "yes":
                call.delivered = item.delivered

    @locked
    async def engines(self, run: str) -> list[wire.EngineInfo]:
        """Engines of a run that are ready."""
        found = [self.tables.engines[name] for name in sorted(self.tables.engines)]
        return [engine.info for engine in found if engine.info.run == run and engine.state == "ready"]

    @locked
    async def register_worker(self, worker: wire.WorkerReport) -> None:
        """Record a process, or that it is still there."""
        report = dict(worker)
        self.tables.workers[worker.worker_id] = Worker(last_heartbeat_time=time.time(), **report)


def _span(rollout_id: str, attempt_id: str, record: wire.SpanRecord) -> Span:
    return Span.from_emitted(storable_span(record), rollout_id, attempt_id, NEXT_NUMBER)
