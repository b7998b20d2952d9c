"""Queue, rollouts, attempts, waits, statistics, as the published client sees them. For `client_checks.py`."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from uuid import uuid4

from agentlightning.types import Attempt, AttemptedRollout, EnqueueRolloutRequest, Rollout, RolloutConfig
from checks import UNKNOWN, Client, check, dequeued, refused, span_of, status_of


@check
async def what_is_enqueued_comes_back_whole(client: Client) -> None:
    config = RolloutConfig(
        timeout_seconds=60, unresponsive_seconds=30.5, max_attempts=3, retry_condition=["failed", "timeout"]
    )
    task = {"question": "7*8?", "nested": {"numbers": [1, 2.5, None, True]}, "text": "ünï"}
    before = time.time()
    rollout = await client.enqueue_rollout(
        task, mode="val", config=config, metadata={"source": "test", "deep": {"a": 1}}
    )
    assert type(rollout) is Rollout
    assert rollout.rollout_id.startswith("ro-")
    assert rollout.input == task
    assert (rollout.mode, rollout.status, rollout.end_time) == ("val", "queuing", None)
    assert {*rollout.config.retry_condition} == {"failed", "timeout"}
    assert rollout.config.model_copy(update={"retry_condition": config.retry_condition}) == config
    assert rollout.metadata == {"source": "test", "deep": {"a": 1}}
    assert before - 5 <= rollout.start_time <= time.time() + 5
    read = await client.get_rollout_by_id(rollout.rollout_id)
    assert type(read) is Rollout
    assert read == rollout
    assert status_of(await client.dequeue_rollout()) == "preparing"


@check
async def a_rollout_has_defaults(client: Client) -> None:
    rollout = await client.enqueue_rollout("just text")
    assert rollout.input == "just text"
    assert rollout.mode is None
    assert rollout.metadata == {}
    assert rollout.config == RolloutConfig()
    await client.dequeue_rollout()


@check
async def the_queue_is_first_in_first_out(client: Client) -> None:
    requests = [EnqueueRolloutRequest(input={"n": n}, mode="train") for n in range(5)]
    enqueued = await client.enqueue_many_rollouts(requests)
    assert [rollout.input["n"] for rollout in enqueued] == [0, 1, 2, 3, 4]
    first = await client.dequeue_rollout(worker_id="w-fifo")
    assert isinstance(first, AttemptedRollout)
    assert first.rollout_id == enqueued[0].rollout_id
    assert (first.attempt.sequence_id, first.attempt.status) == (1, "preparing")
    assert first.attempt.attempt_id.startswith("at-")
    assert first.attempt.worker_id == "w-fifo"
    rest = await client.dequeue_many_rollouts(limit=10, worker_id="w-fifo")
    assert [rollout.rollout_id for rollout in rest] == [rollout.rollout_id for rollout in enqueued[1:]]
    assert await client.dequeue_many_rollouts(limit=0) == []
    assert await client.dequeue_rollout(worker_id="w-fifo") is None


@check
async def each_rollout_is_dequeued_once(client: Client) -> None:
    enqueued = await client.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(20)])
    taken = await asyncio.gather(*(client.dequeue_rollout(worker_id=f"w-once-{n}") for n in range(30)))
    ids = [rollout.rollout_id for rollout in taken if rollout]
    assert sorted(ids) == sorted(rollout.rollout_id for rollout in enqueued)


@check
async def a_started_rollout_passes_the_queue(client: Client) -> None:
    started = await client.start_rollout({"x": 1}, mode="test", metadata={"k": "v"}, worker_id="w-start")
    assert isinstance(started, AttemptedRollout)
    assert (started.status, started.mode, started.metadata) == ("preparing", "test", {"k": "v"})
    assert (started.attempt.sequence_id, started.attempt.worker_id) == (1, "w-start")
    assert await client.dequeue_rollout() is None
    second = await client.start_attempt(started.rollout_id, worker_id="w-start-2")
    assert (second.attempt.sequence_id, second.status) == (2, "preparing")
    assert second.attempt.worker_id == "w-start-2"
    latest = await client.get_latest_attempt(started.rollout_id)
    assert latest == second.attempt
    attempts = await client.query_attempts(started.rollout_id)
    assert [attempt.sequence_id for attempt in attempts] == [1, 2]
    assert all(isinstance(attempt, Attempt) for attempt in attempts)


@check
async def an_attempt_lives_and_succeeds(client: Client) -> None:
    await client.enqueue_rollout({"task": 1})
    rollout = await client.dequeue_rollout(worker_id="w-life")
    assert rollout is not None
    await client.add_span(span_of(rollout, 1))
    running = await client.get_rollout_by_id(rollout.rollout_id)
    assert isinstance(running, AttemptedRollout)
    assert (running.status, running.attempt.status) == ("running", "running")
    assert running.attempt.last_heartbeat_time is not None
    attempt = await client.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
    assert isinstance(attempt, Attempt)
    assert attempt.status == "succeeded"
    assert attempt.end_time is not None
    done = await client.get_rollout_by_id(rollout.rollout_id)
    assert done is not None
    assert done.status == "succeeded"
    assert done.end_time is not None


@check
async def a_failed_attempt_is_tried_again_as_its_config_says(client: Client) -> None:
    config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    rollout = await client.enqueue_rollout({"task": "retry"}, config=config)
    first = await client.dequeue_rollout()
    assert first is not None
    await client.update_attempt(first.rollout_id, "latest", status="failed")
    assert status_of(await client.get_rollout_by_id(rollout.rollout_id)) == "requeuing"
    second = await dequeued(client)
    assert second.rollout_id == rollout.rollout_id
    assert second.attempt.sequence_id == 2
    await client.update_attempt(second.rollout_id, second.attempt.attempt_id, status="failed")
    assert status_of(await client.get_rollout_by_id(rollout.rollout_id)) == "failed"
    assert await client.dequeue_rollout() is None


@check
async def an_attempt_takes_worker_heartbeat_and_metadata(client: Client) -> None:
    rollout = await client.start_rollout({"x": 2})
    beat = time.time()
    attempt = await client.update_attempt(
        rollout.rollout_id, "latest", worker_id="w-attempt", last_heartbeat_time=beat, metadata={"note": [1, 2]}
    )
    assert attempt.worker_id == "w-attempt"
    assert attempt.last_heartbeat_time is not None
    assert abs(attempt.last_heartbeat_time - beat) < 0.001
    assert attempt.metadata == {"note": [1, 2]}
    worker = await client.get_worker_by_id("w-attempt")
    assert worker is not None
    assert (worker.status, worker.current_rollout_id) == ("busy", rollout.rollout_id)


@check
async def a_rollout_takes_updates_and_keeps_what_is_not_given(client: Client) -> None:
    rollout = await client.start_rollout({"x": 3}, mode="train", metadata={"a": 1})
    config = RolloutConfig(max_attempts=5)
    changed = await client.update_rollout(rollout.rollout_id, input={"x": 4}, mode=None, config=config)
    assert isinstance(changed, Rollout)
    assert (changed.input, changed.mode, changed.metadata) == ({"x": 4}, None, {"a": 1})
    assert changed.config == config
    changed = await client.update_rollout(rollout.rollout_id, metadata={"b": 2}, mode="val")
    assert (changed.metadata, changed.mode, changed.input) == ({"b": 2}, "val", {"x": 4})
    cancelled = await client.update_rollout(rollout.rollout_id, status="cancelled")
    assert cancelled.status == "cancelled"
    assert cancelled.end_time is not None


@check
async def a_requeued_rollout_comes_again(client: Client) -> None:
    rollout = await client.start_rollout({"x": 5})
    requeued = await client.update_rollout(rollout.rollout_id, status="requeuing")
    assert requeued.status == "requeuing"
    again = await client.dequeue_rollout()
    assert again is not None
    assert again.rollout_id == rollout.rollout_id
    assert again.attempt.sequence_id == 2
    assert await client.dequeue_rollout() is None


@check
async def a_cancelled_rollout_leaves_the_queue(client: Client) -> None:
    first = await client.enqueue_rollout({"n": 1})
    second = await client.enqueue_rollout({"n": 2})
    await client.update_rollout(first.rollout_id, status="cancelled")
    taken = await client.dequeue_rollout()
    assert taken is not None
    assert taken.rollout_id == second.rollout_id
    assert await client.dequeue_rollout() is None


@check
async def rollouts_are_found_by_each_filter(client: Client) -> None:
    mark = uuid4().hex
    ids: list[str] = []
    for number, mode in enumerate(("train", "val", "train", "test")):
        rollout = await client.start_rollout({"mark": mark, "n": number}, mode=mode)  # type: ignore[arg-type]
        ids.append(rollout.rollout_id)
    await client.update_rollout(ids[1], status="cancelled")
    queued = await client.enqueue_rollout({"mark": mark})
    ids.append(queued.rollout_id)

    async def found(**filters: Any) -> list[str]:
        return [rollout.rollout_id for rollout in await client.query_rollouts(**filters)]

    assert sorted(await found(rollout_id_in=ids)) == sorted(ids)
    assert await found(rollout_id_in=ids, status_in=["cancelled"]) == [ids[1]]
    assert await found(rollout_id_in=ids, status_in=[]) == []
    assert await found(rollout_id_contains=ids[2][4:]) == [ids[2]]
    both = await found(rollout_id_in=[ids[0]], rollout_id_contains=ids[2][4:], filter_logic="or")
    assert sorted(both) == sorted([ids[0], ids[2]])
    assert await found(rollout_ids=[ids[3]], status=["preparing"]) == [ids[3]]
    by_time = await found(rollout_id_in=ids, sort_by="start_time", sort_order="desc")
    assert by_time == ids[::-1]
    page = await client.query_rollouts(rollout_id_in=ids, sort_by="start_time", limit=2, offset=1)
    assert ([rollout.rollout_id for rollout in page], page.total) == (ids[1:3], 5)
    assert (page.limit, page.offset) == (2, 1)
    mixed = {rollout.rollout_id: type(rollout) for rollout in await client.query_rollouts(rollout_id_in=ids)}
    assert mixed[ids[0]] is AttemptedRollout
    assert mixed[ids[4]] is Rollout
    await client.dequeue_rollout()


@check
async def pages_are_read_to_the_end(client: Client) -> None:
    """Every list that the client pages by limit and offset."""
    rollout = await client.start_rollout({"x": 21})
    for _ in range(4):
        last = await client.start_attempt(rollout.rollout_id)
    for number in range(1, 6):
        await client.add_span(span_of(last, number))
    ids = [(await client.enqueue_rollout({"page": number})).rollout_id for number in range(5)]
    mark = f"rs-pages-{uuid4().hex[:8]}"
    for number in range(5):
        await client.update_resources(f"{mark}-{number}", {})
        await client.update_worker(f"{mark}-{number}", {"number": number})
    lists: list[Callable[..., Awaitable[Any]]] = [
        partial(client.query_rollouts, rollout_id_in=ids, sort_by="start_time"),
        partial(client.query_attempts, rollout.rollout_id),
        partial(client.query_spans, rollout.rollout_id),
        partial(client.query_resources, resources_id_contains=mark, sort_by="resources_id"),
        partial(_workers, client, mark),
    ]
    for query in lists:
        whole, found = list(await query()), list[Any]()
        while page := list(await query(limit=2, offset=len(found))):
            found += page
            assert len(found) <= 5
        assert (found, len(whole)) == (whole, 5), query
    await client.dequeue_many_rollouts(limit=5)


async def _workers(client: Client, name: str, **paging: int) -> list[Any]:
    """As a dashboard asks: the client's own method sends no limit."""
    params = {"worker_id_contains": name, "sort_by": "worker_id", "sort_order": "desc", **paging}
    page = await client._request_json("get", "/workers", params=params)
    names = [worker["worker_id"] for worker in page["items"]]
    assert (page["total"], names) == (5, sorted(names, reverse=True))
    return names


