"""The gateway as an ASGI app: its routes and its background tasks."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from time import monotonic
from typing import Any, cast

import orjson

from relight.errors import RelightError
from relight.llm_proxy.anthropic_messages import Messages
from relight.llm_proxy.attempt_states import GatewayAttempt, GatewayAttempts
from relight.llm_proxy.call_handler import CallHandler
from relight.llm_proxy.dialects import Completions, Dialect
from relight.llm_proxy.engine_health import watch
from relight.llm_proxy.engines import Engine, Engines
from relight.llm_proxy.exchange import ClientDisconnected, Exchange, Receive, Scope, Send
from relight.llm_proxy.limits import GatewayLimits, HeldRequests
from relight.llm_proxy.provider_addresses import AddressGuard
from relight.llm_proxy.recorder import Recorder
from relight.llm_proxy.request_errors import RequestError, internal, no_such_model, no_such_route, unavailable
from relight.llm_proxy.responses import Responses
from relight.llm_proxy.routing import Router
from relight.llm_proxy.token_counts import count_tokens
from relight.llm_proxy.upstreams import Upstreams
from relight.observability.process_reports import REPORT_SECONDS, Doing, keep_reporting, own_report
from relight.retrying import Every
from relight.store.attempts.base import AttemptStore
from relight.types.upstreams import Upstream
from relight.types.wire import WorkerReport

log = logging.getLogger(__name__)
PassOn = Callable[[str, str, bytes, Mapping[str, str]], Awaitable[tuple[int, bytes]]]
"""Sends a request to the store service: method, path, body and headers; returns status and body."""
Serve = Callable[[Exchange, GatewayAttempt, bytes], Awaitable[None]]

DIALECTS = {f"v1/{dialect.name}": dialect for dialect in (Dialect, Completions, Responses, Messages)}
COUNT = "v1/messages/count_tokens"
TRACES = "v1/traces"
ROUTES = (
    *(("POST", path) for path in (*DIALECTS, COUNT, TRACES)),
    ("GET", "v1/models"),
    ("GET", "v1/models/{model}"),
    ("GET", "status"),
)
"""Routes below `/rollout/{rollout}/attempt/{attempt}/`, which need the attempt's key; only `/healthz` needs none."""
PATTERNS = [re.escape(path).replace(re.escape("{model}"), ".+") for _, path in ROUTES]
PATH = re.compile(rf"/rollout/([^/]+)/attempt/([^/]+)/(?:v1/(?=v1/))?({'|'.join(PATTERNS)})")
"""Anthropic's clients append `/v1/messages` to the base URL, which ends with `/v1` for OpenAI's."""
DRAIN_SECONDS = 6.0
"""How long the gateway waits, when it stops, until the store has recorded all calls."""


