"""A model call from the agent's request to the committed, delivered answer.

Not streamed: forward, capture, commit, answer, mark. Streamed: chunks go through as they come, and what ends a choice
is held until the commit. While engine or store are away the call waits and is repeated with its seed and number.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, TypeVar, cast

import orjson

from relight.errors import RelightError
from relight.llm_proxy.attempts import Attempt, Attempts, Leftover
from relight.llm_proxy.batches import Batcher
from relight.llm_proxy.capture import Capture, read_answer
from relight.llm_proxy.engines import Engine, EngineAway, Engines
from relight.llm_proxy.exchange import Exchange
from relight.llm_proxy.passage import Diverged, Passage
from relight.llm_proxy.refusal import PassedOn, Refusal, superseded, unavailable
from relight.llm_proxy.requests import Prepared, Route, parse_body, prepare, seed_for
from relight.llm_proxy.streams import DONE, replay, split_events
from relight.llm_proxy.waits import Wait
from relight.store.interface import AttemptStore
from relight.types.wire import CallFailure, CommitResult, DeliveryMark, GenerationRecord

T = TypeVar("T")
log = logging.getLogger(__name__)

MARK_SECONDS = 0.25
"""Marks gather this long before they are sent, unless their attempt makes another call."""
COMPANY_SECONDS = 0.0005
"""How long a commit waits for each other call that is under way, and may join it."""
COMMIT_SECONDS = 0.02
"""But no longer than this."""
NOTICED_SECONDS = 0.25
"""A shorter wait is no reason for an agent to leave."""
FAILURE_SECONDS = 5.0
"""How long the agent waits for its failure to be on record."""


@dataclass(slots=True, eq=False)
class Call:
    """One model call."""

    attempt: Attempt
    prepared: Prepared
    number: int
    seed: int
    engine: Engine | None = None
    began: float = field(default_factory=monotonic)
    """When it was last forwarded."""

    @property
    def content(self) -> bytes:
        """The request as it goes to the engine."""
        engine = cast("Engine", self.engine)
        return orjson.dumps({**self.prepared.body, "model": engine.info.model, "seed": self.seed})

    def record(self, capture: Capture, complete: bool = True) -> GenerationRecord:
        """What the store keeps. Not validated: the token lists come from a JSON parser, and are long."""
        engine = cast("Engine", self.engine)
        return GenerationRecord.model_construct(
            rollout_id=self.attempt.context.rollout_id,
            attempt_id=self.attempt.context.attempt_id,
            token_hash=self.attempt.token_hash,
            call_number=self.number,
            request_hash=self.prepared.request_hash,
            route=self.prepared.route,
            request={**self.prepared.body, "seed": self.seed},
            response=capture.shown,
            prompt_token_ids=capture.prompt_token_ids,
            choices=capture.choices(),
            sampling=self.prepared.sampling,
            seed=self.seed,
            engine_id=engine.info.engine_id,
            model=engine.info.model,
            duration_seconds=0.0,
            delivered="unknown" if complete else "yes",
        )


Commit = tuple[Call, GenerationRecord]


class Calls:
    """Serves model calls."""

    def __init__(self, store: AttemptStore, attempts: Attempts, engines: Engines, tasks: asyncio.TaskGroup) -> None:
        self._attempts = attempts
        self._engines = engines
        self._tasks = tasks
        self._store = store
        self._under_way = 0
        self._unmarked: set[str] = set()
        """Attempts that have a mark on its way."""
        self._commits = Batcher[tuple[Call, GenerationRecord], CommitResult](
            "commit", self._send_records, self._company
        )
        self._marks = Batcher[DeliveryMark, None]("mark", self._send_marks, lambda _: MARK_SECONDS, limit=1000)
        self._failures = Batcher[CallFailure, None]("failure", store.record_call_failures)

    @property
    def batchers(self) -> tuple[Batcher[Any, Any], ...]:
        """What must run, and be drained at the end."""
        return self._commits, self._marks, self._failures

    async def drain(self, seconds: float) -> None:
        """Record what is still to be recorded, and give the rest up: no agent was told of it."""
        try:
            async with asyncio.timeout(seconds):
                for batcher in self.batchers:
                    await batcher.drain()
        except TimeoutError:
            log.warning("ended before the store had taken everything")
        for batcher in self.batchers:
            batcher.close()

    def _company(self, gathered: int) -> float:
        return min(COMMIT_SECONDS, COMPANY_SECONDS * max(0, self._under_way - gathered))

    async def _send_records(self, items: list[Commit]) -> list[CommitResult]:
        now = monotonic()
        for call, record in items:  # sent again after an outage, they began longer ago
            record.duration_seconds = now - call.began
        results = await self._store.commit_generations([record for _, record in items])
        if any(record.attempt_id in self._unmarked for _, record in items):
            self._marks.hurry()  # an attempt that ends after this call has its earlier ones marked
        return results

    async def _send_marks(self, marks: list[DeliveryMark]) -> None:
        self._unmarked.clear()
        newest = {(mark.attempt_id, mark.call_number): mark for mark in marks}
        await self._store.mark_delivered(list(newest.values()))

    async def serve(self, exchange: Exchange, route: Route, attempt: Attempt, content: bytes) -> None:
        """Answer one call."""
        context = attempt.context
        asked = parse_body(content)
        prepared = prepare(route, asked, context.model, context.sampling, context.agent_chooses_sampling)
        attempt.calls += 1
        attempt.touch()
        self._under_way += 1
        try:
            await self._serve(exchange, attempt, prepared)
        finally:
            self._under_way -= 1

    async def _serve(self, exchange: Exchange, attempt: Attempt, prepared: Prepared) -> None:
        leftover = attempt.take_leftover(prepared.request_hash, exchange.declared_retry)
        if leftover is not None:
            await self._replay(exchange, attempt, prepared, leftover)
            return
        number = attempt.take_number(prepared.request_hash)
        call = Call(attempt, prepared, number, seed_for(attempt.context.seed_base, number))
        try:
            await (self._stream(exchange, call) if prepared.stream else self._whole(exchange, call))
        except Refusal:
            raise
        except Diverged as error:
            raise await self._failed(call, "the stream broke, and its repetition sampled something else") from error
        except Exception as error:
            # Whatever went wrong here is the platform's failure, and not the agent's.
            log.exception("call failed rollout=%s attempt=%s", *attempt.key)
            raise await self._failed(call, "the gateway failed on this call; its log says why") from error

    async def _whole(self, exchange: Exchange, call: Call) -> None:
        try:
            answer = await self._patiently(call, lambda engine: ask(engine, call))
        except BaseException:
            call.attempt.give_back(call.prepared.request_hash, call.number)
            raise
        capture = read_answer(call.prepared.route, call.prepared.wants, answer)
        leftover = self._commit(call, capture)
        await self._hand_over(exchange, call.attempt, leftover, [orjson.dumps(capture.shown)])

    async def _replay(self, exchange: Exchange, attempt: Attempt, prepared: Prepared, leftover: Leftover) -> None:
        log.info("replay rollout=%s attempt=%s call=%d", *attempt.key, leftover.call_number)
        pieces = list(replay(leftover.shown)) if prepared.stream else [orjson.dumps(leftover.shown)]
        await self._hand_over(exchange, attempt, leftover, pieces)

    async def _stream(self, exchange: Exchange, call: Call) -> None:
        passage = Passage(call.prepared.route, call.prepared.wants)
        try:
            await self._patiently(call, lambda engine: self._pump(exchange, call, engine, passage))
        except asyncio.CancelledError:
            self._close_early(call, passage)
            raise
        except BaseException:
            call.attempt.give_back(call.prepared.request_hash, call.number)
            raise
        capture, held = passage.finish()
        leftover = self._commit(call, capture)
        await self._hand_over(exchange, call.attempt, leftover, [*held, DONE])

    async def _pump(self, exchange: Exchange, call: Call, engine: Engine, passage: Passage) -> None:
        """Pass an engine's stream on, up to what must wait for the commit."""
        passage.restart()
        done = False
        async with engine.post(call.prepared.route, call.content) as answer:
            async for data in split_events(answer.pieces()):
                done = data == b"[DONE]"
                if not done and (events := passage.take(read_chunk(engine, data))):
                    await exchange.event(events)
        if not done:
            raise EngineAway(f"engine {engine.info.engine_id}: the stream broke off")

    def _close_early(self, call: Call, passage: Passage) -> None:
        """The agent closed the stream: what it was sent counts, as delivered."""
        capture = passage.close_early()
        if capture is None:
            call.attempt.give_back(call.prepared.request_hash, call.number)
        else:
            self._tasks.create_task(self._commit_fully(call, call.record(capture, complete=False)))

    def _commit(self, call: Call, capture: Capture) -> Leftover:
        """Start the commit. From here on the answer exists, whatever becomes of this request."""
        leftover = Leftover(call.number, call.prepared.request_hash, capture.shown, certain=True)
        leftover.committing = self._tasks.create_task(self._commit_fully(call, call.record(capture), leftover))
        return leftover

    async def _commit_fully(
        self, call: Call, record: GenerationRecord, leftover: Leftover | None = None
    ) -> Refusal | None:
        """Commit under the call's number or the next free one. Never raises: nobody may be waiting any more."""
        while True:
            try:
                result = await self._commits.submit((call, record))
            except RelightError as error:
                self._note_failure(call, f"the store refused the call: {error}")
                return unavailable("the store refused to record this call")
            if result is None or result.state == "committed":
                call.attempt.failed.discard(record.request_hash)
                return None
            if result.state == "conflict":
                self._attempts.drop(call.attempt)
                return superseded(result.reason)
            record.call_number = call.attempt.renumber(result.next_call_number)
            if leftover is not None:
                leftover.call_number = record.call_number

    async def _hand_over(self, exchange: Exchange, attempt: Attempt, leftover: Leftover, pieces: list[bytes]) -> None:
        """Wait for the commit, send the answer, and mark whether it arrived."""
        seen = exchange.started
        arrived = False
        try:
            await self._committed(attempt, leftover)
            arrived = await send(exchange, pieces)
        finally:
            # A stream whose agent left before its very end was read all the same.
            self._settle(attempt, leftover, arrived or seen)

    async def _committed(self, attempt: Attempt, leftover: Leftover) -> None:
        if leftover.committing is None:
            return
        with attempt.clock.call() as wait:
            wait.begin(monotonic())
            try:
                async with asyncio.timeout(attempt.context.engine_wait_seconds):
                    refusal = await asyncio.shield(leftover.committing)
            except TimeoutError:
                attempt.failed.add(leftover.request_hash)
                raise unavailable("the store is away") from None
        if refusal is not None:
            raise refusal

    def _settle(self, attempt: Attempt, leftover: Leftover, arrived: bool) -> None:
        """Mark an answer once it is committed; one that did not arrive is kept for the next identical call."""
        leftover.certain = True
        if not arrived:
            attempt.leave(leftover)
        attempt.touch()
        if leftover.committing is None:
            self._mark(attempt, leftover, arrived)
        elif leftover.committing.done():
            self._mark_committed(attempt, leftover, arrived, leftover.committing)
        else:
            leftover.committing.add_done_callback(partial(self._mark_committed, attempt, leftover, arrived))

    def _mark_committed(
        self, attempt: Attempt, leftover: Leftover, arrived: bool, committing: asyncio.Future[Refusal | None]
    ) -> None:
        if committing.cancelled() or committing.result() is not None:
            attempt.forget(leftover)
        else:
            self._mark(attempt, leftover, arrived)

    def _mark(self, attempt: Attempt, leftover: Leftover, arrived: bool) -> None:
        mark = DeliveryMark(
            rollout_id=attempt.context.rollout_id,
            attempt_id=attempt.context.attempt_id,
            call_number=leftover.call_number,
            delivered="yes" if arrived else "no",
        )
        self._unmarked.add(mark.attempt_id)
        self._marks.submit(mark, urgent=not arrived)

    async def _patiently(self, call: Call, once: Callable[[Engine], Awaitable[T]]) -> T:
        """Ask an engine that fits, again and again while none can answer."""
        with call.attempt.clock.call() as wait:
            pause = 0.05
            try:
                while True:
                    try:
                        return await self._once(call, wait, once)
                    except EngineAway as error:
                        await self._check_patience(call, wait, error)
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, 1.0)
            except asyncio.CancelledError:
                if wait.active and wait.seconds >= NOTICED_SECONDS:
                    # An agent that gave up waiting for the platform was failed by the platform.
                    self._note_failure(call, f"the agent left after waiting {wait.seconds:.1f} s for an engine")
                raise

    async def _once(self, call: Call, wait: Wait, once: Callable[[Engine], Awaitable[T]]) -> T:
        wait.begin(monotonic())
        engine = call.engine = await self._engines.pick(call.attempt.context)
        wait.end()
        call.began = monotonic()
        try:
            with engine.lease():
                return await once(engine)
        except EngineAway:
            wait.begin(call.began)
            raise

    async def _check_patience(self, call: Call, wait: Wait, error: EngineAway) -> None:
        limit = call.attempt.context.engine_wait_seconds
        log.warning("wait rollout=%s attempt=%s reason=%r", *call.attempt.key, str(error))
        if wait.seconds >= limit:
            raise await self._failed(call, f"no engine answered for {limit:g} s: {error}") from error

    async def _failed(self, call: Call, message: str) -> Refusal:
        """Put a failure of the platform on record, before the agent hears of it."""
        recorded = self._note_failure(call, message)
        try:
            async with asyncio.timeout(FAILURE_SECONDS):
                await asyncio.shield(recorded)
        except (TimeoutError, RelightError):
            log.warning("failure not yet recorded rollout=%s attempt=%s", *call.attempt.key)
        return unavailable(message)

    def _note_failure(self, call: Call, message: str) -> asyncio.Future[None]:
        call.attempt.failed.add(call.prepared.request_hash)
        failure = CallFailure(
            rollout_id=call.attempt.context.rollout_id,
            attempt_id=call.attempt.context.attempt_id,
            token_hash=call.attempt.token_hash,
            call_number=call.number,
            request_hash=call.prepared.request_hash,
            message=message,
        )
        return self._failures.submit(failure)


