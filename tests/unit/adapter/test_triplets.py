"""Spans to triplets: whatever tree they form, nothing raises, no call is lost or counted twice, and order is kept."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from relight.adapter import LlmProxyTraceToTriplet, TracerTraceToTriplet
from relight.adapter.triplet import RewardMatchPolicy, TraceTree
from relight.types.tracer import Span
from tests.support.examples import examples

CHAT = "openai.chat.completion"


def span(number: int, name: str = "work", parent: str | None = None, at: Any = None, **attributes: Any) -> Span:
    start, end = at or (float(number), float(number))
    return Span(
        rollout_id="r",
        attempt_id="a",
        sequence_id=number,
        trace_id="t",
        span_id=f"s{number}",
        parent_id=parent,
        name=name,
        start_time=start,
        end_time=end,
        attributes=attributes,
    )


def call(number: int, parent: str | None = None, at: Any = None, answer: str | None = None, **attributes: Any) -> Span:
    known = {
        "prompt_token_ids": [number],
        "response_token_ids": [number, number],
        "gen_ai.response.id": answer or f"chat-{number}",
    }
    return span(number, CHAT, parent, at, **known, **attributes)


def reward(number: int, value: float, parent: str | None = None) -> Span:
    key = "agentlightning.reward.0"
    return span(number, "agentlightning.annotation", parent, **{f"{key}.name": "primary", f"{key}.value": value})


def agent(number: int, name: str, parent: str | None = None, at: Any = None) -> Span:
    return span(number, "agent", parent, at, **{"agent.name": name})


def ids(triplets: list[Any]) -> list[str | None]:
    return [triplet.metadata["response_id"] for triplet in triplets]


def rewards(triplets: list[Any]) -> list[float | None]:
    return [triplet.reward for triplet in triplets]


# Any tree

times = st.one_of(st.none(), st.tuples(st.floats(0, 10), st.floats(0, 10)).map(lambda pair: (min(pair), max(pair))))


@st.composite
def forests(draw: st.DrawFn) -> list[Span]:
    """Spans whose parents are any of them, themselves, missing ones, or none; ids, numbers and times may repeat."""
    count = draw(st.integers(1, 12))
    spans: list[Span] = []
    for number in range(count):
        at = draw(times) or (None, None)
        made = draw(
            st.sampled_from(
                [
                    call(number, at=at, answer=draw(st.sampled_from(["one", "two", f"own-{number}"]))),
                    reward(number, 1.0),
                    agent(number, "planner", at=at),
                    span(number, at=at),
                    span(number, "raw_gen_ai_request", at=at, prompt_token_ids=[1], response_token_ids=[2]),
                ]
            )
        )
        parent = draw(st.one_of(st.none(), st.integers(0, count - 1).map("s{}".format), st.just("missing")))
        changes = {"parent_id": parent, "sequence_id": draw(st.integers(0, 5))}
        if draw(st.integers(0, 9)) == 0:
            changes["span_id"] = "s0"
        spans.append(made.model_copy(update=changes))
    return spans


@settings(max_examples=examples(50))
@given(spans=forests())
def test_every_span_is_once_in_the_tree_or_reported(spans: list[Span]) -> None:
    tree = TraceTree.from_spans(spans)
    for _ in range(2):
        nodes = tree.traverse()
        assert len({id(node) for node in nodes}) == len(nodes)
        held = [node.span for node in nodes if any(node.span is given for given in spans)]
        left_out = [problem for problem in tree.problems if problem.reason.startswith("left out")]
        assert len(held) + len(left_out) == len(spans)
        assert {item.span_id for item in held} == {item.span_id for item in spans}
        tree.repair_hierarchy()
    assert len(tree.to_json()["children"]) == len(tree.names_tuple()[1])
    assert tree.to_dot().count("[label=") == len(tree.traverse())


@settings(max_examples=examples(50))
@given(spans=forests(), policy=st.sampled_from(RewardMatchPolicy))
def test_no_tree_raises_and_each_answer_counts_once_in_the_order_of_sequence_ids(
    spans: list[Span], policy: RewardMatchPolicy
) -> None:
    triplets, _ = TracerTraceToTriplet(reward_match=policy, exclude_llm_call_in_reward=False).adapt_and_report(spans)
    answers = [answer for answer in ids(triplets) if answer is not None]
    assert len(answers) == len(set(answers))
    distinct: dict[str, Span] = {}
    for item in sorted(spans, key=lambda item: item.sequence_id):
        distinct.setdefault(item.span_id, item)
    wanted = {item.attributes["gen_ai.response.id"] for item in distinct.values() if item.name == CHAT}
    assert set(answers) == wanted
    assert sum(value is not None for value in rewards(triplets)) <= sum("reward" in str(item) for item in spans)
    from_proxy = LlmProxyTraceToTriplet().adapt(spans)
    assert {answer for answer in ids(from_proxy) if answer} >= wanted


# Calls


def test_only_calls_below_a_matching_agent_count_and_the_nearest_agent_is_theirs() -> None:
    spans = [
        span(1),
        agent(2, "planner", "s1"),
        call(3, "s2"),
        agent(4, "writer", "s2"),
        call(5, "s4"),
        call(6, "s1"),
    ]
    assert ids(TracerTraceToTriplet(agent_match="planner").adapt(spans)) == ["chat-3"]
    [written] = TracerTraceToTriplet(agent_match="writ").adapt(spans)
    assert (written.metadata["agent_name"], written.prompt["token_ids"]) == ("writer", [5])
    assert ids(TracerTraceToTriplet().adapt(spans)) == ["chat-3", "chat-5", "chat-6"]


def test_a_judges_calls_below_a_reward_are_left_out_unless_they_are_wanted() -> None:
    spans = [span(1), call(2, "s1"), reward(3, 0.5, "s1"), call(4, "s3")]
    assert ids(TracerTraceToTriplet().adapt(spans)) == ["chat-2"]
    assert ids(TracerTraceToTriplet(exclude_llm_call_in_reward=False).adapt(spans)) == ["chat-2", "chat-4"]


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai.operation.name": "chat", "gen_ai.response.id": "x"},
        {"gen_ai.request.type": "chat", "gen_ai.response.id": "x"},
        {"openinference.span.kind": "LLM"},
    ],
)
def test_calls_that_name_themselves_by_a_convention_count_and_their_wrappers_do_not(attributes: dict[str, Any]) -> None:
    wrapper = span(1, "ChatOpenAI.chat", None, **attributes | {"gen_ai.response.id": "outer"})
    spans = [wrapper, span(2, "chat model", "s1", **attributes)]
    [one] = TracerTraceToTriplet().adapt(spans)
    assert one.metadata["response_id"] == attributes.get("gen_ai.response.id")
    assert TracerTraceToTriplet(llm_call_match="^only these$").adapt(spans) == []


def test_the_gateways_span_of_a_call_that_a_tracer_also_saw_counts_once() -> None:
    raw = span(2, "raw_gen_ai_request", **{"llm.hosted_vllm.id": "chat-1", "llm.hosted_vllm.prompt_token_ids": "[1]"})
    raw.attributes["llm.hosted_vllm.choices"] = "[{'token_ids': [1, 1], 'text': \"it's\"}]"
    for adapter in (TracerTraceToTriplet(), LlmProxyTraceToTriplet()):
        assert ids(adapter.adapt([call(1), raw])) == ["chat-1"]
        [alone] = adapter.adapt([raw])
        assert (alone.prompt["token_ids"], alone.response["token_ids"]) == ([1], [1, 1])


def test_messages_images_logprobs_and_metadata_are_read() -> None:
    parts = '[{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": "file:///a.png"}}]'
    attributes = {
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": parts,
        "gen_ai.prompt.filter": "none",
        "gen_ai.completion.0.content": "4",
        "gen_ai.request.model": "m",
        "logprobs.content": '[{"token": "4", "logprob": -0.5}]',
    }
    [one] = TracerTraceToTriplet().adapt([call(1, **attributes)])
    assert one.prompt["raw_content"] == {"0": {"role": "user", "content": parts}, "filter": "none"}
    assert one.prompt["image_urls"] == ["file:///a.png"]
    assert one.response["raw_content"] == [{"content": "4"}]
    assert one.response["logprobs"] == [{"token": "4", "logprob": -0.5}]
    assert one.metadata["request"] == {"model": "m"}
    assert one.metadata["response"] == {"id": "chat-1"}


def test_opentelemetrys_own_spans_are_read_in_the_order_of_their_ends() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("run", attributes={"agent.name": "planner"}):
        for number in (1, 2):
            known = {"prompt_token_ids": (number,), "response_token_ids": (9,), "gen_ai.response.id": f"c{number}"}
            tracer.start_span(CHAT, attributes=known).end()
        key = "agentlightning.reward.0"
        tracer.start_span("agentlightning.annotation", attributes={f"{key}.name": "p", f"{key}.value": 0.5}).end()
    finished = exporter.get_finished_spans()
    triplets = TracerTraceToTriplet(agent_match="planner").adapt(finished[::-1])
    assert (ids(triplets), rewards(triplets)) == (["c1", "c2"], [None, 0.5])
    assert ids(LlmProxyTraceToTriplet().adapt(finished)) == ["c1", "c2"]


# Rewards


def test_a_reward_goes_to_the_latest_call_before_it_that_has_none_whatever_the_clocks_say() -> None:
    spans = [
        reward(1, 0.9),
        call(2, at=(50.0, 60.0)),
        call(3, at=(1.0, 2.0)),
        reward(4, 0.1),
        reward(5, 0.2),
        call(6),
    ]
    for adapter in (TracerTraceToTriplet(), LlmProxyTraceToTriplet()):
        assert rewards(adapter.adapt(spans)) == [0.2, 0.1, None]


def test_a_reward_among_siblings_stays_with_them() -> None:
    spans = [span(1), agent(2, "a", "s1"), agent(3, "b", "s1"), call(4, "s2"), call(5, "s3"), reward(6, 0.8, "s2")]
    adapter = TracerTraceToTriplet(reward_match=RewardMatchPolicy.FIRST_SIBLING)
    assert rewards(adapter.adapt(spans)) == [0.8, None]
    assert rewards(TracerTraceToTriplet().adapt(spans)) == [None, 0.8]


def test_a_final_reward_is_that_of_the_last_call() -> None:
    tree = TraceTree.from_spans([call(1), call(2), reward(3, 0.5)])
    assert rewards(tree.to_trajectory(final_reward=1.0)) == [None, 1.0]


@pytest.mark.parametrize("output", ['{"type": "reward", "value": 0.5}', '{"type":"reward","value":0.5,"more":1}'])
def test_rewards_of_earlier_versions_count(output: str) -> None:
    task = span(2, "score.task", **{"agentops.task.output": output})
    annotation = span(2, "agentlightning.annotation", reward=0.5)
    for earlier in (task, annotation):
        assert rewards(TracerTraceToTriplet().adapt([call(1), earlier])) == [0.5]


# Parents


def test_a_span_that_lost_its_parent_goes_below_the_shortest_span_around_it() -> None:
    spans = [
        span(1, at=(0.0, 10.0)),
        agent(2, "planner", "s1", (1.0, 9.0)),
        agent(3, "writer", "s2", (2.0, 8.0)),
        call(4, "s1", (3.0, 4.0)),
    ]
    assert ids(TracerTraceToTriplet(agent_match="writer").adapt(spans)) == ["chat-4"]
    assert TracerTraceToTriplet(agent_match="writer", repair_hierarchy=False).adapt(spans) == []


def test_a_span_that_ran_within_two_agents_at_once_is_given_to_neither_and_reported() -> None:
    spans = [
        span(1, at=(0.0, 10.0)),
        agent(2, "left", "s1", (1.0, 9.0)),
        agent(3, "right", "s1", (2.0, 8.0)),
        call(4, "s1", (3.0, 4.0)),
    ]
    triplets, problems = TracerTraceToTriplet(agent_match="left|right").adapt_and_report(spans)
    assert triplets == []
    assert [(problem.span_id, "right and left at once" in problem.reason) for problem in problems] == [("s4", True)]


def test_problems_are_logged_with_their_number(caplog: pytest.LogCaptureFixture) -> None:
    spans = [call(1, "s2"), call(2, "s1"), call(3), span(3)]
    with caplog.at_level(logging.WARNING):
        assert len(TracerTraceToTriplet().adapt(spans)) == 3
    assert "1 of 4 spans: made a root: its parents form a cycle" in caplog.text
    assert "1 of 4 spans: left out: an earlier span has its id" in caplog.text


def test_a_chain_of_thousands_of_spans_is_read() -> None:
    spans = [span(1)] + [span(number, parent=f"s{number - 1}") for number in range(2, 5000)] + [call(5000, "s4999")]
    tree = TraceTree.from_spans(spans)
    tree.repair_hierarchy()
    assert ids(tree.to_trajectory()) == ["chat-5000"]
    assert len(tree.traverse()) == 5000
    assert tree.names_tuple()[0] == "work"


def test_no_spans_are_no_triplets_but_no_tree() -> None:
    assert TracerTraceToTriplet().adapt([]) == LlmProxyTraceToTriplet().adapt([]) == []
    with pytest.raises(ValueError, match="at least one span"):
        TraceTree.from_spans([])


# Drawing


def test_a_drawing_shows_what_matches_and_what_is_above_it() -> None:
    tree = TraceTree.from_spans([span(1, 'a "quoted"\nroot'), agent(2, "planner", "s1"), call(3, "s2"), call(4, "s1")])
    assert '"s2" [label="s2 (agent) [planner]"];' in tree.to_dot()
    only = tree.to_dot("^agent$")
    assert ('"s1" -> "s2"' in only, "s3" in only, "s4" in only) == (True, False, False)


def test_where_graphviz_is_missing_the_source_of_the_drawing_is_kept_and_the_command_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    target = tmp_path / "tree"
    with pytest.raises(RuntimeError, match=r"install Graphviz, then `dot -Tpng -o .*tree\.png"):
        TracerTraceToTriplet().visualize([call(1)], filename=str(target))
    assert target.with_suffix(".dot").read_text().startswith("digraph")


def test_a_call_counts_by_its_span_below_the_agent_though_another_span_has_its_tokens() -> None:
    spans = [
        span(1, "root"),
        agent(2, "writer", "s1"),
        span(3, CHAT, "s2", **{"gen_ai.response.id": "chat-x"}),
        call(4, "s1", answer="chat-x"),
    ]
    for agent_match in (None, "writer"):
        assert ids(TracerTraceToTriplet(agent_match=agent_match).adapt(spans)) == ["chat-x"]


@pytest.mark.parametrize("key", ["gen_ai.prompt." + "0." * 3000 + "role", "gen_ai.prompt." + "9" * 5000])
def test_no_key_of_an_attribute_is_too_deep_or_too_long(key: str) -> None:
    assert ids(TracerTraceToTriplet().adapt([call(1, **{key: "user"})])) == ["chat-1"]
