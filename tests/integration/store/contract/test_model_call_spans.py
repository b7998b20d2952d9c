"""Model calls in `query_spans`: each once, joined with the tracer's span of the same call."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from relight.adapter import LlmProxyTraceToTriplet, TracerTraceToTriplet, TraceToMessages
from relight.store.attempts.base import AttemptStore
from relight.types.tracer import Span
from relight.types.wire import Choice, DeliveryMark, GenerationRecord, OpenedAttempt, SpanRecord
from tests.integration.store.contract.test_runs import opened
from tests.support import store_kit
from tests.support.lightning_kit import LightningKit

PROXY, TRACER = LlmProxyTraceToTriplet(), TracerTraceToTriplet()
ASKED = [{"role": "system", "content": "calculate"}, {"role": "user", "content": "7*8?"}]
TOOL = {"type": "function", "function": {"name": "mul", "description": "", "parameters": {}}}
CALLED = {"id": "c1", "type": "function", "function": {"name": "mul", "arguments": "{}"}}


class Trace:
    """An attempt that a runner opened, and what writes its calls and spans."""

    def __init__(self, kit: LightningKit, attempts: AttemptStore, attempt: OpenedAttempt) -> None:
        self.store = kit.store
        self.attempt = attempt
        self._attempts = attempts

    async def call(self, number: int = 1, **fields: Any) -> GenerationRecord:
        """A model call, committed."""
        answer = {"role": "assistant", "content": None, "tool_calls": [CALLED]}
        response = {"id": f"chatcmpl-{number}abc", "model": "policy", "choices": [{"index": 0, "message": answer}]}
        values: dict[str, Any] = {
            "request": {"model": "policy", "messages": ASKED, "tools": [TOOL], "temperature": 0.5},
            "response": response,
        }
        record = store_kit.call(self.attempt, number, f"hash-{number}", **(values | fields))
        assert [result.state for result in await self._attempts.commit_generations([record])] == ["committed"]
        return record

    async def span(self, span_id: str, **values: Any) -> Span:
        """A span over the rollout store's protocol; the store numbers it."""
        ids = {"rollout_id": self.attempt.rollout_id, "attempt_id": self.attempt.attempt_id}
        span = Span.model_validate(
            {
                "sequence_id": -1,
                "trace_id": "t",
                "span_id": span_id,
                "name": span_id,
                "start_time": 1.0,
                "end_time": 2.0,
            }
            | ids
            | values
        )
        stored = await self.store.add_span(span)
        assert stored is not None
        return stored

    async def reward(self, value: float) -> Span:
        """A span with a reward."""
        return await self.span(
            f"reward-{value}",
            name="agentlightning.annotation",
            attributes={"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": value},
        )

    async def spans(self, **query: Any) -> list[Span]:
        """What `query_spans` returns."""
        return list(await self.store.query_spans(self.attempt.rollout_id, **query))


@pytest.fixture
async def trace(kit: LightningKit) -> Trace:
    """An open attempt."""
    await kit.begin_run()
    return Trace(kit, await kit.attempts(), await opened(kit))


async def test_a_call_without_a_tracer_is_a_span_that_both_adapters_read(trace: Trace) -> None:
    record = await trace.call(choices=[choice(0, [3, 4]), choice(1, [5])])
    await trace.reward(0.75)
    span, reward = await trace.spans()
    assert (span.name, span.parent_id, span.status.status_code) == ("raw_gen_ai_request", None, "OK")
    assert (span.sequence_id, reward.sequence_id) == (1, 3)
    assert (len(span.trace_id), len(span.span_id)) == (32, 16)
    assert span.start_time is not None
    shown = {name: span.attributes[name] for name in EXPECTED}
    assert shown == EXPECTED
    assert orjson.loads(span.attributes["llm.hosted_vllm.messages"]) == ASKED
    assert orjson.loads(span.attributes["llm.hosted_vllm.choices"]) == record.response["choices"]
    parts = [message["parts"] for message in orjson.loads(span.attributes["gen_ai.input.messages"])]
    assert parts[1] == [{"type": "text", "content": "7*8?"}]
    for adapter in (PROXY, TRACER):
        (triplet,) = adapter.adapt([span, reward])
        assert (triplet.prompt["token_ids"], triplet.response["token_ids"]) == ([1, 2, 1], [3, 4])
        assert [item["logprob"] for item in triplet.response["logprobs"]] == [-0.5, -0.25]
        assert (triplet.prompt["raw_content"], triplet.reward) == (ASKED, 0.75)
        assert triplet.metadata["response_id"] == "chatcmpl-1abc"


