"""Code of both kinds of agent processes: executing a call and reporting to the runner."""

from __future__ import annotations

import asyncio
import itertools
import os
import select
import socket
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from relight.confinement.permission_hints import remedy
from relight.emitter.attributes import clean_text, flatten, safe_text
from relight.emitter.scope import NUMBER_SECONDS, EmittedSpan, Scope, send
from relight.litagent.agent_arguments import Invocation
from relight.litagent.returns import Returned, parse_return, returned_spans
from relight.runner import frames
from relight.runner import process_messages as messages

_TRACEBACK_HEAD: Final = 4 * 1024
_TRACEBACK_TAIL: Final = 12 * 1024
_OWN_PLACES: Final = tuple(
    str(Path(file).parent) for file in (__file__, sys.modules[Invocation.__module__].__file__ or "", asyncio.__file__)
)

T = TypeVar("T")
AwaitNumber = Callable[[int, int, float], None]
"""Waits for the runner's answer to a question of a call, so many seconds at most."""


class Reporter:
    """Sends what happens in one call to the runner."""

    def __init__(self, channel: socket.socket, call: int = 0, await_answer: AwaitNumber | None = None) -> None:
        self._channel = channel
        self._call = call
        self._await_answer = await_answer or self._read_answer
        self._asked = itertools.count(1)
        self._answered = 0
        self._reading = threading.Lock()
        self._pid = os.getpid()
        self.kept: list[EmittedSpan] = []
        """For hooks: what was sent."""
        self._keeps = False

    def announce_hooks(self) -> None:
        """Say that hooks will run at the end, and keep the spans for them."""
        self._keeps = True
        self.send(messages.Hooks())

    def scope(self, trace_id: str) -> Scope:
        """Where the spans of the call go."""
        return Scope(trace_id, self.span, self.await_number, self.dropped)

    def span(self, span: EmittedSpan) -> None:
        if self._keeps:
            self.kept.append(span)
        if not self._sent(
            messages.SpanMessage(span)
        ):  # OpenTelemetry's attributes may be bytes, or text that no JSON holds
            self.send(messages.SpanMessage({**span, "attributes": flatten(span["attributes"])}))

    def dropped(self) -> None:
        """Count a span that was not sent."""
        self.send(messages.SpanMessage(None))

    def await_number(self) -> None:
        """Wait until what was sent so far has its place. A process that the agent forked goes on without."""
        if os.getpid() == self._pid:
            number = next(self._asked)
            self.send(messages.Number(number))
            self._await_answer(self._call, number, NUMBER_SECONDS)

    def _read_answer(self, call: int, number: int, seconds: float) -> None:
        """Read the channel, which this thread alone reads."""
        deadline = time.monotonic() + seconds
        with self._reading:
            while self._answered < number and is_readable(self._channel, deadline - time.monotonic()):
                payload = frames.receive(self._channel)
                if payload is None:
                    return
                _, answer = messages.decode(payload)
                assert isinstance(answer, messages.Number)
                self._answered = answer.number

    def send(self, message: messages.FromAgent) -> None:
        """Send a message. One that is too long, or that JSON can't represent, is dropped and reported as dropped."""
        if not self._sent(message):
            self.dropped()

    def report(self, ended: Returned | BaseException) -> None:
        """Send how the agent ended: what it returned, or what it raised."""
        self.send(ended if isinstance(ended, Returned) else _described(ended))

    def _sent(self, message: messages.FromAgent) -> bool:
        try:
            frames.send(self._channel, messages.encode(self._call, message))
        except (frames.FrameError, TypeError):
            return False
        return True


def is_readable(channel: socket.socket, seconds: float) -> bool:
    """Wait until there is something to read, so long at most; whether there is."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    return bool(poll.poll(max(seconds, 0.0) * 1000))


async def awaited(value: Awaitable[Any]) -> Any:
    """A coroutine for any awaitable."""
    return await value


def run_without_loop(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never suspends. Unlike in a loop, what it calls may run a loop of its own."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("the coroutine waits for something")


def send_spans(value: Any) -> Returned:
    """Parse the agent's return value, and send its spans; a reward is sent as a span, as if it had been emitted."""
    returned = parse_return(value)
    for span in returned_spans(returned):
        send(span)
    return replace(returned, spans=[])


def _described(error: BaseException) -> messages.Raised:
    hint = remedy(error)
    message = f"{safe_text(error, _TRACEBACK_HEAD)}{hint and '; '}{hint}"
    return messages.Raised(type(error).__name__, message, _traceback(error), _is_memory_error(error))


def _traceback(error: BaseException) -> str:
    """From the agent's own first frame; the middle of a very long one is cut."""
    stack = error.__traceback__
    while stack is not None and stack.tb_frame.f_code.co_filename.startswith(_OWN_PLACES):
        stack = stack.tb_next
    with suppress(Exception):  # formatting calls the user's __str__
        text = "".join(traceback.format_exception(type(error), error, stack or error.__traceback__))
        if len(text) > _TRACEBACK_HEAD + _TRACEBACK_TAIL:
            text = f"{text[:_TRACEBACK_HEAD]}\n... [cut] ...\n{text[-_TRACEBACK_TAIL:]}"
        return clean_text(text)
    return ""


def _is_memory_error(error: BaseException | None, depth: int = 0) -> bool:
    if error is None or depth > 8:
        return False
    return isinstance(error, MemoryError) or _is_memory_error(error.__cause__ or error.__context__, depth + 1)


def reseed() -> None:
    """numpy's global generator would be the same in every fork; Python's own reseeds itself."""
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()


def flush() -> None:
    """Flush the output streams."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the agent may have put anything there
            stream.flush()
