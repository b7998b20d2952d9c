"""A forked process that runs many attempts at once: async agents as tasks, others in threads.

Each call has a context of its own, to which its spans and its output through `sys.stdout` and `sys.stderr` are
assigned; the output of C libraries and of threads that the agent starts is kept with the process. A task can be
cancelled. A thread, or a task that blocks the loop or ignores its cancellation, can only be killed with the process,
which the runner decides.
"""

from __future__ import annotations

import asyncio
import contextvars
import io
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Mapping
from typing import Any, Final, NoReturn, TextIO

from relight.emitter.attributes import clean_text
from relight.emitter.scope import Scope, close_scope, open_scope, set_context_scope, set_context_tracer
from relight.litagent.loading import LoadedAgent
from relight.runner import agent_process, frames
from relight.runner import process_messages as messages
from relight.runner.hooked_call import HookedCall
from relight.runner.loop_watch import LoopWatch, current_call

_FLUSH_CHARACTERS: Final = 8 * 1024
_CHUNK_CHARACTERS: Final = 256 * 1024


class CallOutput:
    """The output of one call, sent line by line."""

    def __init__(self, reporter: agent_process.Reporter) -> None:
        self._reporter = reporter
        self._held = ""

    def write(self, text: str) -> None:
        self._held += text
        if "\n" in text or len(self._held) >= _FLUSH_CHARACTERS:
            self.flush()

    def flush(self) -> None:
        text, self._held = self._held, ""
        for start in range(0, len(text), _CHUNK_CHARACTERS):
            self._reporter.send(messages.Output(clean_text(text[start : start + _CHUNK_CHARACTERS])))


_output: contextvars.ContextVar[CallOutput | None] = contextvars.ContextVar("relight_output", default=None)


class CallStream(io.TextIOBase):
    """Stands in for `sys.stdout`: text goes to the call in whose context it is written."""

    def __init__(self, process_wide: TextIO) -> None:
        self._process_wide = process_wide

    def write(self, text: str, /) -> int:
        output = _output.get()
        if output is None:
            return self._process_wide.write(text)
        output.write(text)
        return len(text)

    def flush(self) -> None:
        output = _output.get()
        if output is None:
            self._process_wide.flush()
        else:
            output.flush()

    def writable(self) -> bool:
        return True


class SharedProcess:
    """Runs calls as the runner sends them."""

    def __init__(self, agents: Mapping[str, LoadedAgent], channel: socket.socket) -> None:
        self._agents = agents
        self._channel = channel
        self._assembler = frames.Assembler(frames.MAX_REQUEST_BYTES)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._runner_gone = asyncio.Event()
        self._loop_thread = threading.get_ident()
        self._answers: dict[int, int] = {}
        """By call: the last of its questions that the runner has answered."""
        self._answered = threading.Condition()

    async def serve(self) -> None:
        """Serve until the runner is gone."""
        self._context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        LoopWatch(loop, self._channel).start()
        loop.add_reader(self._channel, self._read)
        await self._runner_gone.wait()

    def _read(self) -> None:
        datagram = self._channel.recv(frames.MAX_DATAGRAM_BYTES, socket.MSG_DONTWAIT)
        if not datagram:
            self._runner_gone.set()
            return
        payload = self._assembler.feed(datagram)
        if payload is None:
            return
        match messages.decode(payload):
            case call, messages.EndRequest():
                if (task := self._tasks.get(call)) is not None:  # a task that never ran a step would report nothing
                    asyncio.get_running_loop().call_soon(task.cancel)
            case call, messages.Number(number):
                with self._answered:
                    self._answers[call] = number
                    self._answered.notify_all()
            case call, messages.CallRequest() as request:
                self._begin(call, request)
            case _:
                pass

    def _await_answer(self, call: int, number: int, seconds: float) -> None:
        """Wait until the runner has answered; on the loop's thread, by reading what the loop would read."""
        deadline = time.monotonic() + seconds
        if threading.get_ident() != self._loop_thread:
            with self._answered:
                self._answered.wait_for(lambda: self._answers.get(call, 0) >= number, seconds)
            return
        while self._answers.get(call, 0) < number and not self._runner_gone.is_set():
            if not agent_process.is_readable(self._channel, deadline - time.monotonic()):
                return
            self._read()

    def _begin(self, number: int, request: messages.CallRequest) -> None:
        reporter = agent_process.Reporter(self._channel, number, self._await_answer)
        output = CallOutput(reporter)
        context = self._context.copy()  # not that of an attempt that reads the channel while it waits
        scope = reporter.scope(request.trace_id)
        context.run(set_context_scope, scope)
        open_scope(scope)
        agent = self._agents[request.agent].agent
        context.run(set_context_tracer, agent.own_tracer)
        context.run(_output.set, output)
        context.run(current_call.set, number)
        call = HookedCall(self._agents, request, reporter, None if agent.is_async() else _run_in_new_loop)
        work = self._run(number, call, reporter, output, scope)
        if agent.is_async():
            task = self._tasks[number] = asyncio.get_running_loop().create_task(work, context=context)
            task.add_done_callback(lambda _: self._tasks.pop(number))
        else:
            arguments = (agent_process.run_without_loop, work)
            threading.Thread(target=context.run, args=arguments, daemon=True).start()

    async def _run(
        self, number: int, call: HookedCall, reporter: agent_process.Reporter, output: CallOutput, scope: Scope
    ) -> None:
        try:
            ended = await call.run()
            output.flush()
            reporter.report(ended)
        finally:
            close_scope(scope)
            with self._answered:
                self._answers.pop(number, None)


async def _run_in_new_loop(value: Awaitable[Any]) -> Any:
    return asyncio.run(agent_process.awaited(value))


def run(agents: Mapping[str, LoadedAgent], channel: socket.socket) -> NoReturn:
    """Run a forked process to its end."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    agent_process.reseed()
    sys.stdout = CallStream(sys.stdout)
    sys.stderr = CallStream(sys.stderr)

    async def serve() -> None:
        await SharedProcess(agents, channel).serve()

    asyncio.new_event_loop().run_until_complete(serve())
    os._exit(0)
