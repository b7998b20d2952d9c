"""`LitAgent`, the base class of agents, and the wrapper that makes one from a function.

Method names and parameters are Agent Lightning 0.3's. `training_rollout` runs rollouts in mode `train`, and
`validation_rollout` all others; by default both call `rollout`. An agent that overrides an `_async` method runs
asynchronously.
"""

from __future__ import annotations

import functools
import inspect
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

from relight.emitter.scope import AgentTracer
from relight.litagent.agent_arguments import Invocation
from relight.types.hooks import Hook
from relight.types.resources import NamedResources, ProxyLLM
from relight.types.rollout import AttemptedRollout, Rollout

T = TypeVar("T")
Task = TypeVar("Task", contravariant=True)

PARAMETERS = ("task", "llm", "prompt_template", "rollout", "resources")
"""Names of the parameters that an agent function may have."""


class LitAgent(Generic[T]):
    """Base class of agents: override `rollout` or `rollout_async`, or the methods of each mode.

    Source: Agent Lightning 0.3's class of this name. The methods return None (the reward was emitted, or a grader gives
    it), a number, or numbers by name (see `relight.litagent.returns`).
    """

    name: str | None = None
    """The name by which run files refer to this agent; by default that of the attribute or class in its reference."""

    trained_agents: str | None = None
    """Pattern for the names of the sub-agents whose calls are trained on; None: all."""
    own_tracer: AgentTracer | None = None
    """Makes the agent's spans, such as `OtelTracer(instrument=["openai"])`; None: emitters make theirs themselves. The
    runner initialises it after it has imported the agent, before the first attempt. `agent.tracer = ...` sets it.
    """
    hooks: Sequence[Hook] = ()
    """Called at the start and the end of its attempts and traces, wherever they run."""

    _trainer: weakref.ref[Any] | None = None
    _runner: weakref.ref[Any] | None = None

    def __init__(self, *, trained_agents: str | None = None) -> None:
        """`trained_agents` is deprecated: give the adapter an `agent_match`."""
        if trained_agents is not None:
            message = "trained_agents is deprecated: give the adapter agent_match=..."
            warnings.warn(message, DeprecationWarning, stacklevel=2)
        self.trained_agents = trained_agents

    def set_trainer(self, trainer: Any) -> None:
        """Called by the trainer of this agent; the agent does not keep it alive."""
        self._trainer = weakref.ref(trainer)

    def get_trainer(self) -> Any:
        """The trainer.

        Raises:
            ValueError: there is none.
        """
        return _referred(self._trainer, "trainer")

    trainer = property(get_trainer)

    def set_runner(self, runner: Any) -> None:
        """Called by the runner of this agent; the agent does not keep it alive."""
        self._runner = weakref.ref(runner)

    def get_runner(self) -> Any:
        """The runner.

        Raises:
            ValueError: there is none.
        """
        return _referred(self._runner, "runner")

    runner = property(get_runner)

    def get_tracer(self) -> Any:
        """The agent's own tracer, else the runner's, else the trainer's.

        Raises:
            ValueError: there is none of them.
        """
        if self.own_tracer is not None:
            return self.own_tracer
        runner = self.get_runner()
        return runner.tracer if hasattr(runner, "tracer") else self.get_trainer().tracer

    def set_tracer(self, tracer: AgentTracer | None) -> None:
        """Give the agent a tracer of its own."""
        self.own_tracer = tracer

    tracer = property(get_tracer, set_tracer)

    def is_async(self) -> bool:
        """Whether an `_async` method is overridden."""
        names = ("rollout_async", "training_rollout_async", "validation_rollout_async")
        return any(getattr(type(self), name) is not getattr(LitAgent, name) for name in names)

    def rollout(self, task: T, resources: NamedResources, rollout: Rollout) -> Any:
        """Run one attempt.

        Args:
            task: a row of the data set.
            resources: by name; the attempt's own model is an `LLM` among them.
            rollout: id, mode, configuration and metadata.
        """
        raise NotImplementedError(f"{type(self).__name__} must override rollout or rollout_async")

    async def rollout_async(self, task: T, resources: NamedResources, rollout: Rollout) -> Any:
        """Run one attempt.

        Args:
            task: a row of the data set.
            resources: by name; the attempt's own model is an `LLM` among them.
            rollout: id, mode, configuration and metadata.
        """
        raise NotImplementedError(f"{type(self).__name__} must override rollout or rollout_async")

    def training_rollout(self, task: T, resources: NamedResources, rollout: Rollout) -> Any:
        """Run an attempt in mode `train`."""
        return self.rollout(task, resources, rollout)

    def validation_rollout(self, task: T, resources: NamedResources, rollout: Rollout) -> Any:
        """Run an attempt in another mode, which is not trained on."""
        return self.rollout(task, resources, rollout)

    async def training_rollout_async(self, task: T, resources: NamedResources, rollout: Rollout) -> Any:
        """Run an attempt in mode `train`."""
        return await self.rollout_async(task, resources, rollout)

    async def validation_rollout_async(self, task: T, resources: NamedResources, rollout: Rollout) -> Any:
        """Run an attempt in another mode, which is not trained on."""
        return await self.rollout_async(task, resources, rollout)

    def invoke(self, invocation: Invocation) -> Any:
        """Start an attempt; returns its result, or an awaitable for it."""
        kind = "training_rollout" if invocation.mode == "train" else "validation_rollout"
        method = getattr(self, f"{kind}_async" if self.is_async() else kind)
        return method(invocation.task, invocation.resources, invocation.rollout)


