"""A forked process that runs one attempt: it reads the task, runs the agent, sends the result, and exits.

It exits by `os._exit`, so that nothing the agent left (threads, exit handlers, an event loop that never stops) delays
the exit after the result is sent. Before that the caller may kill it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import Awaitable, Mapping
from typing import Any, NoReturn

from relight.emitter.scope import set_active_tracer, set_process_scope
from relight.litagent.loading import LoadedAgent
from relight.processes import linux
from relight.runner import agent_process, frames
from relight.runner import process_messages as messages
from relight.runner.attempt_limits import RESERVE_BYTES
from relight.runner.hooked_call import HookedCall


def run(agents: Mapping[str, LoadedAgent], channel: socket.socket) -> NoReturn:
    """Run a forked process to its end."""
    payload = frames.receive(channel)
    if payload is None:
        os._exit(0)  # the runner has cancelled the call
    _, request = messages.decode(payload)
    assert isinstance(request, messages.CallRequest)
    reporter = agent_process.Reporter(channel)
    _prepare(request)
    set_process_scope(reporter.scope(request.trace_id))
    if (tracer := agents[request.agent].agent.own_tracer) is not None:
        set_active_tracer(tracer)
    ended = agent_process.run_without_loop(HookedCall(agents, request, reporter, wait_for).run())
    if isinstance(ended, BaseException):
        _lift_memory_limit()
    agent_process.flush()
    reporter.report(ended)
    os._exit(0)


async def wait_for(value: Awaitable[Any]) -> Any:
    """The result of what is asynchronous, from a loop of its own, which ends nothing that still runs in it."""
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        return loop.run_until_complete(agent_process.awaited(value))


def _prepare(request: messages.CallRequest) -> None:
    os.environ.update(request.environment)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if request.memory_limit_bytes is not None:
        # RLIMIT_DATA counts writable private memory; RLIMIT_AS would also count what is only reserved.
        limit = linux.data_bytes() + request.memory_limit_bytes
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        most = limit + RESERVE_BYTES  # the limit can't be raised by more
        hard = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (min(limit, hard), hard))
    agent_process.reseed()


def _lift_memory_limit() -> None:
    """Use the reserve, so that the error can be reported."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
