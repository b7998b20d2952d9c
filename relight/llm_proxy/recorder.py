"""Records model calls in the store: generations, failures, and whether answers were delivered.

An answer is committed before its agent gets it, and a failure of the platform is recorded before its agent learns of
it. Both complete even if the agent disconnects meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from time import monotonic
from typing import Any, Literal, TypeVar

from relight.errors import RelightError
from relight.faults import FaultPoint, fault_point
from relight.llm_proxy.attempt_states import GatewayAttempt, GatewayAttempts, UndeliveredAnswer
from relight.llm_proxy.capture import Capture
from relight.llm_proxy.exchange import Exchange
from relight.llm_proxy.model_call import ModelCall
from relight.llm_proxy.request_errors import RequestError, superseded, unavailable
from relight.llm_proxy.store_batcher import Batcher
from relight.store.attempts.base import AttemptStore
from relight.types.wire import CallFailure, CommitResult, DeliveryMark, GenerationRecord

log = logging.getLogger(__name__)

JOINING_SECONDS = 0.0005
"""How long a commit waits for each other call under way, which may join it."""
COMMIT_SECONDS = 0.02
"""The longest such wait."""
FAILURE_SECONDS = 5.0
"""How long the agent waits until its failure is recorded."""

Delivered = Literal["yes", "no", "unknown"]
Entry = tuple[ModelCall, GenerationRecord]
T = TypeVar("T")


class Recorder:
    """Commits calls, sends their answers, and records whether they were delivered."""

    def __init__(
        self, store: AttemptStore, attempts: GatewayAttempts, tasks: asyncio.TaskGroup, mark_seconds: float
    ) -> None:
        self.under_way = 0
        """Calls that are being served."""
        self._store = store
        self._attempts = attempts
        self._tasks = tasks
        self._committing: set[asyncio.Task[RequestError | None]] = set()
        self._unmarked: set[str] = set()
        """Ids of attempts with a mark that is being sent."""
        self._commits = Batcher[Entry, CommitResult]("commit", self._send_records, self._company)
        self._marks = Batcher[DeliveryMark, None]("mark", self._send_marks, lambda _: mark_seconds, limit=1000)
        self._failures = Batcher[CallFailure, None]("failure", store.record_call_failures)

    @property
    def batchers(self) -> tuple[Batcher[Any, Any], ...]:
        """The background tasks that send the batches."""
        return self._commits, self._marks, self._failures

    async def drain(self, seconds: float) -> None:
        """Record all that is queued within the time, and fail the rest: no agent got its answer."""
        try:
            async with asyncio.timeout(seconds):
                while self._committing:
                    await asyncio.wait(self._committing)
                for batcher in self.batchers:
                    await batcher.drain()
        except TimeoutError:
            log.warning("the gateway stopped before the store had recorded all calls")
        for batcher in self.batchers:
            batcher.close()

    def _company(self, gathered: int) -> float:
        return min(COMMIT_SECONDS, JOINING_SECONDS * max(0, self.under_way - gathered))

    async def _send_records(self, items: list[Entry]) -> list[CommitResult]:
        now = monotonic()
        for call, record in items:  # sent again after an outage, they began longer ago
            record.duration_seconds = now - call.began
        results = await self._store.commit_generations([record for _, record in items])
        if any(record.attempt_id in self._unmarked for _, record in items):
            self._marks.send_now()  # an attempt that ends after this call has its earlier ones marked
        return results

    async def _send_marks(self, marks: list[DeliveryMark]) -> None:
        self._unmarked.clear()
        newest = {(mark.attempt_id, mark.call_number): mark for mark in marks}
        await self._store.mark_delivered(list(newest.values()))

    def close_early(self, call: ModelCall, capture: Capture) -> None:
        """The agent closed a stream: the tokens that were sent are committed as delivered."""
        call.attempt.failed.discard(call.prepared.request_hash)
        self._start(call, call.record(capture, complete=False))

    async def conclude(self, exchange: Exchange, call: ModelCall, capture: Capture, content: bytes) -> None:
        """Commit an answer, then send it to the agent. The commit completes even if the exchange ends."""
        undelivered = UndeliveredAnswer(call.number, call.prepared.request_hash, capture.shown, certain=True)
        undelivered.committing = self._start(call, call.record(capture), undelivered)
        await self.deliver(exchange, call.attempt, undelivered, content, call.prepared.stream)

    def _start(
        self, call: ModelCall, record: GenerationRecord, undelivered: UndeliveredAnswer | None = None
    ) -> asyncio.Task[RequestError | None]:
        task = self._tasks.create_task(self._commit(call, record, undelivered))
        self._committing.add(task)
        task.add_done_callback(self._committing.discard)
        return task

    async def _commit(
        self, call: ModelCall, record: GenerationRecord, undelivered: UndeliveredAnswer | None
    ) -> RequestError | None:
        """Commit under the call's number or the next free one. Never raises, since the agent may have disconnected."""
        while True:
            try:
                result = await self._commits.submit((call, record))
            except RelightError as error:
                self.note_failure(call, f"the store refused the call: {error}")
                return unavailable("the store refused to record this call")
            if result is None or result.state == "committed":
                fault_point(FaultPoint.CALL_COMMITTED)
                return None
            if result.state == "conflict":
                self._attempts.drop(call.attempt)
                return superseded(result.reason)
            record.call_number = call.attempt.renumber(result.next_call_number)
            if undelivered is not None:
                undelivered.call_number = record.call_number

    async def deliver(
        self, exchange: Exchange, attempt: GatewayAttempt, undelivered: UndeliveredAnswer, content: bytes, stream: bool
    ) -> None:
        """Wait for the commit, send the answer, and mark whether it arrived."""
        seen = exchange.started
        arrived: Delivered = "no"
        try:
            await self._committed(attempt, undelivered)
            await self._retract(attempt, undelivered)
            if await (exchange.last_events(content) if stream else exchange.answer(content)):
                arrived = "yes"
            fault_point(FaultPoint.ANSWER_SENT)
        finally:
            if seen:  # the agent has read a stream even if it disconnects just before its end
                arrived = "yes"
            elif arrived == "no" and exchange.sent:  # the connection broke behind it
                arrived = "unknown"
            self._settle(attempt, undelivered, arrived)

    async def _committed(self, attempt: GatewayAttempt, undelivered: UndeliveredAnswer) -> None:
        if undelivered.committing is None:
            return
        error = await self._stored(attempt, undelivered, undelivered.committing)
        if error is not None:
            raise error

    async def _retract(self, attempt: GatewayAttempt, undelivered: UndeliveredAnswer) -> None:
        """Revoke the record that an answer was not delivered, before it is sent again.

        The attempt may end as soon as the agent has the answer, and then the store accepts no mark any more.
        """
        if not undelivered.denied:
            return
        try:
            await self._stored(attempt, undelivered, self._mark(attempt, undelivered, "unknown"))
        except RelightError as error:  # the store service is older than this gateway
            log.warning("delivery mark not revoked rollout=%s attempt=%s reason=%r", *attempt.key, str(error))
        else:
            undelivered.denied = False

    async def _stored(self, attempt: GatewayAttempt, undelivered: UndeliveredAnswer, storing: asyncio.Future[T]) -> T:
        """The store's result, if it comes in time."""
        with attempt.clock.call() as wait:
            wait.begin(monotonic())
            try:
                async with asyncio.timeout(attempt.context.engine_wait_seconds):
                    return await asyncio.shield(storing)
            except TimeoutError:
                attempt.failed.add(undelivered.request_hash)
                raise unavailable("the store does not answer") from None

    def _settle(self, attempt: GatewayAttempt, undelivered: UndeliveredAnswer, arrived: Delivered) -> None:
        """Mark an answer once it is committed; an undelivered one is kept for the next identical call."""
        undelivered.certain = arrived != "unknown"
        if arrived == "yes":
            attempt.failed.discard(undelivered.request_hash)
            attempt.note_sent(undelivered)
        else:
            attempt.keep(undelivered)
        attempt.touch()
        if undelivered.committing is None:
            self._note(attempt, undelivered, arrived)
        elif undelivered.committing.done():
            self._mark_committed(attempt, undelivered, arrived, undelivered.committing)
        else:
            undelivered.committing.add_done_callback(partial(self._mark_committed, attempt, undelivered, arrived))

    def _mark_committed(
        self,
        attempt: GatewayAttempt,
        undelivered: UndeliveredAnswer,
        arrived: Delivered,
        committing: asyncio.Future[RequestError | None],
    ) -> None:
        if committing.cancelled() or committing.result() is not None:
            attempt.forget(undelivered)
        else:
            self._note(attempt, undelivered, arrived)

    def _note(self, attempt: GatewayAttempt, undelivered: UndeliveredAnswer, arrived: Delivered) -> None:
        if arrived == "unknown" and not undelivered.denied:  # as which it was committed
            return
        undelivered.denied = arrived == "no"
        # It was sent again, and may have arrived this time.
        self._mark(attempt, undelivered, "no" if arrived == "no" else "yes")

    def _mark(
        self, attempt: GatewayAttempt, undelivered: UndeliveredAnswer, delivered: Delivered
    ) -> asyncio.Future[None]:
        rollout_id, attempt_id = attempt.key
        number = undelivered.call_number
        mark = DeliveryMark(rollout_id=rollout_id, attempt_id=attempt_id, call_number=number, delivered=delivered)
        self._unmarked.add(mark.attempt_id)
        return self._marks.submit(mark, urgent=delivered != "yes" or attempt.asked_again(undelivered.request_hash))

    async def failed(self, call: ModelCall, message: str, code: str | None = None) -> RequestError:
        """Record a failure of the platform before the agent learns of it."""
        recorded = self.note_failure(call, message)
        error = unavailable(message) if code is None else RequestError(503, message, code, final=True)
        try:
            async with asyncio.timeout(FAILURE_SECONDS):
                await asyncio.shield(recorded)
            error.recorded = True
        except (TimeoutError, RelightError):
            log.warning("failure not yet recorded rollout=%s attempt=%s", *call.attempt.key)
        return error

    def note_failure(self, call: ModelCall, message: str) -> asyncio.Future[None]:
        """Record a failure of the platform in the background."""
        call.attempt.failed.add(call.prepared.request_hash)
        return self._failures.submit(CallFailure(**call.key, message=message))
