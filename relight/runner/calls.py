"""One call of an agent, and what came of it."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import orjson

from relight.emitter.recorder import new_trace_id
from relight.types.resources import LLM, NamedResources
from relight.types.rollout import FailureClass
from relight.types.wire import OpenedAttempt, SpanRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCall:
    """What to run: an agent by name, on a task, for one attempt."""

    call_id: str
    """The attempt's id; no two running calls may share one."""
    agent: str
    task: Any
    llm: LLM | None = None
    """The attempt's own model, bound to its URL and key."""
    resources: NamedResources = field(default_factory=dict[str, Any])
    rollout: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """JSON of the `AttemptedRollout` that the agent may ask for, without its input."""
    trace_id: str = field(default_factory=new_trace_id)
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further variables for a process of its own."""
    memory_limit_bytes: int | None = None
    """What each process of the attempt may allocate on top of the template; for a process of its own."""
    alone: bool = False
    """Run it in a process of its own also where others share one."""

    @classmethod
    def from_opened(cls, opened: OpenedAttempt, agent: str, **options: Any) -> AgentCall:
        """The call for an attempt that the store has opened."""
        return cls(
            call_id=opened.attempt_id,
            agent=agent,
            task=opened.input,
            llm=LLM(
                endpoint=opened.base_url,
                model=opened.model,
                api_key=opened.token,
                sampling_parameters=opened.sampling,
            ),
            resources=opened.resources,
            rollout=_rollout_of(opened),
            alone=opened.alone,
            **options,
        )

    def payload(self) -> bytes:
        """What the agent's process needs, as JSON."""
        return orjson.dumps(
            {
                "agent": self.agent,
                "task": self.task,
                "llm": self.llm.model_dump() if self.llm else None,
                "resources": {name: resource.model_dump() for name, resource in self.resources.items()},
                "rollout": self.rollout,
                "trace_id": self.trace_id,
                "environment": self._environment(),
                "memory_limit_bytes": self.memory_limit_bytes,
            },
            option=orjson.OPT_NON_STR_KEYS,
        )

    def _environment(self) -> dict[str, str]:
        if self.llm is None:
            return dict(self.environment)
        model = {"OPENAI_BASE_URL": self.llm.endpoint, "OPENAI_API_KEY": self.llm.api_key or ""}
        return model | dict(self.environment)


def _rollout_of(opened: OpenedAttempt) -> dict[str, Any]:
    now = time.time()
    attempt = {
        "rollout_id": opened.rollout_id,
        "attempt_id": opened.attempt_id,
        "sequence_id": opened.sequence_id,
        "start_time": now,
        "status": "running",
    }
    return {
        "rollout_id": opened.rollout_id,
        "start_time": now,
        "mode": opened.mode,
        "status": "running",
        "config": opened.config.model_dump(mode="json"),
        "run": opened.run,
        "step": opened.step,
        "attempt": attempt,
    }


@dataclass(frozen=True, slots=True)
class AgentError:
    """What an agent raised."""

    type: str
    message: str
    traceback: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOutcome:
    """How a call ended. A call that went badly is data, not an exception."""

    kind: Literal["returned", "raised", "died", "killed"]
    """`died`: the process ended without a result. `killed`: we ended it, for `reason`."""
    value: Any = None
    """What it returned, where JSON holds that in 1 MiB."""
    invalid: str | None = None
    """Why the returned value is neither a reward nor nothing."""
    rewards: Mapping[str, float] = field(default_factory=dict[str, float])
    """The last reward, returned or emitted; the primary one first."""
    spans: tuple[SpanRecord, ...] = ()
    """In the order in which they came; empty where the caller took them one by one."""
    spans_dropped: int = 0
    """Spans beyond the attempt's allowance, or malformed."""
    error: AgentError | None = None
    reason: FailureClass | None = None
    """Why it was killed, or `infrastructure` where the platform lost it."""
    detail: str = ""
    """One line about `reason`."""
    exit_code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False
    output: str = ""
    """The end of what it printed."""
    output_bytes: int = 0
    """How much it printed."""
    died_with: bool = False
    """A process that was not its own alone died, and nobody is known to blame."""
    duration_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_rss_bytes: int = 0
    leftovers_killed: int = 0
    """Processes that outlived the attempt's own and were killed."""

    @property
    def reward(self) -> float | None:
        """The reward to train on."""
        return next(iter(self.rewards.values()), None)

    @property
    def failure_class(self) -> FailureClass | None:
        """None for a call that returned; whether its reward is missing is not judged here."""
        if self.kind == "returned":
            return FailureClass.INVALID_REWARD if self.invalid else None
        if self.reason is not None:
            return self.reason
        return FailureClass.OUT_OF_MEMORY if self.out_of_memory else FailureClass.AGENT_ERROR

    @property
    def message(self) -> str:
        """One line for people; empty where all went well."""
        if self.kind == "returned":
            return self.invalid or ""
        if self.error is not None:
            return f"{self.error.type}: {self.error.message}".splitlines()[0][:1000]
        return self.detail or self._ending()

    def _ending(self) -> str:
        memory = " (out of memory)" if self.out_of_memory else ""
        if self.signal is not None:
            return f"the agent's process was ended by {signal_name(self.signal)}{memory}"
        return f"the agent's process exited with {self.exit_code} before it returned{memory}"


SIGNALS: Final = {int(number): number.name for number in signal.Signals}


def signal_name(number: int) -> str:
    """`SIGSEGV` for 11."""
    return SIGNALS.get(number, f"signal {number}")
