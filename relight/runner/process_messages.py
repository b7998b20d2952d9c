"""The messages between the runner, the fork server's process and the processes that it forks.

On the wire a message is the JSON `[NUMBER, NAME OF ITS CLASS, FIELDS]`. On the channel of a forked process the number
is that of the call in its process: 0 where it is the only one. On the fork server's socket it is that of the forked
process. What the runner sends is trusted and read by `decode`; what it receives is validated, by `MessageDecoder`.
The classes have no slots: orjson writes what has a `__dict__` faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson

from relight.confinement.domain import HeldProtections
from relight.litagent.returns import Returned
from relight.types.names import Network


@dataclass(frozen=True)
class ForkRequest:
    """To the fork server: fork a process. The channel and the writing end of the output pipe come with it."""

    mode: Literal["attempt", "shared"]
    slot: int
    """The number of its scratch folder."""
    network: Network


@dataclass(frozen=True)
class EndRequest:
    """To the fork server: kill the process with all that it started. To a forked process: cancel the call."""


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """From the fork server: it is ready."""

    agents: Sequence[str]
    """Their names."""
    warnings: Sequence[str]
    threads: int
    held: HeldProtections
    """The protections in its process."""
    pid: int = 0
    """That of its process, which the runner adds."""


@dataclass(frozen=True)
class Forked:
    """From the forked process: it is there."""


@dataclass(kw_only=True)
class ExitReport:
    """From the fork server: how a process ended."""

    code: int | None = None
    signal: int | None = None
    oom_killed: bool = False
    peak_rss_bytes: int = 0
    lost: str | None = None
    """Why the platform lost it; None for a process that ended by itself or was killed on purpose."""
    excused: bool = False
    """It is known that this call did not cause the loss."""


@dataclass(frozen=True, kw_only=True)
class CallRequest:
    """To a forked process: run an agent."""

    agent: str
    task: Any
    llm: Mapping[str, Any] | None = None
    resources: Mapping[str, Any]
    rollout: Mapping[str, Any]
    trace_id: str
    environment: Mapping[str, str]
    """Further environment variables, for a process that runs no other call."""
    memory_limit_bytes: int | None = None


@dataclass(frozen=True)
class Number:
    """From a forked process: answer with this number once the call's spans so far are stored. To it: they are."""

    number: int


@dataclass(frozen=True)
class SpanMessage:
    """From a forked process: a span, which its receiver validates. None: one that was not sent, or another message."""

    span: Any


@dataclass(frozen=True)
class Hooks:
    """From a forked process: hooks will run at the end of the call."""


@dataclass(frozen=True)
class Output:
    """From a forked process: what the call printed."""

    text: str


@dataclass(frozen=True)
class Blocked:
    """From a forked process: the call has blocked the others of its process for so long."""

    seconds: float


@dataclass(frozen=True)
class Raised:
    """From a forked process: what the agent raised. From the fork server, which ends: why no agent can be called."""

    type: str
    message: str
    traceback: str
    out_of_memory: bool = False


FromRunner = ForkRequest | CallRequest | Number | EndRequest
FromForkServer = LoadReport | Raised | Forked | ExitReport
FromAgent = SpanMessage | Number | Hooks | Output | Blocked | Returned | Raised

_FROM_RUNNER: Final = {kind.__name__: kind for kind in (ForkRequest, CallRequest, Number, EndRequest)}


def encode(number: int, message: FromRunner | FromForkServer | FromAgent, option: int | None = None) -> bytes:
    """JSON of a message; `option`: of orjson. A TypeError says that JSON can't represent a value."""
    return orjson.dumps((number, type(message).__name__, message), option=option)


def decode(payload: bytes) -> tuple[int, FromRunner]:
    """The number and the message that the runner sent."""
    number, name, fields = orjson.loads(payload)
    return number, _FROM_RUNNER[name](**fields)