async def ask(engine: Engine, call: Call) -> dict[str, Any]:
    """Have an engine answer in one piece."""
    async with engine.post(call.prepared.route, call.content) as answer:
        content = await answer.read()
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise EngineAway(f"engine {engine.info.engine_id}: the answer is not JSON: {error}") from error


def read_chunk(engine: Engine, data: bytes) -> dict[str, Any]:
    """One chunk of a stream; vLLM reports what goes wrong midway as a chunk."""
    try:
        chunk = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise EngineAway(f"engine {engine.info.engine_id}: a chunk is not JSON: {error}") from error
    error = chunk.get("error")
    if error is None:
        return chunk
    code = error.get("code") if isinstance(error, dict) else None
    if code in (400, 413, 422):
        raise PassedOn(code, data)
    raise EngineAway(f"engine {engine.info.engine_id}: {str(error)[:200]}")


async def send(exchange: Exchange, pieces: list[bytes]) -> bool:
    """Send an answer, or the end of a stream. True where the agent was still there."""
    if len(pieces) == 1 and not exchange.started:
        return await exchange.answer(pieces[0])
    await asyncio.sleep(0)  # lets a disconnect that has arrived be seen
    if exchange.gone:
        return False
    await exchange.event(b"".join(pieces))
    return await exchange.end()
