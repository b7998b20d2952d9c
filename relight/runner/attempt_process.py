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

import orjson

from relight.emitter.scope import set_active_tracer, set_process_scope
from relight.litagent.loading import LoadedAgent
from relight.processes import linux
from relight.runner import agent_process, frames
from relight.runner.attempt_limits import RESERVE_BYTES
from relight.runner.hooked_call import HookedCall


def run(agents: Mapping[str, LoadedAgent], channel: socket.socket) -> NoReturn:
    """Run a forked process to its end."""
    own_pid = os.getpid()
    payload = frames.receive(channel)
    if payload is None:
        os._exit(0)  # the runner has cancelled the call
    request = orjson.loads(payload)
    reporter = agent_process.Reporter(channel)
    _prepare(request)
    set_process_scope(reporter.scope(request["trace_id"]))
    if (tracer := agents[request["agent"]].agent.own_tracer) is not None:
        set_active_tracer(tracer)
    try:
        value = HookedCall(agents, request, reporter).run(wait_for)
    except BaseException as error:  # SystemExit and the like are the agent's failures too
        _lift_memory_limit()
        report = (agent_process.report_error, error)
    else:
        report = (agent_process.report_result, value)
    if os.getpid() != own_pid:
        os._exit(0)  # the agent forked, and the copy returned into this code
    agent_process.flush()
    report[0](reporter, report[1])
    os._exit(0)


def wait_for(value: Awaitable[Any]) -> Any:
    """The result of what is asynchronous."""
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        return loop.run_until_complete(agent_process.awaited(value))


def _prepare(request: Mapping[str, Any]) -> None:
    os.environ.update(request["environment"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = request["memory_limit_bytes"]
    if limit is not None:
        # RLIMIT_DATA counts writable private memory; RLIMIT_AS would also count what is only reserved.
        _limit_data(linux.data_bytes() + limit)
    agent_process.reseed()


def _lift_memory_limit() -> None:
    """Use the reserve, so that the error can be reported."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def _limit_data(limit_bytes: int) -> None:
    """Set a limit that can't be raised by more than the reserve."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = limit_bytes + RESERVE_BYTES
    hard = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (min(limit_bytes, hard), hard))