@check
async def workers_are_filtered_by_status_too(client: Client) -> None:
    rollout = await client.start_rollout({"x": 22}, worker_id="w-filter-1")
    await client.update_worker("w-filter-2", {})
    params = {"worker_id_contains": "w-filter", "status_in": "busy"}
    page = await client._request_json("get", "/workers", params=params)
    assert [worker["worker_id"] for worker in page["items"]] == ["w-filter-1"]
    found = await client.query_workers(status_in=["busy"], worker_id_contains="w-filter")
    assert [worker.current_rollout_id for worker in found] == [rollout.rollout_id]


@check
async def a_heartbeat_needs_no_statistics(client: Client) -> None:
    first = await client.update_worker("w-silent")
    assert (first.heartbeat_stats, first.status) == (None, "unknown")
    assert first.last_heartbeat_time is not None
    await client.update_worker("w-silent", {"cpu": 1})
    assert (await client.update_worker("w-silent")).heartbeat_stats == {"cpu": 1}
    null = client._request_json("post", "/workers/w-silent", json={"heartbeat_stats": None})
    assert await refused(null) == 400


@check
async def resources_may_be_named_before_they_are_added(client: Client) -> None:
    name = f"rs-later-{uuid4().hex[:8]}"
    queued = await client.enqueue_rollout({"x": 23}, resources_id=name)
    started = await client.start_rollout({"x": 24}, resources_id=name)
    moved = await client.update_rollout(started.rollout_id, resources_id=name)
    assert [rollout.resources_id for rollout in (queued, started, moved)] == [name] * 3
    added = await client.update_resources(name, {})
    taken = await client.dequeue_rollout()
    assert taken is not None
    assert (taken.rollout_id, taken.resources_id) == (queued.rollout_id, name)
    assert await client.get_resources_by_id(name) == added


