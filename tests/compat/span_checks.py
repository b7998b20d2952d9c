"""Spans, resources and workers, as the published client sees them. For `client_checks.py`."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

from agentlightning import LLM, ProxyLLM
from agentlightning.types import PromptTemplate, ResourcesUpdate, Span, Worker
from checks import UNKNOWN, Client, check, span_of
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Link, Status, StatusCode


@check
async def a_span_comes_back_as_it_went(client: Client) -> None:
    rollout = await client.start_rollout({"x": 6})
    span = span_of(rollout, 7, parent_id="00000000000000aa")
    stored = await client.add_span(span)
    assert stored == span
    page = await client.query_spans(rollout.rollout_id)
    assert (len(page), page.total) == (1, 1)
    assert isinstance(page[0], Span)
    assert page[0] == span
    assert await client.add_span(span) is None
    assert (await client.query_spans(rollout.rollout_id)).total == 1


@check
async def many_spans_are_kept_but_for_those_that_are_there(client: Client) -> None:
    rollout = await client.start_rollout({"x": 7})
    spans = [span_of(rollout, number) for number in (1, 2, 3)]
    assert await client.add_many_spans(spans[:2]) == spans[:2]
    assert await client.add_many_spans(spans) == spans[2:]
    assert [span.span_id for span in await client.query_spans(rollout.rollout_id)] == [span.span_id for span in spans]


@check
async def sequence_ids_count_by_rollout(client: Client) -> None:
    rollout = await client.start_rollout({"x": 8})
    pair = (rollout.rollout_id, rollout.attempt.attempt_id)
    assert await client.get_next_span_sequence_id(*pair) == 1
    assert list(await client.get_many_span_sequence_ids([pair, pair])) == [2, 3]
    await client.add_span(span_of(rollout, 100))
    assert await client.get_next_span_sequence_id(*pair) == 101
    second = await client.start_attempt(rollout.rollout_id)
    assert await client.get_next_span_sequence_id(rollout.rollout_id, second.attempt.attempt_id) == 102
    many = await asyncio.gather(*(client.get_next_span_sequence_id(*pair) for _ in range(20)))
    assert sorted(many) == list(range(103, 123))


@check
async def an_opentelemetry_span_is_kept_with_events_and_links(client: Client) -> None:
    rollout = await client.start_rollout({"x": 9})
    tracer = TracerProvider().get_tracer("checks")
    with (
        tracer.start_as_current_span("outer") as outer,
        tracer.start_as_current_span(
            "inner",
            attributes={"gen_ai.request.model": "policy", "tokens": [1, 2, 3]},
            links=[Link(outer.get_span_context())],
        ) as inner,
    ):
        inner.add_event("said", {"words": 3})
        inner.set_status(Status(StatusCode.ERROR, "went wrong"))
    ids = (rollout.rollout_id, rollout.attempt.attempt_id)
    stored = await client.add_otel_span(*ids, inner)  # type: ignore[arg-type]
    assert stored is not None
    assert (stored.name, stored.sequence_id) == ("inner", 1)
    read = (await client.query_spans(rollout.rollout_id))[0]
    assert read == stored
    assert read.attributes["gen_ai.request.model"] == "policy"
    assert list(read.attributes["tokens"]) == [1, 2, 3]  # type: ignore[arg-type]
    assert (read.status.status_code, read.status.description) == ("ERROR", "went wrong")
    assert read.parent_id == f"{outer.get_span_context().span_id:016x}"
    assert (read.events[0].name, read.events[0].attributes) == ("said", {"words": 3})
    assert read.links[0].context.span_id == read.parent_id
    assert read.context is not None
    assert read.context.trace_id == read.trace_id
    assert await client.add_otel_span(*ids, outer, sequence_id=50) is not None  # type: ignore[arg-type]


@check
async def spans_are_found_by_each_filter(client: Client) -> None:
    rollout = await client.start_rollout({"x": 10})
    other = await client.start_rollout({"x": 11})
    trace = "0123456789abcdef0123456789abcdef"
    await client.add_span(span_of(other, 1, "llm.call", trace_id=trace))
    spans = [
        span_of(rollout, 1, "agent", trace_id=trace, span_id="00000000000000a1"),
        span_of(rollout, 2, "llm.call", trace_id=trace, span_id="00000000000000a2", parent_id="00000000000000a1"),
        span_of(rollout, 3, "tool", trace_id="f" * 32, span_id="00000000000000b3", parent_id="00000000000000a1"),
    ]
    await client.add_many_spans(spans)

    async def found(**filters: Any) -> list[int]:
        return [span.sequence_id for span in await client.query_spans(rollout.rollout_id, **filters)]

    assert await found() == [1, 2, 3]
    assert await found(trace_id=trace) == [1, 2]
    assert await found(trace_id_contains="89abc") == [1, 2]
    assert await found(span_id="00000000000000b3") == [3]
    assert await found(span_id_contains="00a") == [1, 2]
    assert await found(parent_id="00000000000000a1") == [2, 3]
    assert await found(parent_id_contains="a1") == [2, 3]
    assert await found(name="tool") == [3]
    assert await found(name_contains="l") == [2, 3]
    assert await found(name="tool", trace_id=trace) == []
    assert await found(name="tool", trace_id=trace, filter_logic="or") == [1, 2, 3]
    assert await found(sort_by="sequence_id", sort_order="desc") == [3, 2, 1]
    assert await found(sort_by="name") == [1, 2, 3]
    assert await found(limit=2, offset=1) == [2, 3]
    page = await client.query_spans(rollout.rollout_id, limit=1, offset=5)
    assert (list(page), page.total, page.limit, page.offset) == ([], 3, 1, 5)


@check
async def spans_are_found_by_attempt(client: Client) -> None:
    rollout = await client.start_rollout({"x": 12})
    await client.add_span(span_of(rollout, 1))
    second = await client.start_attempt(rollout.rollout_id)
    await client.add_span(span_of(second, 2))
    by_first = await client.query_spans(rollout.rollout_id, rollout.attempt.attempt_id)
    assert [span.sequence_id for span in by_first] == [1]
    assert [span.sequence_id for span in await client.query_spans(rollout.rollout_id, "latest")] == [2]
    assert list(await client.query_spans(UNKNOWN)) == []


@check
async def resources_have_versions_and_a_latest(client: Client) -> None:
    added = await client.add_resources(
        {
            "llm": LLM(endpoint="http://127.0.0.1:9/v1", model="policy", sampling_parameters={"temperature": 0.5}),
            "proxy": ProxyLLM(endpoint="http://127.0.0.1:9", model="policy", api_key=None),
            "prompt": PromptTemplate(template="Say {word}", engine="f-string"),
        }
    )
    assert isinstance(added, ResourcesUpdate)
    assert added.resources_id.startswith("rs-")
    assert added.version == 1
    assert isinstance(added.resources["llm"], LLM)
    assert isinstance(added.resources["proxy"], ProxyLLM)
    assert isinstance(added.resources["prompt"], PromptTemplate)
    assert added.resources["prompt"].format(word="hi") == "Say hi"
    assert await client.get_resources_by_id(added.resources_id) == added
    assert await client.get_latest_resources() == added
    changed = await client.update_resources(
        added.resources_id, {"llm": LLM(endpoint="http://127.0.0.1:8", model="new")}
    )
    assert (changed.version, list(changed.resources)) == (2, ["llm"])
    assert changed.create_time == added.create_time
    assert changed.update_time >= added.update_time
    assert await client.get_latest_resources() == changed
    assert await client.get_resources_by_id("rs-000000000000") is None


@check
async def a_rollout_takes_the_latest_resources_or_those_it_names(client: Client) -> None:
    first = await client.add_resources({"prompt": PromptTemplate(template="one", engine="f-string")})
    second = await client.update_resources("rs-by-name", {"prompt": PromptTemplate(template="two", engine="jinja")})
    assert (second.resources_id, second.version >= 1) == ("rs-by-name", True)
    rollout = await client.enqueue_rollout({"x": 13})
    named = await client.enqueue_rollout({"x": 14}, resources_id=first.resources_id)
    assert (rollout.resources_id, named.resources_id) == ("rs-by-name", first.resources_id)
    assert len(await client.dequeue_many_rollouts(limit=2)) == 2
    page = await client.query_resources(resources_id_contains="by-na")
    assert [update.resources_id for update in page] == ["rs-by-name"]
    page = await client.query_resources(resources_id=first.resources_id)
    assert (list(page), page.total) == ([first], 1)
    newest = await client.query_resources(sort_by="update_time", sort_order="desc", limit=1)
    assert newest[0] == second


@check
async def a_worker_is_idle_or_busy_and_keeps_its_statistics(client: Client) -> None:
    name = f"w-{uuid4().hex[:8]}"
    assert await client.get_worker_by_id(name) is None
    worker = await client.update_worker(name, {"cpu": 0.5, "gpus": [{"name": "none"}]})
    assert isinstance(worker, Worker)
    assert worker.heartbeat_stats == {"cpu": 0.5, "gpus": [{"name": "none"}]}
    assert worker.last_heartbeat_time is not None
    assert await client.dequeue_rollout(worker_id=name) is None
    idle = await client.get_worker_by_id(name)
    assert idle is not None
    assert (idle.status, idle.current_rollout_id) == ("idle", None)
    assert idle.last_dequeue_time is not None
    await client.enqueue_rollout({"x": 15})
    rollout = await client.dequeue_rollout(worker_id=name)
    assert rollout is not None
    busy = await client.get_worker_by_id(name)
    assert busy is not None
    assert (busy.status, busy.current_attempt_id) == ("busy", rollout.attempt.attempt_id)
    assert busy.current_rollout_id == rollout.rollout_id
    assert busy.heartbeat_stats == {"cpu": 0.5, "gpus": [{"name": "none"}]}
    await client.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
    done = await client.get_worker_by_id(name)
    assert done is not None
    assert (done.status, done.current_rollout_id, done.last_idle_time is not None) == ("idle", None, True)


@check
async def workers_are_found_by_each_filter(client: Client) -> None:
    mark = uuid4().hex[:8]
    for number in range(3):
        await client.update_worker(f"w-{mark}-{number}", {"n": number})
    await client.start_rollout({"x": 16}, worker_id=f"w-{mark}-1")
    page = await client.query_workers(worker_id_contains=mark, sort_by="worker_id")
    assert ([worker.worker_id[-1] for worker in page], page.total) == (["0", "1", "2"], 3)
    busy = await client.query_workers(worker_id_contains=mark, status_in=["busy"])
    assert [worker.worker_id for worker in busy] == [f"w-{mark}-1"]
    asked = {"worker_id_contains": mark, "sort_by": "worker_id", "sort_order": "desc", "limit": 1, "offset": 1}
    raw = await client._request_json("post", "/workers/search", json=asked)  # its method forgets limit and offset
    assert ([Worker.model_validate(item).worker_id[-1] for item in raw["items"]], raw["total"]) == (["1"], 3)
