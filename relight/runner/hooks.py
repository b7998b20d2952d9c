"""Calls hooks: with the arguments that they accept, and so that what they raise is recorded and harms nothing."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from relight.emitter.attributes import safe_text
from relight.emitter.emit import emit_exception
from relight.emitter.scope import EmittedSpan, current_scope
from relight.types.hooks import Hook
from relight.types.rollout import AttemptedRollout
from relight.types.tracer import NEXT_NUMBER, Span

log = logging.getLogger(__name__)
Moment = Literal["on_rollout_start", "on_trace_start", "on_trace_end", "on_rollout_end"]


class HookCalls:
    """The hooks of one attempt."""

    def __init__(self, hooks: Sequence[Hook], **arguments: Any) -> None:
        self._hooks = hooks
        self._arguments = arguments
        self.errors: list[str] = []
        """What hooks raised, in order."""

    async def call(self, moment: Moment, **further: Any) -> None:
        """Call this method of each hook, one after the other."""
        for hook in self._hooks:
            try:
                method = getattr(hook, moment)
                result = method(**_accepted(method, {**self._arguments, **further}))
                if inspect.isawaitable(result):
                    await result
            except Exception as error:  # a hook is a user's code, and an attempt does not fail by it
                where = f"{moment} of {type(hook).__name__}"
                self.errors.append(f"{where}: {type(error).__name__}: {safe_text(error)}"[:1000])
                log.warning("hook failed: %s", self.errors[-1])
                if current_scope() is not None:
                    emit_exception(error, {"relight.hook": where})


def _accepted(method: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(method).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(arguments)
    return {name: value for name, value in arguments.items() if name in parameters}


def as_span(span: EmittedSpan, rollout: AttemptedRollout) -> Span:
    """A span as the store takes it, which gives it its number."""
    return Span.from_emitted(span, rollout.rollout_id, rollout.attempt.attempt_id, NEXT_NUMBER)
