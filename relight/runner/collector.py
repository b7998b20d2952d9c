"""Collects the messages of a call's process, and makes the call's outcome from them.

The messages come from the agent's process, so they are validated.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from math import isfinite
from typing import Any, Final

from pydantic import ValidationError

from relight.emitter.attributes import clean_text
from relight.emitter.emit import MAX_FEEDBACK_CHARACTERS
from relight.emitter.reading import get_reward_values
from relight.litagent.returns import Returned
from relight.runner import process_messages as messages
from relight.runner.agent_call import AgentCall, AgentOutcome
from relight.runner.captured_output import OutputTail
from relight.runner.numbering import Numbering
from relight.runner.process_messages import ExitReport, Raised
from relight.semconv import REWARD_FEEDBACK
from relight.types.rollout import FailureClass
from relight.types.wire import SpanRecord

OnSpan = Callable[[SpanRecord], None]

MAX_SPANS: Final = 100_000
MAX_SPAN_BYTES: Final = 128 * 1024 * 1024
_MEMORY_SIGNALS: Final = (signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)


class Collector:
    """One call under way."""

    def __init__(
        self,
        call: AgentCall,
        on_span: OnSpan | None,
        max_spans: int = MAX_SPANS,
        *,
        numbering: Numbering | None = None,
    ) -> None:
        self.call = call
        self.numbering = numbering or Numbering(None)
        self.ended: Returned | Raised | None = None
        self.violation: str | None = None
        self.tail = OutputTail()
        self._max_spans = max_spans
        self._callback_error: Exception | None = None
        self._spans: list[SpanRecord] = []
        self._on_span = on_span or self._spans.append
        self._span_count = self._span_bytes = self._dropped = 0
        self._rewards: dict[str, float] = {}
        self._feedback: str | None = None
        self._has_hooks = False
        self._killed: tuple[FailureClass, str] | None = None
        self._started = time.monotonic()

    def kill(self, reason: FailureClass, detail: str) -> None:
        """Record why it is about to be killed; ignored if its result has come already."""
        if self.ended is None and self._killed is None:
            self._killed = (reason, detail)

    @property
    def killed(self) -> bool:
        return self._killed is not None

    def take(self, _call: int, message: messages.FromAgent, size_bytes: int) -> None:
        """Process one message of the call."""
        match message:
            case messages.SpanMessage(span):
                self._take_span(span, size_bytes)
            case messages.Hooks():
                self._has_hooks = True
            case messages.Output(text):
                self.tail.write(text.encode())
            case Returned(rewards, feedback) if self.ended is None and all(map(isfinite, rewards.values())):
                self.ended = message
                self._keep_rewards(rewards, feedback)
            case Raised() if self.ended is None:
                self.ended = message
            case messages.Number(number) if self.numbering.ask(number):
                pass
            case _:
                self._dropped += 1

    def _take_span(self, raw: Any, size_bytes: int) -> None:
        try:
            span = SpanRecord.model_validate(raw)
        except ValidationError:
            self._dropped += 1
            return
        self._keep_rewards(get_reward_values(span), span.attributes.get(REWARD_FEEDBACK))
        self._span_count += 1
        self._span_bytes += size_bytes
        if self._span_count > self._max_spans or self._span_bytes > MAX_SPAN_BYTES:
            self._dropped += 1
            return
        try:
            self._on_span(span)
        except Exception as error:  # the caller's; raised to it when the call has ended
            self._callback_error = error

    def _keep_rewards(self, rewards: dict[str, float], feedback: Any) -> None:
        """Keep the last rewards."""
        if rewards:
            self._rewards = rewards
            self._feedback = clean_text(feedback, MAX_FEEDBACK_CHARACTERS) if isinstance(feedback, str) else None

    def outcome(self, report: ExitReport, tail: OutputTail | None = None) -> AgentOutcome:
        """The outcome of the call. Raises what `on_span` raised."""
        if self._callback_error is not None:
            raise self._callback_error
        tail = tail or self.tail
        return AgentOutcome(
            **self._ending(report),
            rewards=self._rewards,
            feedback=self._feedback,
            spans=tuple(self._spans),
            spans_dropped=self._dropped,
            hooks_cut=self._has_hooks and (self._killed is not None or self.ended is None),
            exit=report,
            output=tail.text(),
            output_bytes=tail.total_bytes,
            duration_seconds=time.monotonic() - self._started,
        )

    def _ending(self, report: ExitReport) -> dict[str, Any]:
        if self._killed is not None:
            return {"kind": "killed", "reason": self._killed[0], "detail": self._killed[1]}
        if isinstance(self.ended, Returned):
            return {"kind": "returned", "value": self.ended.value, "invalid": self.ended.invalid}
        if self.ended is not None:
            error = {name: clean_text(getattr(self.ended, name)) for name in ("type", "message", "traceback")}
            return {"kind": "raised", "error": error, "out_of_memory": self.ended.out_of_memory}
        if report.lost is not None:
            lost = {"reason": FailureClass.INFRASTRUCTURE, "detail": report.lost, "died_with": not report.excused}
            return {"kind": "died", **lost}
        return {"kind": "died", "detail": self.violation or "", "out_of_memory": self._ran_out_of_memory(report)}

    def _ran_out_of_memory(self, report: ExitReport) -> bool:
        limit = self.call.memory_limit_bytes
        at_limit = limit is not None and report.peak_rss_bytes >= 0.8 * limit
        return report.oom_killed or (at_limit and report.signal in _MEMORY_SIGNALS)
