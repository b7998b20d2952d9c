"""Tokens that are limited to a run: what belongs to the run is permitted, and nothing else is shown or changed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from relight.errors import ForbiddenError
from relight.store.attempts.client import StoreClient
from relight.store.client import LightningStoreClient
from relight.store_api.grants import CONTENT
from relight.types.store import Dispatch
from relight.types.wire import OpenedAttempt, OpenRequest, WorkerReport
from tests.integration.operations.token_bench import OTHER, OWN_QUEUE, Bench, all_routes
from tests.support.otlp import make_request, make_span
from tests.support.seeds import RUN
from tests.support.store_kit import call
from tests.support.store_service import TOKEN

OWN: list[tuple[str, str, Any]] = [
    ("GET", "/v1/relight/runs/{run}", None),
    ("GET", "/v1/relight/runs/{run}/steps", None),
    ("GET", "/v1/relight/runs/{run}/rollouts", None),
    ("GET", "/v1/relight/runs/{run}/versions", None),
    ("GET", "/v1/relight/runs/{run}/audit", None),
    ("GET", "/v1/relight/runs/{run}/events?follow=false", None),
    ("GET", "/v1/relight/events?follow=false&run={run}", None),
    ("GET", "/v1/relight/engines?run={run}", None),
    ("GET", "/v1/relight/commands/{command}", None),
    ("GET", "/v1/relight/rollouts/{rollout}", None),
    ("GET", "/v1/relight/rollouts/{rollout}/generations", None),
    ("GET", "/v1/relight/attempts/{attempt}/transcript", None),
    ("POST", "/v1/relight/runs/{run}/pause?wait=0", {}),
    (
        "POST",
        "/v1/relight/attempts/open",
        {"rollout_id": "{rollout}", "try_number": 1, "execution": "x1", "worker_id": "w"},
    ),
    ("POST", "/v1/relight/attempts/heartbeat", {"attempt_id": "{attempt}", "fence": "{fence}", "worker_id": "w"}),
    (
        "POST",
        "/v1/relight/attempts/spans",
        {"rollout_id": "{rollout}", "attempt_id": "{attempt}", "fence": None, "spans": []},
    ),
    ("POST", "/v1/relight/gateway/resolve", {"rollout_id": "{rollout}", "attempt_id": "{attempt}", "token": "{token}"}),
    (
        "POST",
        "/v1/relight/gateway/delivered",
        {
            "items": [
                {"rollout_id": "{rollout}", "attempt_id": "{attempt}", "call_number": 1, "delivered": "yes"},
            ]
        },
    ),
    ("GET", "/v1/agl/rollouts/{rollout}", None),
    ("GET", "/v1/agl/rollouts/{rollout}/attempts", None),
    ("GET", "/v1/agl/rollouts/{rollout}/attempts/latest", None),
    ("POST", "/v1/agl/rollouts/{rollout}/attempts/search", {}),
    ("GET", "/v1/agl/resources/{resources}", None),
    ("GET", "/v1/agl/spans?rollout_id={rollout}", None),
    ("POST", "/v1/agl/spans/search", {"rollout_id": "{rollout}", "attempt_id": "latest"}),
    ("POST", "/v1/agl/spans/next", {"rollout_id": "{rollout}", "attempt_id": "{attempt}"}),
    ("POST", "/v1/agl/spans/next/many", {"attempts": [{"rollout_id": "{rollout}", "attempt_id": "{attempt}"}]}),
    ("POST", "/v1/agl/waits/rollouts", {"rollout_ids": ["{rollout}"], "timeout": 0}),
    ("GET", "/v1/agl/rollouts?run={run}", None),
    ("POST", "/v1/agl/rollouts/search", {"run": "{run}"}),
    ("POST", "/v1/relight/attempts/finish", {"attempt_id": "{attempt}", "fence": "{fence}"}),
]


def filled(value: Any, attempt: OpenedAttempt) -> Any:
    """A path or a body about an attempt."""
    names = {
        "run": attempt.run,
        "rollout": attempt.rollout_id,
        "attempt": attempt.attempt_id,
        "token": attempt.token,
        "command": "c1" if attempt.run == RUN else "c2",
        "resources": "rs-1" if attempt.run == RUN else "rs-other",
    }
    if isinstance(value, str):
        return attempt.fence if value == "{fence}" else value.format(**names)
    if isinstance(value, dict):
        return {key: filled(item, attempt) for key, item in value.items()}
    return [filled(item, attempt) for item in value] if isinstance(value, list) else value


async def test_a_token_of_a_run_permits_what_belongs_to_it(bench: Bench) -> None:
    token = await bench.token("admin", RUN)
    for method, path, body in OWN:
        status, text = await bench.ask(token, method, filled(path, bench.mine), filled(body, bench.mine))
        assert status in (200, 201, 202), (method, path, status, text)


async def test_a_token_of_a_run_permits_nothing_of_another_run(bench: Bench) -> None:
    token = await bench.token("admin", RUN)
    for method, path, body in OWN:
        status, text = await bench.ask(token, method, filled(path, bench.foreign), filled(body, bench.foreign))
        assert (status, "is limited to run demo" in text) == (403, True), (method, path, status, text)
    assert await bench.database.pool.fetchval("select not paused from runs where run = 'other'")


async def test_a_token_of_a_run_is_refused_where_an_item_is_of_another_run(bench: Bench) -> None:
    token = await bench.token("admin", RUN)
    mine, foreign = bench.mine, bench.foreign
    for path, body in (
        ("/v1/agl/waits/rollouts", {"rollout_ids": [mine.rollout_id, foreign.rollout_id]}),
        ("/v1/agl/spans/next", {"rollout_id": mine.rollout_id, "attempt_id": foreign.attempt_id}),
        ("/v1/relight/gateway/generations", {"items": [call(one).model_dump(mode="json") for one in (mine, foreign)]}),
    ):
        assert (await bench.ask(token, "POST", path, body))[0] == 403, path


async def test_no_route_shows_a_token_of_a_run_what_is_not_of_that_run(bench: Bench) -> None:
    token = await bench.token("admin", RUN)
    for method, path in sorted(all_routes(bench.database)):
        about_nothing = path in ("/readyz", "/v1/agl/health", "/v1/agl/capabilities", "/v1/traces")  # {} has no spans
        narrowed = method == "GET" and path in ("/v1/agl/rollouts", "/v1/relight/events")
        if about_nothing or narrowed or path == "/v1/agl/rollouts/search":
            continue
        status, text = await bench.ask(token, method, path, {})
        unparsed = CONTENT.fullmatch(path) is not None and status in (400, 422)
        assert status == 403 or unparsed, (method, path, status, text)
    for action in ("fork", "replay"):
        assert (await bench.ask(token, "POST", f"/v1/relight/runs/demo/{action}", {}))[0] == 403


async def test_a_search_by_a_token_of_a_run_finds_that_runs_rollouts_alone(bench: Bench) -> None:
    async with LightningStoreClient(bench.url, await bench.token("viewer", RUN)) as client:
        assert [rollout.rollout_id for rollout in await client.query_rollouts()] == ["r1"]
        either = await client.query_rollouts(rollout_id_in=["o1"], rollout_id_contains="1", filter_logic="or")
        assert [rollout.rollout_id for rollout in either] == ["r1"]
        with pytest.raises(ForbiddenError, match="run other"):
            await client.query_rollouts(run=OTHER)
    _, text = await bench.ask(await bench.token("viewer", RUN), "GET", "/v1/agl/rollouts")
    assert [rollout["rollout_id"] for rollout in json.loads(text)["items"]] == ["r1"]


async def test_what_a_token_of_a_run_enqueues_belongs_to_the_run(bench: Bench) -> None:
    async with LightningStoreClient(bench.url, await bench.token("runner", RUN), retry_seconds=1) as client:
        made = await client.enqueue_rollout("x", idempotency_key="k")
        named = await client.enqueue_rollout("y", run=RUN, resources_id="rs-1")
        assert [(one.run, one.resources_id) for one in (made, named)] == [(RUN, None), (RUN, "rs-1")]
        assert (await client.get_rollout_by_id(made.rollout_id)) == made
        assert (await client.cancel_rollout(made.rollout_id)).status == "cancelled"
        with pytest.raises(ForbiddenError, match=r"run: 'other' is not the run of token t0.*leave `run` out"):
            await client.enqueue_rollout("x", run=OTHER)
    async with LightningStoreClient(bench.url, TOKEN) as admin:
        other = await admin.enqueue_rollout("x", run=OTHER, idempotency_key="k")
    assert other.rollout_id != made.rollout_id  # a key of one run's token is no other's


async def test_a_token_of_a_run_enqueues_for_the_queues_of_its_runs_agent_alone(bench: Bench) -> None:
    await bench.database.pool.execute("""update runs set file = file || '{"grader": "judge"}' where run = 'demo'""")
    async with LightningStoreClient(bench.url, await bench.token("runner", RUN), retry_seconds=1) as client:
        for dispatch in (Dispatch(by="workflow", agent="judge"), Dispatch(by="workflow", task_queue=OWN_QUEUE)):
            assert (await client.enqueue_rollout("x", dispatch=dispatch)).run == RUN
        for dispatch in (Dispatch(by="workflow", agent="search"), Dispatch(by="workflow", task_queue="gpu-host")):
            with pytest.raises(ForbiddenError, match=r"dispatch: task queue .* is not that of the agent or the grader"):
                await client.enqueue_rollout("x", dispatch=dispatch)


async def test_a_token_of_a_run_names_no_resources_of_another(bench: Bench) -> None:
    token = await bench.token("admin", RUN)
    message = "resources_id: 'rs-other' is not of run demo.*leave `resources_id` out"
    async with LightningStoreClient(bench.url, token, retry_seconds=1) as client:
        with pytest.raises(ForbiddenError, match=message):
            await client.enqueue_rollout("x", resources_id="rs-other")
        made = await client.enqueue_rollout("x")
        with pytest.raises(ForbiddenError, match=message):
            await client.update_rollout(made.rollout_id, resources_id="rs-other")
        assert (await client.update_rollout(made.rollout_id, resources_id="rs-1")).resources_id == "rs-1"
    path = "/v1/relight/runs/demo/update_resources?wait=0"
    status, text = await bench.ask(token, "POST", path, {"resources_id": "rs-other"})
    assert (status, "rs-other" in text) == (403, True)
    await bench.database.pool.execute("update runs set resources_id = 'rs-mine' where run = 'demo'")
    for value in ({"resources_id": "rs-1"}, {"resources_id": "rs-mine"}, {"resources": {}}):
        status, text = await bench.ask(token, "POST", path, value)
        assert status == 202, (value, text)


async def test_a_rollout_of_a_run_is_never_pinned_to_the_newest_resources_of_all(bench: Bench) -> None:
    async with LightningStoreClient(bench.url, await bench.token("runner", RUN)) as client:
        made = await client.enqueue_rollout("x", resources_id="rs-1")
        await client.update_rollout(made.rollout_id, resources_id=None)
        attempt = await client.start_attempt(made.rollout_id)
    assert (attempt.resources_id, attempt.resources_version) == (None, None)


async def test_a_runner_with_a_token_of_its_run_reports_itself_and_no_other_process(bench: Bench) -> None:
    async with StoreClient(bench.url, await bench.token("runner", RUN), retry_seconds=1) as client:
        await client.register_worker(WorkerReport(worker_id="w1", kind="runner", host="h"))
        with pytest.raises(ForbiddenError):
            await client.register_worker(WorkerReport(worker_id="w2", kind="orchestrator", host="h"))
        with pytest.raises(ForbiddenError):
            await client.open_attempt(OpenRequest(rollout_id="o1", try_number=2, execution="x", worker_id="w1"))
    assert await bench.database.pool.fetchval("select array_agg(worker_id) from workers") == ["w1"]


async def test_a_runner_with_a_token_of_its_run_takes_neither_the_name_nor_the_rollouts_of_others(bench: Bench) -> None:
    async with StoreClient(bench.url, TOKEN) as client:
        await client.register_worker(WorkerReport(worker_id="gpu", kind="gpu-worker", host="h"))
    async with StoreClient(bench.url, await bench.token("runner", RUN), retry_seconds=1) as client:
        await client.register_worker(WorkerReport(worker_id="w1", kind="runner", host="h", current_rollout_id="r1"))
        for worker_id, rollout_id in (("gpu", "r1"), ("w1", "o1")):
            report = WorkerReport(worker_id=worker_id, kind="runner", host="h", current_rollout_id=rollout_id)
            with pytest.raises(ForbiddenError, match="is limited to run demo"):
                await client.register_worker(report)
    kinds = await bench.database.pool.fetch("select worker_id, kind, rollout_id from workers order by worker_id")
    assert [tuple(row) for row in kinds] == [("gpu", "gpu-worker", None), ("w1", "runner", "r1")]


async def test_spans_of_another_run_than_the_tokens_are_left_out(bench: Bench) -> None:
    token = await bench.token("runner", RUN)
    foreign = make_request([make_span(1)], bench.foreign.rollout_id, bench.foreign.attempt_id)
    status, _ = await bench.ask(token, "POST", "/v1/traces", data=foreign.SerializeToString())
    assert status == 403
    both = make_request([make_span(2)], bench.mine.rollout_id, bench.mine.attempt_id)
    both.MergeFrom(foreign)
    status, text = await bench.ask(token, "POST", "/v1/traces", data=both.SerializeToString())
    assert (status, "another run" in text) == (200, True)
    assert await bench.database.pool.fetchval("select array_agg(rollout_id) from spans") == ["r1"]