async def test_messages_and_tools_of_a_call_are_read_from_its_span(trace: Trace) -> None:
    await trace.call()
    answer = {"role": "assistant", "content": None, "tool_calls": [CALLED]}
    assert TraceToMessages().adapt(await trace.spans()) == [{"messages": [*ASKED, answer], "tools": [TOOL]}]


@pytest.mark.parametrize("span_first", [True, False])
@pytest.mark.parametrize("answer", ["chatcmpl-1abc", "msg_1abc", "resp_1abc"])
async def test_the_tracers_span_stands_for_the_call_whichever_comes_first(
    trace: Trace, span_first: bool, answer: str
) -> None:
    attributes = {"gen_ai.response.id": answer, "gen_ai.prompt.0.content": "as traced", "gen_ai.system": "OpenAI"}
    fields: dict[str, Any] = {"name": "openai.chat.completion", "parent_id": "p", "attributes": attributes}
    if span_first:
        await trace.span("traced", **fields)
    await trace.call()
    if not span_first:
        await trace.span("traced", **fields)
    await trace.reward(1.0)
    span, reward = await trace.spans()
    assert (span.span_id, span.name, span.parent_id) == ("traced", "openai.chat.completion", "p")
    assert span.sequence_id == (2 if span_first else 1), "the call's own"
    assert attributes.items() <= span.attributes.items()
    assert (span.attributes["prompt_token_ids"], span.attributes["response_token_ids"]) == ([1, 2, 1], [3, 4])
    assert not any(name.startswith(("llm.", "gen_ai.input")) for name in span.attributes), "the messages are there once"
    for adapter in (PROXY, TRACER):
        (triplet,) = adapter.adapt([span, reward])
        assert (triplet.prompt["token_ids"], triplet.response["token_ids"]) == ([1, 2, 1], [3, 4])
        assert (triplet.prompt["raw_content"], triplet.reward) == ([{"content": "as traced"}], 1.0)


async def test_a_tracers_span_without_messages_gets_those_of_the_call(trace: Trace) -> None:
    await trace.call()
    await trace.span("traced", name="chat policy", attributes={"gen_ai.response.id": "chatcmpl-1abc"})
    (span,) = await trace.spans()
    assert TRACER.adapt([span])[0].prompt["raw_content"] == ASKED


async def test_of_several_spans_of_a_call_the_innermost_has_the_tokens(trace: Trace) -> None:
    await trace.call()
    same = {"gen_ai.response.id": "chatcmpl-1abc"}
    for name, parent, start in (("inner", "middle", 3.0), ("middle", "outer", 2.0), ("outer", None, 1.0)):
        await trace.span(name, name="openai.chat.completion", parent_id=parent, start_time=start, attributes=same)
    spans = await trace.spans()
    assert [span.span_id for span in spans if "prompt_token_ids" in span.attributes] == ["inner"]
    assert sorted(span.span_id for span in spans) == ["inner", "middle", "outer"]
    for adapter in (PROXY, TRACER):
        assert [triplet.response["token_ids"] for triplet in adapter.adapt(spans)] == [[3, 4]]


async def test_a_call_that_no_tracer_recorded_is_under_the_attempts_root(trace: Trace) -> None:
    await trace.call()
    await trace.span("root", name="session", trace_id="t1")
    await trace.span("child", name="tool", parent_id="root", trace_id="t1")
    await trace.span("emitted", name="agentlightning.operation")
    await trace.span("below", name="agentlightning.message", parent_id="emitted")
    (call,) = await trace.spans(name="raw_gen_ai_request")
    assert (call.parent_id, call.trace_id) == ("root", "t1")
    await trace.span("root2", name="session")
    await trace.span("child2", name="tool", parent_id="root2")
    assert [span.parent_id for span in await trace.spans(name="raw_gen_ai_request")] == [None]


async def test_answers_that_did_not_reach_the_agent_are_not_its_spans(trace: Trace, kit: LightningKit) -> None:
    record = await trace.call()
    key = {"rollout_id": record.rollout_id, "attempt_id": record.attempt_id, "call_number": 1}
    await (await kit.attempts()).mark_delivered([DeliveryMark(**key, delivered="no")])
    await trace.call(2)
    assert [span.attributes["relight.call_number"] for span in await trace.spans()] == [2]


async def test_calls_with_one_answers_id_are_two_spans(trace: Trace) -> None:
    for number in (1, 2):
        await trace.call(number, response={"id": "constant", "choices": []})
    await trace.span("traced", attributes={"gen_ai.response.id": "constant"})
    spans = await trace.spans()
    assert [(span.name, span.sequence_id) for span in spans] == [("traced", 1), ("raw_gen_ai_request", 2)]


