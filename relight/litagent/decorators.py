"""Decorators that make an agent of a function.

The result can still be called as the function. `@rollout` takes any of the parameters; the other two insist on
theirs, as 0.3's do, so that an agent which is tuned by its prompt can't silently ignore the prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from relight.litagent.agent import FunctionalLitAgent, wanted_parameters

Function = Callable[..., Any]
Agent = FunctionalLitAgent[Any]


@overload
def rollout(function: Function, /) -> Agent: ...


@overload
def rollout(*, name: str | None = None) -> Callable[[Function], Agent]: ...


def rollout(function: Function | None = None, /, *, name: str | None = None) -> Agent | Callable[[Function], Agent]:
    """`f(task[, llm][, prompt_template][, rollout][, resources])`, sync or async, is an agent."""
    return _decorated(function, name, None)


@overload
def llm_rollout(function: Function, /) -> Agent: ...


@overload
def llm_rollout(*, strip_proxy: bool = True, name: str | None = None) -> Callable[[Function], Agent]: ...


def llm_rollout(
    function: Function | None = None, /, *, strip_proxy: bool = True, name: str | None = None
) -> Agent | Callable[[Function], Agent]:
    """`f(task, llm[, rollout])` is an agent.

    `strip_proxy` is taken for 0.3's sake: the LLM that an agent gets is bound to its attempt in any case.
    """
    del strip_proxy
    return _decorated(function, name, "llm")


@overload
def prompt_rollout(function: Function, /) -> Agent: ...


@overload
def prompt_rollout(*, name: str | None = None) -> Callable[[Function], Agent]: ...


def prompt_rollout(
    function: Function | None = None, /, *, name: str | None = None
) -> Agent | Callable[[Function], Agent]:
    """`f(task, prompt_template[, rollout])` is an agent."""
    return _decorated(function, name, "prompt_template")


def _decorated(function: Function | None, name: str | None, needed: str | None) -> Agent | Callable[[Function], Agent]:
    def decorate(decorated: Function) -> Agent:
        if needed is not None and needed not in wanted_parameters(decorated):
            what = getattr(decorated, "__qualname__", decorated)
            raise ValueError(f"{what!r} must have a parameter called {needed!r}")
        try:
            return FunctionalLitAgent(decorated, name=name)
        except ValueError as error:
            raise NotImplementedError(str(error)) from None

    return decorate if function is None else decorate(function)
