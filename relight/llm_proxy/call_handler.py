"""Serves a model call, from the agent's request to the answer.

Without streaming: forward, capture, commit, answer, mark as delivered. With streaming, chunks are passed on as they
arrive, and the end of a choice is held back until the commit. While the engine or the store does not answer, the call
waits and is repeated with its seed and number.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic
from typing import TypeVar

from relight.llm_proxy.attempt_states import GatewayAttempt, GatewayAttempts, RepeatableCall, UndeliveredAnswer
from relight.llm_proxy.capture import read_answer
from relight.llm_proxy.exchange import Exchange
from relight.llm_proxy.limits import GatewayLimits
from relight.llm_proxy.model_call import ModelCall, ask, read_chunk
from relight.llm_proxy.platform_waits import Wait
from relight.llm_proxy.recorder import Recorder
from relight.llm_proxy.request_errors import RequestError
from relight.llm_proxy.requests import Prepared, parse_body, seed_for
from relight.llm_proxy.routing import Router
from relight.llm_proxy.stream_relay import Diverged, StreamRelay
from relight.llm_proxy.streams import replay, split_events
from relight.llm_proxy.targets import Target, TargetUnavailable
from relight.retrying import Backoff, retry

T = TypeVar("T")
log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.05
"""Between two tries to find an engine; doubles with every try."""
LONGEST_PAUSE_SECONDS = 1.0


class CallHandler:
    """Serves model calls."""

    def __init__(self, router: Router, recorder: Recorder, attempts: GatewayAttempts, limits: GatewayLimits) -> None:
        self.closing = asyncio.Event()
        self._router = router
        self._recorder = recorder
        self._attempts = attempts
        self._limits = limits

    async def serve(self, exchange: Exchange, attempt: GatewayAttempt, content: bytes) -> None:
        """Answer one call."""
        dialect = exchange.dialect
        prepared = await self._router.prepare(dialect, attempt.context, dialect.read(parse_body(content)))
        dialect.sampling = prepared.sampling
        attempt.calls += 1
        attempt.touch()
        with attempt.repeatable_call(prepared.request_hash, exchange.declared_retry) as ask:
            async with self._turn(ask, attempt, prepared):
                await self._serve(exchange, attempt, prepared, ask)

    @asynccontextmanager
    async def _turn(self, ask: RepeatableCall, attempt: GatewayAttempt, prepared: Prepared) -> AsyncGenerator[None]:
        began = monotonic()
        try:
            await ask.turn.acquire()
        except asyncio.CancelledError:
            if ask.number is not None and attempt.clock.waiting and monotonic() - began >= self._limits.noticed_seconds:
                repeated = ModelCall(attempt, prepared, ask.number, seed=0)
                self._recorder.note_failure(repeated, "the agent disconnected while the repeated call was waiting")
            raise
        self._recorder.under_way += 1
        try:
            yield
        finally:
            self._recorder.under_way -= 1
            ask.turn.release()

    async def _serve(
        self, exchange: Exchange, attempt: GatewayAttempt, prepared: Prepared, ask: RepeatableCall
    ) -> None:
        undelivered = await self._attempts.undelivered_answer(
            attempt, exchange.token, prepared.request_hash, exchange.declared_retry
        )
        if undelivered is not None:
            ask.number = undelivered.call_number
            await self._replay(exchange, attempt, prepared, undelivered)
            return
        number = ask.number = attempt.take_number(prepared.request_hash)
        seed = seed_for(attempt.context.seed_base, number) if prepared.records_tokens else own_seed(prepared)
        call = ModelCall(attempt, prepared, number, seed)
        try:
            await (self._stream(exchange, call) if prepared.stream else self._whole(exchange, call))
        except RequestError:
            raise
        except Diverged as error:
            raise await self._recorder.failed(
                call, "the stream broke, and its repetition sampled other tokens"
            ) from error
        except Exception as error:
            # Any other error here is a failure of the platform, not of the agent.
            log.exception("call failed rollout=%s attempt=%s", *attempt.key)
            raise await self._recorder.failed(call, "the gateway failed on this call; its log says why") from error

    async def _whole(self, exchange: Exchange, call: ModelCall) -> None:
        try:
            answer = await self._with_retries(call, lambda target: ask(target, call, self._limits))
        except BaseException as error:
            self._note_cut(exchange, call, error)
            call.unused()
            raise
        capture = read_answer(call.prepared, answer)
        await self._recorder.conclude(exchange, call, capture, exchange.dialect.answer(capture.shown))

    async def _replay(
        self, exchange: Exchange, attempt: GatewayAttempt, prepared: Prepared, undelivered: UndeliveredAnswer
    ) -> None:
        log.info("replay rollout=%s attempt=%s call=%d", *attempt.key, undelivered.call_number)
        dialect, shown = exchange.dialect, undelivered.shown
        if prepared.stream:
            dialect.prompt_tokens = (shown.get("usage") or {}).get("prompt_tokens") or 0
            content = b"".join([*map(dialect.chunk, replay(shown)), dialect.end()])
        else:
            content = dialect.answer(shown)
        await self._recorder.deliver(exchange, attempt, undelivered, content, prepared.stream)

    async def _stream(self, exchange: Exchange, call: ModelCall) -> None:
        relay = StreamRelay(exchange.dialect, call.prepared)
        try:
            await self._with_retries(call, lambda target: self._pump(exchange, call, target, relay))
        except asyncio.CancelledError as error:
            if self._note_cut(exchange, call, error) or (sent := relay.close_early()) is None:
                call.unused()
            else:
                self._recorder.close_early(call, sent)
            raise
        except BaseException:
            call.unused()
            raise
        capture, held = relay.finish()
        await self._recorder.conclude(exchange, call, capture, held)

    def _note_cut(self, exchange: Exchange, call: ModelCall, error: BaseException) -> bool:
        """Whether a call ends because this process stops, which is recorded as a failure of the platform."""
        cut = isinstance(error, asyncio.CancelledError) and self.closing.is_set() and not exchange.gone
        if cut:
            self._recorder.note_failure(call, "the gateway stopped before the answer was complete")
        return cut

    async def _pump(self, exchange: Exchange, call: ModelCall, target: Target, relay: StreamRelay) -> None:
        """Pass an engine's stream on, up to what must wait for the commit."""
        relay.restart()
        done = False
        async with target.post(call.prepared.route, call.content) as answer:
            async for data in split_events(self._limits.within(answer.pieces())):
                done = data == b"[DONE]"
                if not done and (events := relay.take(read_chunk(target, data))):
                    await exchange.event(events)
        if not done:
            raise TargetUnavailable(f"{target.name}: the stream ended early")

    async def _with_retries(self, call: ModelCall, once: Callable[[Target], Awaitable[T]]) -> T:
        """Send the call to a suitable engine; retry while none can answer."""
        with call.attempt.clock.call() as wait:
            backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
            on_error = partial(self._check_retry, call, wait, backoff)
            try:
                return await retry(
                    lambda: self._once(call, wait, once), TargetUnavailable, backoff=backoff, on_error=on_error
                )
            except asyncio.CancelledError:
                if wait.active and wait.seconds >= self._limits.noticed_seconds:
                    # The agent disconnected because of the wait: a failure of the platform.
                    self._recorder.note_failure(
                        call, f"the agent disconnected after waiting {wait.seconds:.1f} s for an engine"
                    )
                raise

    async def _once(self, call: ModelCall, wait: Wait, once: Callable[[Target], Awaitable[T]]) -> T:
        wait.begin(monotonic())
        target = call.target = await self._router.pick(call.attempt.context, call.prepared)
        wait.end()
        call.began = monotonic()
        try:
            with target.lease():
                async with asyncio.timeout(self._limits.call_seconds):
                    return await once(target)
        except TargetUnavailable:
            target.failed()
            wait.begin(call.began)
            raise
        except TimeoutError as error:
            message = f"the call took longer than {self._limits.call_seconds:g} s"
            raise await self._recorder.failed(call, message, "call_timeout") from error

    async def _check_retry(self, call: ModelCall, wait: Wait, backoff: Backoff, error: TargetUnavailable) -> float:
        """How long the pause before the next try must be; raises if there is to be none."""
        limit = call.attempt.context.engine_wait_seconds
        level = logging.WARNING if backoff.seconds == FIRST_PAUSE_SECONDS else logging.DEBUG
        log.log(level, "wait rollout=%s attempt=%s reason=%r", *call.attempt.key, str(error))
        if error.final:
            raise await self._recorder.failed(call, str(error)) from error
        if self.closing.is_set():
            raise await self._recorder.failed(call, "this gateway is shutting down; try again") from error
        if wait.seconds >= limit:
            raise await self._recorder.failed(call, f"no engine answered for {limit:g} s: {error}") from error
        return error.retry_after_seconds


def own_seed(prepared: Prepared) -> int:
    """The seed that an agent gave for a model other than the policy; 0 if it gave none."""
    seed = prepared.body.get("seed")
    return seed if type(seed) is int and 0 <= seed < 2**63 else 0