async def test_another_models_call_has_messages_and_no_tokens(trace: Trace) -> None:
    other = Choice(index=0, response_token_ids=None, logprobs=None, finish_reason="stop")
    await trace.call(prompt_token_ids=None, choices=[other], engine_id="openai")
    (span,) = await trace.spans()
    assert span.attributes["gen_ai.provider.name"] == "openai"
    (triplet,) = TRACER.adapt([span])
    assert (triplet.prompt["token_ids"], triplet.prompt["raw_content"]) == ([], ASKED)
    assert PROXY.adapt([span]) == []


async def test_the_content_of_a_very_large_call_is_left_out_and_its_size_told(trace: Trace) -> None:
    await trace.call(request={"messages": [{"role": "user", "content": "x" * 5_000_000}]})
    (span,) = await trace.spans()
    assert span.attributes["relight.omitted_content_bytes"] > 5_000_000
    assert [triplet.response["token_ids"] for triplet in PROXY.adapt([span])] == [[3, 4]]


async def test_secrets_in_a_call_are_not_shown(trace: Trace) -> None:
    await trace.call(request={"messages": [{"role": "user", "content": "password=hunter2hunter2"}]})
    (span,) = await trace.spans()
    assert "hunter2" not in str(span.attributes)
    assert "[redacted]" in span.attributes["llm.hosted_vllm.messages"]


async def test_filters_order_and_pages_hold_over_spans_and_calls(trace: Trace) -> None:
    for number in range(1, 6):
        await trace.call(number)
        await trace.span(f"s{number}", name="step", parent_id="p")
    await trace.span("traced", name="step", attributes={"gen_ai.response.id": "chatcmpl-2abc"})
    everything = await trace.spans()
    assert [span.sequence_id for span in everything] == list(range(1, 11))
    found = await trace.store.query_spans(trace.attempt.rollout_id, "latest", name_contains="gen_ai", limit=2, offset=1)
    assert ([span.sequence_id for span in found], found.total) == ([5, 7], 4)
    one = everything[0]
    either = await trace.spans(
        span_id=one.span_id, parent_id="p", filter_logic="or", sort_order="desc", limit=2, offset=4
    )
    assert [span.sequence_id for span in either] == [2, 1]
    assert [span.span_id for span in await trace.spans(trace_id=one.trace_id, limit=1)] == [one.span_id]
    assert [span.sequence_id for span in await trace.spans(sort_by="name", limit=4)] == [1, 5, 7, 9]
    seen: list[int] = []
    cursor: str | None = ""
    while cursor is not None:
        page = await trace.store.query_spans(trace.attempt.rollout_id, limit=3, cursor=cursor)
        seen += [span.sequence_id for span in page]
        cursor = page.next
    assert seen == list(range(1, 11))


async def test_calls_of_another_attempt_or_rollout_are_not_joined(trace: Trace, kit: LightningKit) -> None:
    await trace.call()
    other = Trace(kit, await kit.attempts(), await opened(kit))
    await other.span("theirs", attributes={"gen_ai.response.id": "chatcmpl-1abc"})
    assert [span.name for span in await trace.spans()] == ["raw_gen_ai_request"]
    assert ["prompt_token_ids" in span.attributes for span in await other.spans()] == [False]


async def test_a_span_from_the_runner_is_joined_too(trace: Trace, kit: LightningKit) -> None:
    await trace.call()
    record = SpanRecord(
        trace_id="t", span_id="r", name="chat", start_time=1.0, attributes={"gen_ai.response.id": "chatcmpl-1abc"}
    )
    at = trace.attempt
    assert await (await kit.attempts()).add_spans(at.rollout_id, at.attempt_id, at.fence, [record]) == 1
    (span,) = await trace.spans()
    assert (span.span_id, span.attributes["response_token_ids"]) == ("r", [3, 4])


def choice(index: int, ids: list[int]) -> Choice:
    """An answer."""
    return Choice(index=index, response_token_ids=ids, logprobs=[-0.5, -0.25][: len(ids)], finish_reason="stop")


EXPECTED = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "vllm",
    "gen_ai.request.model": "policy",
    "gen_ai.request.temperature": 0.5,
    "gen_ai.request.seed": 3,
    "gen_ai.response.id": "chatcmpl-1abc",
    "gen_ai.response.model": "policy",
    "gen_ai.response.finish_reasons": ["stop", "stop"],
    "gen_ai.usage.input_tokens": 3,
    "gen_ai.usage.output_tokens": 3,
    "llm.hosted_vllm.id": "chatcmpl-1abc",
    "llm.hosted_vllm.prompt_token_ids": "[1,2,1]",
    "llm.hosted_vllm.response_token_ids": "[[3,4],[5]]",
    "relight.call_number": 1,
}
"""What 0.3's proxy and OpenTelemetry's conventions name."""