def _referred(reference: weakref.ref[Any] | None, what: str) -> Any:
    """What a reference leads to."""
    if reference is None:
        raise ValueError(f"this agent has no {what}: call set_{what} first")
    if (found := reference()) is None:
        raise ValueError(f"this agent's {what} is gone: keep it as long as the agent runs")
    return found


class FunctionalLitAgent(LitAgent[T]):
    """An agent made from a function, which can still be called."""

    def __init__(self, function: Callable[..., Any], *, strip_proxy: bool = True, name: str | None = None) -> None:
        """With `strip_proxy`, a `ProxyLLM` of the resources is given to the function at the attempt's own address."""
        super().__init__()
        self.function = function
        self.strip_proxy = strip_proxy
        self.name = name or getattr(function, "__name__", None)
        self._wanted = wanted_parameters(function)
        functools.update_wrapper(cast("Callable[..., Any]", self), function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    def rollout(self, task: T, resources: NamedResources, rollout: Rollout) -> Any:
        if self.is_async():
            raise RuntimeError(f"{self.name} is asynchronous; call rollout_async")
        return self._call(task, resources, rollout)

    async def rollout_async(self, task: T, resources: NamedResources, rollout: Rollout) -> Any:
        if not self.is_async():
            raise RuntimeError(f"{self.name} is synchronous; call rollout")
        return await self._call(task, resources, rollout)

    def _call(self, task: T, resources: NamedResources, rollout: Rollout) -> Any:
        return self.invoke(Invocation.of(task, resources, rollout))

    def invoke(self, invocation: Invocation) -> Any:
        """Call the function with the arguments that its parameters name; missing optional ones are left out."""
        rest = {
            name: self._argument(invocation, name)
            for name, optional in self._wanted.items()
            if not (optional and invocation.lacks(name))
        }
        return self.function(invocation.task, **rest)

    def _argument(self, invocation: Invocation, name: str) -> Any:
        value = getattr(invocation, name)
        if not (self.strip_proxy and name == "llm" and isinstance(value, ProxyLLM)):
            return value
        rollout = cast("Rollout", invocation.rollout)  # what a caller of `rollout` gave may have no attempt
        if not isinstance(rollout, AttemptedRollout):
            raise ValueError(f"{self.name} needs an AttemptedRollout for the address of its model, not a Rollout")
        return value.with_attempted_rollout(rollout)


def wanted_parameters(function: Callable[..., Any]) -> dict[str, bool]:
    """The parameters of an agent function other than `task`; True for those with a default.

    Raises:
        ValueError: the signature is not that of an agent; the message says why.
    """
    what = getattr(function, "__qualname__", repr(function))
    parameters = [
        p for p in inspect.signature(function).parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ValueError(f"{what} is a generator; an agent returns its reward")
    if not parameters or parameters[0].name != "task":
        raise ValueError(f"the first parameter of {what} must be called 'task'")
    unknown = [p.name for p in parameters if p.name not in PARAMETERS and p.default is p.empty]
    if unknown:
        raise ValueError(
            f"{what} asks for {', '.join(map(repr, unknown))}; an agent may ask for {', '.join(PARAMETERS)}"
        )
    return {p.name: p.default is not p.empty for p in parameters[1:] if p.name in PARAMETERS}