@check
async def a_superseded_attempt_may_be_closed_and_moves_nothing(client: Client) -> None:
    first = await client.start_rollout({"x": 25})
    second = await client.start_attempt(first.rollout_id)
    closed = await client.update_attempt(first.rollout_id, first.attempt.attempt_id, status="succeeded")
    assert closed.status == "succeeded"
    assert status_of(await client.get_rollout_by_id(first.rollout_id)) == "preparing"
    await client.update_attempt(first.rollout_id, second.attempt.attempt_id, status="failed")
    assert status_of(await client.get_rollout_by_id(first.rollout_id)) == "failed"
    attempts = await client.query_attempts(first.rollout_id)
    assert [attempt.status for attempt in attempts] == ["succeeded", "failed"]


@check
async def waiting_answers_with_those_that_have_ended(client: Client) -> None:
    first, second = await client.start_rollout({"x": 17}), await client.start_rollout({"x": 18})
    ids = [first.rollout_id, second.rollout_id]
    assert await client.wait_for_rollouts(rollout_ids=ids, timeout=0) == []
    await client.update_attempt(first.rollout_id, "latest", status="succeeded")
    ended = await client.wait_for_rollouts(rollout_ids=[*ids, UNKNOWN], timeout=0.1)
    assert [rollout.rollout_id for rollout in ended] == [first.rollout_id]
    waiting = asyncio.create_task(client.wait_for_rollouts(rollout_ids=ids, timeout=None))
    await client.update_attempt(second.rollout_id, "latest", status="failed")
    ended = await asyncio.wait_for(waiting, 20)
    assert {rollout.rollout_id: rollout.status for rollout in ended} == dict(
        zip(ids, ("succeeded", "failed"), strict=True)
    )


