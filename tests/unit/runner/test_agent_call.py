"""Calls made of what the store opened, and what outcomes say."""

from __future__ import annotations

import pytest

from relight.runner.agent_call import AgentCall, AgentOutcome
from relight.runner.process_messages import CallRequest, ExitReport, decode, encode
from relight.types.resources import PromptTemplate
from relight.types.rollout import AttemptedRollout, FailureClass, RolloutConfig
from relight.types.wire import AgentError, OpenedAttempt


def test_an_opened_attempt_becomes_a_call() -> None:
    opened = OpenedAttempt(
        rollout_id="run-s0001-g00-i0",
        attempt_id="at-1",
        sequence_id=2,
        fence=2,
        token="secret",
        base_url="http://gateway/rollout/r/attempt/a/v1",
        step=1,
        run="run",
        mode="train",
        input={"question": "7*8?"},
        resources={"prompt": PromptTemplate(template="{question}")},
        sampling={"temperature": 0.7},
        config=RolloutConfig(timeout_seconds=5),
        alone=True,
    )
    call = AgentCall.from_opened(opened, "calculator", memory_limit_bytes=1)
    assert (call.call_id, call.agent, call.alone, call.memory_limit_bytes) == ("at-1", "calculator", True, 1)
    _, sent = decode(encode(0, call.request()))
    assert isinstance(sent, CallRequest)
    assert sent.environment == {
        "OPENAI_BASE_URL": "http://gateway/rollout/r/attempt/a/v1",
        "OPENAI_API_BASE": "http://gateway/rollout/r/attempt/a/v1",
        "OPENAI_API_KEY": "secret",
        "ANTHROPIC_BASE_URL": "http://gateway/rollout/r/attempt/a",
        "ANTHROPIC_API_KEY": "secret",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://gateway/rollout/r/attempt/a",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20secret",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    assert (sent.llm or {})["sampling_parameters"] == {"temperature": 0.7}
    rollout = AttemptedRollout.model_validate({**sent.rollout, "input": sent.task})
    assert (rollout.mode, rollout.step, rollout.config.timeout_seconds) == ("train", 1, 5)
    assert rollout.attempt.sequence_id == 2


@pytest.mark.parametrize(
    ("outcome", "failure", "message"),
    [
        (AgentOutcome(kind="returned", rewards={"a": 1.0, "b": 2.0}), None, ""),
        (AgentOutcome(kind="returned", invalid="no number"), FailureClass.INVALID_REWARD, "no number"),
        (
            AgentOutcome(kind="raised", error=AgentError("ValueError", "one\ntwo", "")),
            FailureClass.AGENT_ERROR,
            "ValueError: one",
        ),
        (
            AgentOutcome(kind="raised", error=AgentError("MemoryError", "", ""), out_of_memory=True),
            FailureClass.OUT_OF_MEMORY,
            "MemoryError: ",
        ),
        (
            AgentOutcome(kind="died", exit=ExitReport(signal=9), out_of_memory=True),
            FailureClass.OUT_OF_MEMORY,
            "the agent's process was ended by SIGKILL (out of memory)",
        ),
        (
            AgentOutcome(kind="died", reason=FailureClass.INFRASTRUCTURE, detail="the fork server died"),
            FailureClass.INFRASTRUCTURE,
            "the fork server died",
        ),
        (
            AgentOutcome(kind="killed", reason=FailureClass.UNRESPONSIVE, detail="silent", exit=ExitReport(signal=9)),
            FailureClass.UNRESPONSIVE,
            "silent",
        ),
    ],
)
def test_an_outcome_has_a_class_and_one_line(outcome: AgentOutcome, failure: FailureClass | None, message: str) -> None:
    assert outcome.failure_class == failure
    assert outcome.message == message
