"""Decorators that make an agent from a function, which can still be called.

`@rollout` accepts any of the parameters. The other two require theirs, as in Agent Lightning 0.3, so that an agent
whose prompt is optimised can't ignore the prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from relight.litagent.litagent import FunctionalLitAgent, wanted_parameters

Function = Callable[..., Any]
Agent = FunctionalLitAgent[Any]


@overload
def rollout(function: Function, /) -> Agent: ...


@overload
def rollout(*, name: str | None = None) -> Callable[[Function], Agent]: ...


def rollout(function: Function | None = None, /, *, name: str | None = None) -> Agent | Callable[[Function], Agent]:
    """Make an agent from `f(task[, llm][, prompt_template][, rollout][, resources])`, sync or async.

    Args:
        function: the decorated function, if the decorator has no arguments.
        name: by which run files refer to the agent; by default the function's.

    Raises:
        NotImplementedError: the function has other parameters (0.3's error type).
    """
    return _decorated(function, name, None)


@overload
def llm_rollout(function: Function, /) -> Agent: ...


@overload
def llm_rollout(*, strip_proxy: bool = True, name: str | None = None) -> Callable[[Function], Agent]: ...


def llm_rollout(
    function: Function | None = None, /, *, strip_proxy: bool = True, name: str | None = None
) -> Agent | Callable[[Function], Agent]:
    """Make an agent from `f(task, llm[, rollout])`, sync or async.

    Args:
        function: the decorated function, if the decorator has no arguments.
        strip_proxy: give a `ProxyLLM` of the resources at the attempt's own address; else as it is.
        name: by which run files refer to the agent; by default the function's.

    Raises:
        ValueError: the function has no parameter `llm`, or has unknown ones.
    """
    return _decorated(function, name, "llm", strip_proxy)


@overload
def prompt_rollout(function: Function, /) -> Agent: ...


@overload
def prompt_rollout(*, name: str | None = None) -> Callable[[Function], Agent]: ...


def prompt_rollout(
    function: Function | None = None, /, *, name: str | None = None
) -> Agent | Callable[[Function], Agent]:
    """Make an agent from `f(task, prompt_template[, rollout])`, sync or async.

    Raises:
        ValueError: the function has no parameter `prompt_template`, or has unknown ones.
    """
    return _decorated(function, name, "prompt_template")


def _decorated(
    function: Function | None, name: str | None, needed: str | None, strip_proxy: bool = True
) -> Agent | Callable[[Function], Agent]:
    def decorate(decorated: Function) -> Agent:
        if needed is not None and needed not in wanted_parameters(decorated):
            what = getattr(decorated, "__qualname__", decorated)
            raise ValueError(f"{what!r} must have a parameter called {needed!r}")
        try:
            return FunctionalLitAgent(decorated, strip_proxy=strip_proxy, name=name)
        except ValueError as error:
            raise NotImplementedError(str(error)) from None

    return decorate if function is None else decorate(function)