@check
async def what_is_unknown_is_none_or_refused(client: Client) -> None:
    bare = Client(client.server_address_root, retry_delays=(), health_retry_delays=())
    try:
        assert await bare.get_rollout_by_id(UNKNOWN) is None
        assert await bare.get_latest_attempt(UNKNOWN) is None
        assert list(await bare.query_attempts(UNKNOWN)) == []
        assert await refused(bare.start_attempt(UNKNOWN)) >= 400
        assert await refused(bare.update_rollout(UNKNOWN, status="failed")) >= 400
        assert await refused(bare.update_attempt(UNKNOWN, "latest", status="failed")) >= 400
        rollout = await bare.start_rollout({"x": 19})
        lost = span_of(rollout, 1).model_copy(update={"attempt_id": "at-00000000"})
        assert await refused(bare.add_span(lost)) >= 400
    finally:
        await bare.close()


@check
async def bad_queries_are_the_askers_fault(client: Client) -> None:
    assert await refused(client.query_rollouts(sort_by="colour")) == 400
    assert await refused(client.query_rollouts(limit=0)) == 400
    assert await refused(client.query_resources(limit=-2)) == 400
    assert await refused(client.query_spans(UNKNOWN, offset=-1)) == 400
    assert await refused(client._request_json("post", "/rollouts/search", json={"limit": "many"})) == 422


@check
async def statistics_count(client: Client) -> None:
    before = await client.statistics()
    assert {"name", "total_rollouts", "total_attempts", "total_spans", "total_resources", "total_workers"} <= set(
        before
    )
    assert before["uptime"] >= 0
    rollout = await client.start_rollout({"x": 20})
    await client.add_span(span_of(rollout, 1))
    after = await client.statistics()
    assert after["total_rollouts"] == before["total_rollouts"] + 1
    assert after["total_attempts"] == before["total_attempts"] + 1
    assert after["total_spans"] == before["total_spans"] + 1


@check
async def a_pickled_client_and_its_capabilities_work(client: Client) -> None:
    copy = pickle.loads(pickle.dumps(client))
    try:
        assert copy.capabilities == {"thread_safe": True, "async_safe": True, "zero_copy": True, "otlp_traces": True}
        assert copy.otlp_traces_endpoint() == f"{client.server_address_root}/v1/traces"
        assert (await copy.statistics())["total_rollouts"] > 0
    finally:
        await copy.close()
