"""One call of an agent and its outcome."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

from pydantic import ConfigDict, Field

from relight.emitter.scope import new_trace_id
from relight.processes.linux import signal_name
from relight.runner.agent_environment import attempt_environment
from relight.runner.process_messages import CallRequest, ExitReport
from relight.types.names import Network
from relight.types.resources import LLM, NamedResources, ProxyLLM
from relight.types.rollout import FailureClass
from relight.types.wire import AgentEnd, OpenedAttempt, SpanRecord

ROLLOUT_FIELDS = {"rollout_id", "mode", "config", "metadata", "resources_id", "resources_version", "run", "step"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCall:
    """A call: an agent by name, a task, and the attempt."""

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
    """Further environment variables, for a process of its own."""
    memory_limit_bytes: int | None = None
    """Memory that each process of the attempt may allocate beyond the fork server's; for a process of its own."""
    alone: bool = False
    """Run it in a process of its own even if others share one."""
    network: Network = "internet"
    """`gateway` takes the web's ports away; for a process of its own."""

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
            network=opened.network,
            **options,
        )

    def by_way_of(self, endpoint: str) -> AgentCall:
        """The same call with another address for its model and for those of its resources at the same gateway."""
        if self.llm is None:
            return self
        gateway, host = urlsplit(self.llm.endpoint), urlsplit(endpoint)
        resources = dict(self.resources)
        for name, model in self.resources.items():
            if isinstance(model, LLM | ProxyLLM) and (url := urlsplit(model.endpoint))[:2] == gateway[:2]:
                there = urlunsplit(url._replace(scheme=host.scheme, netloc=host.netloc))
                resources[name] = model.model_copy(update={"endpoint": there})
        return replace(self, llm=self.llm.model_copy(update={"endpoint": endpoint}), resources=resources)

    def request(self) -> CallRequest:
        """What the agent's process needs."""
        return CallRequest(
            agent=self.agent,
            task=self.task,
            llm=self.llm.model_dump() if self.llm else None,
            resources={name: resource.model_dump() for name, resource in self.resources.items()},
            rollout=self.rollout,
            trace_id=self.trace_id,
            environment=(attempt_environment(self.llm) if self.llm else {}) | dict(self.environment),
            memory_limit_bytes=self.memory_limit_bytes,
        )


def _rollout_of(opened: OpenedAttempt) -> dict[str, Any]:
    now = time.time()
    named = opened.model_dump(include={"rollout_id", "attempt_id", "sequence_id"})
    attempt = named | {"start_time": now, "status": "running"}
    own = {"start_time": now, "status": "running", "attempt": attempt}
    return opened.model_dump(mode="json", include=ROLLOUT_FIELDS) | own


class AgentOutcome(AgentEnd):
    """How a call ended. A failed call is data, not an exception."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["returned", "raised", "died", "killed"]
    """`died`: the process ended without a result. `killed`: the runner killed it, for `reason`."""
    value: Any = None
    """The return value, if its JSON has at most 1 MiB."""
    invalid: str | None = None
    """Why the returned value is neither a reward nor None."""
    spans: tuple[SpanRecord, ...] = ()
    """In order of arrival; empty if the caller took them one by one."""
    hooks_cut: bool = False
    """Its process ended before its last hooks had run."""
    reason: FailureClass | None = None
    """Why it was killed, or `infrastructure` if the platform lost it."""
    detail: str = ""
    """One line about `reason`."""
    exit: ExitReport = Field(default_factory=ExitReport)
    """How its process ended, if it had one of its own."""
    out_of_memory: bool = False
    died_with: bool = False
    """A process that it shared with other attempts died, and it is not known which of them caused that."""

    @property
    def reward(self) -> float | None:
        """The reward to train on."""
        return next(iter(self.rewards.values()), None)

    @property
    def failure_class(self) -> FailureClass | None:
        """None for a call that returned, even without a reward."""
        if self.kind == "returned":
            return FailureClass.INVALID_REWARD if self.invalid else None
        if self.reason is not None:
            return self.reason
        return FailureClass.OUT_OF_MEMORY if self.out_of_memory else FailureClass.AGENT_ERROR

    @property
    def message(self) -> str:
        """A message in one line; empty if the call succeeded."""
        if self.kind == "returned":
            return self.invalid or ""
        if self.error is not None:
            return f"{self.error.type}: {self.error.message}".splitlines()[0][:1000]
        return f"{self.detail or self._ending()}{'; not all its hooks have run' if self.hooks_cut else ''}"

    def _ending(self) -> str:
        memory = " (out of memory)" if self.out_of_memory else ""
        if self.exit.signal is not None:
            return f"the agent's process was ended by {signal_name(self.exit.signal)}{memory}"
        return f"the agent's process exited with {self.exit.code} before it returned{memory}"
