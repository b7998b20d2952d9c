"""The life of a forked process that runs one attempt: read the task, run the agent, send the result, end.

It ends by `os._exit`: nothing that the agent left behind (threads, exit handlers, an event loop that never stops)
can hold it up once the result is sent. What the agent does before that is the caller's to judge, by killing it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import resource
import socket
from collections.abc import Awaitable, Mapping
from typing import Any, NoReturn

import orjson

from relight.emitter.recorder import Scope, set_process_scope
from relight.litagent.loading import LoadedAgent
from relight.processes import linux
from relight.runner import agent_process, frames


def run(agents: Mapping[str, LoadedAgent], channel: socket.socket) -> NoReturn:
    """Everything, from a fresh fork to its end."""
    own_pid = os.getpid()
    payload = frames.receive(channel)
    if payload is None:
        os._exit(0)  # the runner changed its mind
    request = orjson.loads(payload)
    reporter = agent_process.Reporter(channel)
    _prepare(request)
    set_process_scope(Scope(request["trace_id"], reporter.span))
    try:
        value = finish(agent_process.start(agents, request))
    except BaseException as error:  # SystemExit and the like are the agent's failures too
        _lift_memory_limit()
        report = (agent_process.report_error, error)
    else:
        report = (agent_process.report_result, value)
    if os.getpid() != own_pid:
        os._exit(0)  # the agent forked, and this copy of it ran into our code
    agent_process.flush()
    report[0](reporter, report[1])
    os._exit(0)


def finish(value: Any) -> Any:
    """What an agent returned, or, for an asynchronous one, what comes of it."""
    return _wait_for(value) if inspect.isawaitable(value) else value


def _wait_for(value: Awaitable[Any]) -> Any:
    async def wait() -> Any:
        return await value

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        return loop.run_until_complete(wait())


def _prepare(request: Mapping[str, Any]) -> None:
    os.environ.update(request["environment"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = request["memory_limit_bytes"]
    if limit is not None:
        # RLIMIT_DATA counts writable private memory; RLIMIT_AS would also count what is only reserved.
        _limit_data(linux.data_bytes() + limit)
    agent_process.reseed()


def _lift_memory_limit() -> None:
    """So that there is room to say what happened."""
    _limit_data(resource.getrlimit(resource.RLIMIT_DATA)[1])


def _limit_data(soft: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
