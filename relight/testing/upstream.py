"""A model server on a port of loopback that answers what a test sets, and keeps what it was asked.

It speaks OpenAI's chat completions and Responses and Anthropic's messages, with and without streaming, at its own
address and at those of attempts (`/rollout/<r>/attempt/<a>/v1/...`), as the gateway does. Any key is good.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Self

from aiohttp import web

from relight.llm_proxy.anthropic_messages import Messages
from relight.llm_proxy.dialects import Dialect
from relight.llm_proxy.request_errors import RequestError
from relight.llm_proxy.responses import Responses
from relight.testing.answers import Answer, ToolCall

JSON = dict[str, Any]
Behaviour = Callable[[web.Request, JSON], Awaitable[web.StreamResponse]]
"""Answers one request, whose body is parsed already."""
Said = str | ToolCall | Answer | Behaviour
DIALECTS: tuple[type[Dialect], ...] = (Dialect, Responses, Messages)


class ScriptedUpstream:
    """Answers calls by a script, in order."""

    def __init__(self, *said: Said, default: str | Answer | None = None) -> None:
        self.url = ""
        """Its base URL, with `/v1`; empty until it is started."""
        self.requests: list[JSON] = []
        """Bodies of the calls."""
        self.headers: list[dict[str, str]] = []
        """Headers of the calls, their names in lower case."""
        self.paths: list[str] = []
        self.script: list[Behaviour] = []
        """What the next calls get."""
        self.default = default
        """What calls get when the script is over; None: an error 500 that says so."""
        self.gate: Callable[[int], Awaitable[None]] | None = None
        """Awaited before each chunk of a stream, with its number."""
        self._runner: web.AppRunner | None = None
        self.add(*said)

    def add(self, *said: Said) -> None:
        """Let the next calls get these: a text, a tool call, an `Answer`, or any behaviour such as a `fault`."""
        self.script += [item if callable(item) else self._saying(item) for item in said]

    @property
    def origin(self) -> str:
        """Its address without a path."""
        return self.url.removesuffix("/v1")

    async def start(self) -> Self:
        """Listen on a free port."""
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_get("/healthz", _healthy)
        app.router.add_get("/rollout/{rollout}/attempt/{attempt}/status", _no_wait)
        app.router.add_post("/{route:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def stop(self) -> None:
        """Close the port and all connections."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/v1/traces"):  # an attempt's spans
            return web.json_response({})
        if _dialect_of(request) is None:
            return await fault(404, f"no such route: {request.path}")(request, {})
        body = await request.json()
        self.requests.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.paths.append(request.path)
        behaviour = self.script.pop(0) if self.script else self.answer
        return await behaviour(request, body)

    async def answer(self, request: web.Request, body: JSON) -> web.StreamResponse:
        """The default answer, in the form that was asked for."""
        if self.default is None:
            message = f"the script has no answer for call {len(self.requests)}: add one, or give the upstream a default"
            return await fault(500, message, **{"x-should-retry": "false"})(request, body)
        return await self._saying(self.default)(request, body)

    def _saying(self, said: str | ToolCall | Answer) -> Behaviour:
        said = Answer(tools=(said,)) if isinstance(said, ToolCall) else said
        answer = Answer(said) if isinstance(said, str) else said

        async def say(request: web.Request, body: JSON) -> web.StreamResponse:
            dialect = _dialect_of(request)
            if dialect is None:
                return await fault(404, f"no such route: {request.path}")(request, body)
            try:
                asked = dialect.read(body)
            except RequestError as error:
                content = dialect.error_body(error)
                return web.Response(status=error.status, body=content, content_type="application/json")
            model = str(asked.get("model"))
            if body.get("stream"):
                return await self._stream(request, dialect, answer, model, _wants_usage(dialect, body))
            return web.Response(body=dialect.answer(answer.whole(model)), content_type="application/json")

        return say

    async def _stream(
        self, request: web.Request, dialect: Dialect, answer: Answer, model: str, with_usage: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for number, chunk in enumerate(answer.chunks(model, with_usage)):
            if self.gate is not None:
                await self.gate(number)
            await response.write(_as_some_providers_write(dialect.chunk(chunk)))
        await response.write(_as_some_providers_write(dialect.end()))
        return response


def _as_some_providers_write(events: bytes) -> bytes:
    """With a comment and CRLF line ends, which the standard of event streams allows."""
    return b": a comment\r\n" + events.replace(b"\n", b"\r\n")


def _dialect_of(request: web.Request) -> Dialect | None:
    return next((dialect() for dialect in DIALECTS if request.path.endswith(f"/v1/{dialect.name}")), None)


def _wants_usage(dialect: Dialect, body: JSON) -> bool:
    """Only chat completions have to be asked for it."""
    return dialect.name != Dialect.name or bool((body.get("stream_options") or {}).get("include_usage"))


async def _healthy(request: web.Request) -> web.StreamResponse:
    return web.json_response({})


async def _no_wait(request: web.Request) -> web.StreamResponse:
    """The gateway's status of an attempt's calls: the platform kept none of them waiting."""
    return web.json_response({"waited_seconds": 0.0, "last_activity_seconds_ago": None})


def fault(status: int, message: Any = "scripted", **headers: str) -> Behaviour:
    """An error with this status: a text in the form of the API that was asked, or any other JSON as it is."""

    async def answer(request: web.Request, body: JSON) -> web.StreamResponse:
        if not isinstance(message, str):
            return web.json_response(message, status=status, headers=headers)
        error = RequestError(status, message, "scripted")
        content = (_dialect_of(request) or Dialect()).error_body(error)
        return web.Response(status=status, body=content, content_type="application/json", headers=headers)

    return answer


def break_off() -> Behaviour:
    """The connection ends without an answer."""

    async def answer(request: web.Request, body: JSON) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()

    return answer
