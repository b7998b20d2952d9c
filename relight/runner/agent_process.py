"""Code of both kinds of agent processes: executing a call and reporting to the runner."""

from __future__ import annotations

import asyncio
import socket
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import orjson

from relight.emitter.attributes import clean_text
from relight.emitter.emit import reward_attributes
from relight.emitter.names import ANNOTATION
from relight.emitter.recorder import EmittedSpan, make_span, send
from relight.litagent.agent_arguments import Invocation
from relight.litagent.loading import LoadedAgent
from relight.litagent.returns import sort_out
from relight.runner import frames

_TRACEBACK_HEAD: Final = 4 * 1024
_TRACEBACK_TAIL: Final = 12 * 1024
_OWN_PLACES: Final = tuple(
    str(Path(place).parent) for place in (__file__, sys.modules[Invocation.__module__].__file__ or "", asyncio.__file__)
)


class Reporter:
    """Sends what happens in one call to the runner."""

    def __init__(self, channel: socket.socket, call: int = 0) -> None:
        self._channel = channel
        self._call = call

    def span(self, span: EmittedSpan) -> None:
        self.tell("span", span=span)

    def tell(self, op: str, **fields: Any) -> None:
        """Send a message. One that is too long is dropped and reported as dropped."""
        try:
            frames.send(self._channel, orjson.dumps({"op": op, "call": self._call, **fields}))
        except (frames.FrameError, TypeError) as error:
            frames.send(self._channel, orjson.dumps({"op": "dropped", "call": self._call, "message": str(error)}))


def start(agents: Mapping[str, LoadedAgent], request: Mapping[str, Any]) -> Any:
    """The agent's result, or an awaitable for it."""
    given = Invocation(request["task"], llm=request["llm"], resources=request["resources"], rollout=request["rollout"])
    return agents[request["agent"]].agent.invoke(given)


def report_result(reporter: Reporter, value: Any) -> None:
    """Parse and send the agent's return value; a reward is also sent as a span, as if it had been emitted."""
    returned = sort_out(value)
    for span in returned.spans:
        send(span)
    if returned.rewards:
        send(make_span(ANNOTATION, reward_attributes(returned.rewards, returned.feedback)))
    rewards = {"rewards": returned.rewards, "feedback": returned.feedback}
    reporter.tell("result", value=returned.value, invalid=returned.invalid, **rewards)


def report_error(reporter: Reporter, error: BaseException) -> None:
    """Send what the agent raised."""
    described = {"type": type(error).__name__, "message": _message(error), "traceback": _traceback(error)}
    reporter.tell("error", error=described, out_of_memory=_is_memory_error(error))


def _message(error: BaseException) -> str:
    try:
        return clean_text(str(error), _TRACEBACK_HEAD)
    except Exception:  # a user's __str__ may raise anything
        return "<no message>"


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