class Gateway:
    """The ASGI app."""

    def __init__(
        self,
        attempts: GatewayAttempts,
        router: Router,
        calls: CallHandler,
        limits: GatewayLimits,
        admin_token: str | None,
        pass_on: PassOn | None = None,
    ) -> None:
        self.closing = calls.closing
        """Set when the process begins to drain: calls that wait for an engine are then refused."""
        self._attempts = attempts
        self._router = router
        self._calls = calls
        self._limits = limits
        self._held = HeldRequests(limits)
        self._admin_token = admin_token
        self._pass_on = pass_on

    def engines(self) -> list[Engine]:
        """The engines in use, for the metrics."""
        return self._router.engines.in_use()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the gateway serves HTTP only, not {scope['type']}")
        exchange = Exchange(scope, receive, send)
        try:
            if exchange.path == "/healthz":
                await exchange.answer(b'{"status":"ok"}')
            else:
                await self._route(exchange)
        except RequestError as error:
            await exchange.send_error(error)
        except ClientDisconnected:
            return

    async def _route(self, exchange: Exchange) -> None:
        match = PATH.fullmatch(exchange.path)
        if match is None:
            raise no_such_route(exchange.method, exchange.path)
        rollout_id, attempt_id, what = match.groups()
        exchange.dialect = Messages() if what == COUNT else DIALECTS.get(what, Dialect)()
        token = exchange.token
        if exchange.method == "POST" and (what in DIALECTS or what == COUNT):
            # The key is checked before a body is read.
            attempt = await self._attempts.find(rollout_id, attempt_id, token, fresh=exchange.declared_retry)
            with self._held.hold(attempt) as take:
                content = await exchange.read(self._limits.request_bytes, take)
                await self._watched(exchange, attempt, content, self._count if what == COUNT else self._calls.serve)
        elif exchange.method == "POST" and what == TRACES:
            await self._traces(exchange, await self._attempts.find(rollout_id, attempt_id, token))
        elif exchange.method == "GET" and what.startswith("v1/models"):
            await self._models(exchange, rollout_id, attempt_id, what.removeprefix("v1/models").lstrip("/"))
        elif exchange.method == "GET" and what == "status":
            await self._status(exchange, rollout_id, attempt_id)
        else:
            raise no_such_route(exchange.method, exchange.path)

    async def _watched(self, exchange: Exchange, attempt: GatewayAttempt, content: bytes, serve: Serve) -> None:
        """Serve a request; it is cancelled when its agent disconnects."""
        serving = cast("asyncio.Task[None]", asyncio.current_task())
        try:
            async with asyncio.TaskGroup() as group:
                watcher = group.create_task(cancel_on_disconnect(exchange, serving))
                await self._answered(exchange, attempt, content, serve)
                watcher.cancel()
        except asyncio.CancelledError:
            if not exchange.gone:
                raise
            serving.uncancel()

    async def _answered(self, exchange: Exchange, attempt: GatewayAttempt, content: bytes, serve: Serve) -> None:
        try:
            await serve(exchange, attempt, content)
        except RequestError as error:
            await exchange.send_error(error)
        except Exception:
            # Any other error: the agent gets it in the documented shape, and the log has the traceback.
            log.exception("call failed rollout=%s attempt=%s", *attempt.key)
            await exchange.send_error(internal())

    async def _count(self, exchange: Exchange, attempt: GatewayAttempt, content: bytes) -> None:
        counted = await count_tokens(self._router, exchange.dialect, attempt.context, content)
        await exchange.answer(orjson.dumps({"input_tokens": counted}))

    async def _traces(self, exchange: Exchange, attempt: GatewayAttempt) -> None:
        """Pass spans on to the store, which agents may not be able to reach, with the attempt's own key."""
        if self._pass_on is None:
            raise no_such_route(exchange.method, exchange.path)
        sent = {"Authorization": f"Bearer {exchange.token}", "Accept-Encoding": "identity"}
        for name in ("Content-Type", "Content-Encoding"):
            if value := exchange.header(name.lower().encode(), ""):
                sent[name] = value
        try:
            with self._held.hold(attempt) as take:
                content = await exchange.read(self._limits.request_bytes, take, encoded=True)
                status, body = await self._pass_on("POST", f"/{TRACES}", content, sent)
        except RequestError as error:
            if error.status != 429:  # after which exporters drop spans
                raise
            raise unavailable(error.message) from error
        except RelightError as error:
            raise unavailable("the store does not answer; send the spans again later") from error
        await exchange.answer(body, status, content_type=sent.get("Content-Type", "application/json").encode())

    async def _models(self, exchange: Exchange, rollout_id: str, attempt_id: str, asked: str) -> None:
        attempt = await self._attempts.find(rollout_id, attempt_id, exchange.token)
        served = await self._router.models(attempt.context)
        if asked and asked not in served:
            raise no_such_model(asked, ", ".join(served))
        listed = {"object": "list", "data": [card_of(model) for model in served], "has_more": False}
        ends = {"first_id": served[0], "last_id": served[-1]}
        await exchange.answer(orjson.dumps(card_of(asked) if asked else listed | ends))

    async def _status(self, exchange: Exchange, rollout_id: str, attempt_id: str) -> None:
        token = exchange.token
        if self._admin_token is None or not hmac.compare_digest(token.encode(), self._admin_token.encode()):
            await self._attempts.find(rollout_id, attempt_id, token)
        attempt = self._attempts.get(rollout_id, attempt_id)
        clock = self._attempts.clock(rollout_id, attempt_id)
        status = {
            "waiting": clock is not None and clock.waiting,
            "waited_seconds": clock.seconds if clock else 0.0,
            "calls": attempt.calls if attempt else 0,
            "last_activity_seconds_ago": since(attempt.last_activity if attempt else None),
            "platform_failure": attempt is not None and bool(attempt.failed),
        }
        await exchange.answer(orjson.dumps(status))


