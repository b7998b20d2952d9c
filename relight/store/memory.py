"""The attempt store in memory: the same rules, for tests of runner and gateway.

Nothing survives the process. Runs, rollouts and engines are put in by hand; what the store holds can be read.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Sequence
from typing import Any, Literal

from relight.errors import ConflictError, NotFoundError, UnauthorizedError
from relight.store.envelopes import WorkerReport
from relight.store.memory_rows import (
    ENDED,
    EngineState,
    MemoryAttempt,
    MemoryCall,
    MemoryEngine,
    MemoryRollout,
    MemoryRun,
)
from relight.store.storable import judged, storable_span
from relight.store.tokens import attempt_token, attempt_url, new_attempt_id, new_key, open_key, token_hash
from relight.types.resources import NamedResources
from relight.types.rollout import PLATFORM_FAILURES, AttemptStatus, FailureClass, RolloutConfig, RolloutStatus
from relight.types.wire import (
    AttemptOutcome,
    CallContext,
    CallFailure,
    CommitResult,
    DeliveryMark,
    EngineInfo,
    FinishRequest,
    GenerationRecord,
    HandOver,
    OpenAnswer,
    OpenedAttempt,
    OpenRequest,
    RecalledCall,
    RecallRequest,
    ResolveRequest,
    SpanRecord,
    Transcript,
    TranscriptCall,
)

ALONE_AFTER = 2
QUARANTINE_AFTER = 5


class MemoryStore:
    """Implements `AttemptStore` in memory. One event loop; no call gives way before it is done."""

    def __init__(self, gateway_url: str = "http://127.0.0.1:4748") -> None:
        self.gateway_url = gateway_url
        self.runs: dict[str, MemoryRun] = {}
        self.rollouts: dict[str, MemoryRollout] = {}
        self.workers: dict[str, WorkerReport] = {}
        self._attempts: dict[str, MemoryAttempt] = {}
        self._engines: dict[str, MemoryEngine] = {}
        self._fence = 0
        self._key = new_key()

    def add_run(
        self,
        run: str,
        *,
        sampling: dict[str, Any] | None = None,
        isolation: Literal["process", "shared"] = "process",
        engine_wait_seconds: float = 300.0,
        grader: str | None = None,
    ) -> MemoryRun:
        """Put a run in; `add_rollout` and `add_engine` do so by themselves, with defaults."""
        self.runs[run] = MemoryRun(sampling or {}, isolation, engine_wait_seconds, grader)
        return self.runs[run]

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
    ) -> MemoryRollout:
        """Put a rollout in."""
        if run is not None and run not in self.runs:
            self.add_run(run)
        base = rollout_id if seed_base is None else seed_base
        self.rollouts[rollout_id] = MemoryRollout(
            rollout_id=rollout_id,
            run=run,
            step=step,
            input=input,
            mode=mode,
            resources=resources or {},
            config=config or RolloutConfig(),
            seed_base=base,
            min_version=min_version,
            max_version=max_version,
        )
        return self.rollouts[rollout_id]

    def add_engine(
        self,
        engine_id: str = "engine-1",
        *,
        run: str = "demo",
        url: str = "http://127.0.0.1:8000",
        model: str = "policy",
        version: int = 0,
        state: EngineState = "ready",
    ) -> MemoryEngine:
        """Put an engine in, or let it load another version or change its state."""
        if run not in self.runs:
            self.add_run(run)
        old = self._engines.get(engine_id)
        loads = [*(old.loads if old else []), (time.time(), version)]
        info = EngineInfo(engine_id=engine_id, run=run, url=url, model=model, version=version, load=len(loads))
        self._engines[engine_id] = MemoryEngine(info, state, loads)
        return self._engines[engine_id]

    def set_paused(self, run: str, paused: bool = True) -> None:
        """Pause or resume a run."""
        self.runs[run].paused = paused

    def cancel(self, rollout_id: str) -> None:
        """Cancel a rollout."""
        self.rollouts[rollout_id].status = RolloutStatus.CANCELLED

    def close(self, rollout_id: str, attempt_id: str = "none") -> None:
        """Say which attempt counts, as the closing of its batch does."""
        self.rollouts[rollout_id].counted = attempt_id

    def attempt(self, attempt_id: str) -> MemoryAttempt:
        """An attempt's row."""
        return self._attempts[attempt_id]

    async def open_attempt(self, request: OpenRequest) -> OpenAnswer:
        """Open an attempt, or say why none is opened."""
        rollout = self.rollouts.get(request.rollout_id)
        if rollout is None:
            raise NotFoundError(f"there is no rollout {request.rollout_id}")
        key = open_key(request.rollout_id, request.try_number, request.execution)
        if rollout.status is RolloutStatus.CANCELLED:
            return OpenAnswer(state="gone", reason="the rollout is cancelled")
        newest = rollout.newest
        if newest and newest.open_key == key and not newest.ended:
            return self._opened(rollout, newest)
        refusal = self._refusal(rollout, request.try_number, key)
        if refusal:
            return refusal
        if newest and not newest.ended and self._bury(rollout, newest) >= QUARANTINE_AFTER:
            rollout.status, rollout.failure_class = RolloutStatus.FAILED, FailureClass.INFRASTRUCTURE
            rollout.failure = f"quarantined: its process died {rollout.deaths} times"
            return OpenAnswer(state="finished", reason="quarantined", outcome=newest.outcome)
        return self._opened(rollout, self._new_attempt(rollout, request, key))

    def _refusal(self, rollout: MemoryRollout, try_number: int, key: str) -> OpenAnswer | None:
        newest = rollout.newest
        for attempt in reversed(rollout.attempts):
            if attempt.ended and attempt.try_number == try_number and attempt.failure_class not in PLATFORM_FAILURES:
                return OpenAnswer(state="finished", reason="this try has ended", outcome=attempt.outcome)
        if rollout.counted is not None:
            return OpenAnswer(state="gone", reason="the batch of this rollout is closed")
        if rollout.status in ENDED and newest and newest.ended:
            return OpenAnswer(state="finished", reason="the rollout has ended", outcome=newest.outcome)
        if rollout.status in ENDED:
            return OpenAnswer(state="gone", reason=f"the rollout has ended as {rollout.status}")
        if newest and try_number < newest.try_number:
            return OpenAnswer(state="gone", reason=f"try {newest.try_number} has begun")
        if newest and newest.open_key != key and any(attempt.open_key == key for attempt in rollout.attempts):
            return OpenAnswer(state="gone", reason="another execution has taken over")
        if rollout.run is not None and self.runs[rollout.run].status != "running":
            return OpenAnswer(state="gone", reason=f"the run is {self.runs[rollout.run].status}")
        reason = self._waits(rollout.run)
        return OpenAnswer(state="wait", reason=reason) if reason else None

    def _waits(self, name: str | None) -> str | None:
        if name is None:
            return None
        run = self.runs[name]
        states = [engine.state for engine in self._engines.values() if engine.info.run == name]
        if run.paused:
            return "the run is paused"
        if states and not {"ready", "loading"} & set(states):
            return "no engine is ready"
        return None

    def _bury(self, rollout: MemoryRollout, attempt: MemoryAttempt) -> int:
        attempt.settle()
        attempt.status, attempt.failure_class = AttemptStatus.FAILED, FailureClass.INFRASTRUCTURE
        attempt.message = "its process died, or lost touch with the platform"
        attempt.ended = True
        rollout.deaths += 1
        return rollout.deaths

    def _new_attempt(self, rollout: MemoryRollout, request: OpenRequest, key: str) -> MemoryAttempt:
        self._fence += 1
        attempt_id = new_attempt_id()
        attempt = MemoryAttempt(
            attempt_id,
            rollout.rollout_id,
            len(rollout.attempts) + 1,
            request.try_number,
            key,
            self._fence,
            token_hash(attempt_token(self._key, attempt_id)),
            request.worker_id,
        )
        self._attempts[attempt_id] = attempt
        rollout.attempts.append(attempt)
        rollout.status = RolloutStatus.PREPARING
        rollout.reward = rollout.failure_class = rollout.failure = None
        return attempt

    def _opened(self, rollout: MemoryRollout, attempt: MemoryAttempt) -> OpenAnswer:
        run = self.runs[rollout.run] if rollout.run else MemoryRun()
        opened = OpenedAttempt(
            rollout_id=rollout.rollout_id,
            attempt_id=attempt.attempt_id,
            sequence_id=attempt.sequence_id,
            fence=attempt.fence,
            token=attempt_token(self._key, attempt.attempt_id),
            base_url=attempt_url(self.gateway_url, rollout.rollout_id, attempt.attempt_id),
            run=rollout.run,
            step=rollout.step,
            mode=rollout.mode,
            input=rollout.input,
            resources=rollout.resources,
            sampling=run.set_sampling,
            config=rollout.config,
            isolation=run.isolation,
            alone=rollout.deaths >= ALONE_AFTER,
            deaths=rollout.deaths,
            grader=run.grader,
        )
        return OpenAnswer(state="opened", attempt=opened)

    async def finish_attempt(self, request: FinishRequest) -> AttemptOutcome:
        """Close an attempt and move its rollout on."""
        final = judged(request)
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
            self._count_death(rollout)
        return attempt.outcome

    def _count_death(self, rollout: MemoryRollout) -> None:
        rollout.deaths += 1
        if rollout.deaths >= QUARANTINE_AFTER and rollout.status not in ENDED and rollout.counted is None:
            rollout.status, rollout.failure_class = RolloutStatus.FAILED, FailureClass.INFRASTRUCTURE
            rollout.failure = f"quarantined: its process died {rollout.deaths} times"

    def _end(self, rollout: MemoryRollout, attempt: MemoryAttempt, final: FinishRequest) -> None:
        attempt.settle()
        failure_class, message = final.failure_class, final.message
        if failure_class in (None, FailureClass.AGENT_ERROR) and attempt.has_unresolved_failure():
            failure_class = FailureClass.ENGINE_ERROR
            message = ": ".join(filter(None, ["a model call failed on the platform's side", message]))
        attempt.status = failure_class.attempt_status if failure_class else AttemptStatus.SUCCEEDED
        attempt.failure_class, attempt.message = failure_class, message
        attempt.reward = None if failure_class else final.reward
        attempt.grader, attempt.ended = final.grader, True
        if final.grader == "agent":
            attempt.output = final.output
        status = rollout.status_after(attempt.try_number, failure_class)
        if status is rollout.status:
            return
        requeuing = status is RolloutStatus.REQUEUING
        rollout.status, rollout.reward = status, attempt.reward
        rollout.failure_class = None if requeuing else failure_class
        rollout.failure = None if requeuing else message or None

    def _known(self, attempt_id: str) -> MemoryAttempt:
        attempt = self._attempts.get(attempt_id)
        if attempt is None:
            raise NotFoundError(f"there is no attempt {attempt_id}")
        return attempt

    async def hand_over(self, handed: HandOver) -> None:
        """Keep what the agent left; the attempt stays open for its grader."""
        attempt = self._known(handed.attempt_id)
        if attempt.fence != handed.fence or attempt is not self.rollouts[attempt.rollout_id].newest:
            raise ConflictError(f"attempt {attempt.attempt_id} has been superseded")
        if not attempt.ended:
            self._touch(attempt)
            attempt.settle()
            attempt.output = handed.output

    async def transcript(self, attempt_id: str) -> Transcript:
        """What a grader judges an attempt by."""
        attempt = self._known(attempt_id)
        calls = [call for _, call in sorted(attempt.calls.items()) if call.delivered != "no"]
        return Transcript(
            input=self.rollouts[attempt.rollout_id].input,
            calls=[TranscriptCall(request=call.record.request, response=call.record.response) for call in calls],
            output=attempt.output,
            outcome=attempt.outcome if attempt.ended else None,
        )

    async def heartbeat(self, attempt_id: str, fence: int, worker_id: str) -> None:
        """Say that an attempt's process is alive."""
        attempt = self._known(attempt_id)
        if attempt.ended or attempt.fence != fence:
            raise ConflictError(f"attempt {attempt_id} is over, or has another fence")
        attempt.last_heartbeat, attempt.worker_id = time.time(), worker_id

    async def add_spans(self, rollout_id: str, attempt_id: str, fence: int | None, spans: Sequence[SpanRecord]) -> int:
        """Keep spans; returns how many were new."""
        attempt = self._attempts.get(attempt_id)
        if attempt is None or attempt.rollout_id != rollout_id:
            raise NotFoundError(f"rollout {rollout_id} has no attempt {attempt_id}")
        kept = self.rollouts[rollout_id].spans
        before = len(kept)
        known = {span["span_id"] for span in kept if span["attempt_id"] == attempt_id}
        for span in spans:
            row = storable_span(span)
            if row["span_id"] not in known:
                known.add(row["span_id"])
                kept.append(row | {"attempt_id": attempt_id, "sequence_id": len(kept) + 1})
        if spans and not attempt.ended and attempt.fence == fence:
            self._touch(attempt)
        return len(kept) - before

    def _touch(self, attempt: MemoryAttempt) -> None:
        attempt.status, attempt.last_heartbeat = AttemptStatus.RUNNING, time.time()
        rollout = self.rollouts[attempt.rollout_id]
        if rollout.status is RolloutStatus.PREPARING:
            rollout.status = RolloutStatus.RUNNING

    async def resolve(self, request: ResolveRequest) -> CallContext:
        """Who is behind an attempt's token."""
        attempt = self._behind(request)
        rollout = self.rollouts[attempt.rollout_id]
        run = self.runs[rollout.run] if rollout.run else MemoryRun()
        return CallContext(
            rollout_id=rollout.rollout_id,
            attempt_id=attempt.attempt_id,
            run=rollout.run,
            step=rollout.step,
            model="policy",
            seed_base=f"{rollout.seed_base}/{attempt.try_number}",
            sampling=run.set_sampling,
            agent_chooses_sampling=bool(run.sampling.get("agent_chooses", False)),
            min_version=rollout.min_version,
            max_version=rollout.max_version,
            engine_wait_seconds=run.engine_wait_seconds,
            next_call_number=attempt.free_number(),
            undelivered=attempt.undelivered(),
            upstreams=run.upstreams,
        )

    async def recall(self, request: RecallRequest) -> RecalledCall:
        """A call whose answer did not arrive after all."""
        return RecalledCall(call=self._behind(request).recalled(request.call_number))

    def _behind(self, request: ResolveRequest) -> MemoryAttempt:
        attempt = self._attempts.get(request.attempt_id)
        known = attempt is not None and attempt.rollout_id == request.rollout_id
        if attempt is None or not known or not hmac.compare_digest(attempt.token_hash, token_hash(request.token)):
            raise UnauthorizedError(f"the token is not that of attempt {request.attempt_id}")
        if not self._is_alive(attempt):
            raise ConflictError(f"attempt {request.attempt_id} is over")
        return attempt

    def _is_alive(self, attempt: MemoryAttempt) -> bool:
        return not attempt.ended and self.rollouts[attempt.rollout_id].status is not RolloutStatus.CANCELLED

    async def commit_generations(self, items: Sequence[GenerationRecord]) -> list[CommitResult]:
        """Record model calls."""
        return [self._commit(item) for item in items]

    def _commit(self, item: GenerationRecord) -> CommitResult:
        attempt = self._attempts.get(item.attempt_id)
        if attempt is None or attempt.rollout_id != item.rollout_id or attempt.token_hash != item.token_hash:
            return CommitResult(state="conflict", reason="the token is not this attempt's")
        holder = attempt.calls.get(item.call_number)
        if holder and holder.record.request_hash == item.request_hash:
            return CommitResult(state="committed")
        if not self._is_alive(attempt):
            return CommitResult(state="conflict", reason="the attempt is over")
        if holder:
            return CommitResult(
                state="renumber",
                reason=f"call {item.call_number} is another request's",
                next_call_number=attempt.free_number(),
            )
        if not item.choices:
            return CommitResult(state="conflict", reason="not storable: a call has no choices")
        engine = self._engines.get(item.engine_id)
        start = engine.version_at(item.duration_seconds) if engine else None
        end = engine.version_at(0) if engine else None
        attempt.calls[item.call_number] = MemoryCall(item, item.delivered, start, end)
        self._touch(attempt)
        return CommitResult(state="committed")

    async def record_call_failures(self, items: Sequence[CallFailure]) -> None:
        """Record calls that the platform failed."""
        for item in items:
            attempt = self._attempts.get(item.attempt_id)
            if attempt and attempt.token_hash == item.token_hash and not attempt.ended:
                attempt.failures.add((item.call_number, item.request_hash))
                self._touch(attempt)

    async def mark_delivered(self, items: Sequence[DeliveryMark]) -> None:
        """Record whether answers reached the agent."""
        for item in items:
            attempt = self._attempts.get(item.attempt_id)
            call = attempt.calls.get(item.call_number) if attempt and not attempt.ended else None
            if call and call.delivered != "yes":
                call.delivered = item.delivered

    async def engines(self, run: str) -> list[EngineInfo]:
        """Engines of a run that are ready."""
        found = [self._engines[name] for name in sorted(self._engines)]
        return [engine.info for engine in found if engine.info.run == run and engine.state == "ready"]

    async def register_worker(self, worker: WorkerReport) -> None:
        """Record a process, or that it is still there."""
        self.workers[worker.worker_id] = worker