def since(at: float | None) -> float | None:
    """Seconds since then."""
    return None if at is None else monotonic() - at


def card_of(model: str) -> dict[str, Any]:
    """The description of a model, in the form of OpenAI's and of Anthropic's clients."""
    openais = {"id": model, "object": "model", "created": 0, "owned_by": "relight"}
    return openais | {"type": "model", "display_name": model, "created_at": "1970-01-01T00:00:00Z"}


async def cancel_on_disconnect(exchange: Exchange, serving: asyncio.Task[None]) -> None:
    """Cancel the task that serves a call whose agent has closed the connection."""
    await exchange.wait_until_gone()
    if exchange.gone:
        serving.cancel()


@asynccontextmanager
async def open_gateway(
    store: AttemptStore,
    admin_token: str | None = None,
    limits: GatewayLimits | None = None,
    upstreams: Sequence[Upstream] = (),
    environment: Mapping[str, str] = os.environ,
    guard: AddressGuard | None = None,
    allowed_hosts: Collection[str] = (),
    report_seconds: tuple[float, float] = REPORT_SECONDS,
    pass_on: PassOn | None = None,
) -> AsyncGenerator[Gateway]:
    """The app with its background tasks. At the end, all calls that are not yet recorded are recorded.

    Args:
        store: where calls are recorded.
        admin_token: valid for the status of any attempt.
        limits: on the size and time of calls.
        upstreams: providers that every rollout may call, in addition to those of its run file.
        environment: holds the providers' keys.
        guard: makes the connections to providers.
        allowed_hosts: hosts of providers whose connections it does not make.
        report_seconds: the shortest and the longest interval of its reports to the store.
        pass_on: sends agents' spans to the store service; None: it takes none.
    """
    limits = limits or GatewayLimits()
    attempts, engines = GatewayAttempts(store), Engines(store)
    providers = Upstreams(upstreams, environment, guard, allowed_hosts)
    async with asyncio.TaskGroup() as tasks:
        recorder = Recorder(store, attempts, tasks, limits.mark_seconds)
        beside = [tasks.create_task(batcher.run()) for batcher in recorder.batchers]
        report = partial(_report, attempts, recorder)
        beside += [
            tasks.create_task(keep_reporting(store.register_worker, report, Doing(), report_seconds)),
            tasks.create_task(watch(engines, limits.check_seconds, limits.give_up_seconds)),
            tasks.create_task(_drop_ended(attempts, limits.ended_seconds)),
        ]
        router = Router(engines, providers)
        try:
            calls = CallHandler(router, recorder, attempts, limits)
            yield Gateway(attempts, router, calls, limits, admin_token, pass_on)
        finally:
            await recorder.drain(DRAIN_SECONDS)
            for task in beside:
                task.cancel()
            engines.close()
            await providers.close()


async def _drop_ended(attempts: GatewayAttempts, interval_seconds: float) -> None:
    """Forget attempts soon after they ended, until cancelled."""
    async for _ in Every(interval_seconds, at_once=False):
        with suppress(RelightError):  # while the store does not answer, calls of ended attempts fail at their commit
            await attempts.drop_ended()


def _report(attempts: GatewayAttempts, recorder: Recorder) -> WorkerReport:
    """Report this gateway to the store every 10 s, and forget attempts that ended long ago."""
    attempts.sweep()
    return own_report("gateway", Doing.counted("model calls", recorder.under_way))
