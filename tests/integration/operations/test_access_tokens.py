"""Tokens with a role, a run and an end: what each permits at every route, and the commands that make and end them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from base64 import b64encode
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from fastapi.routing import APIRoute

from relight.errors import ConfigError, ConflictError, ForbiddenError, NotFoundError
from relight.store.access_tokens import RUNNER_NAME, Role, create_token, list_tokens, parse_lifetime, revoke_token
from relight.store.attempts.attempt_tokens import runner_token, token_hash
from relight.store.attempts.client import StoreClient
from relight.store.attempts.postgres import PostgresStore
from relight.store.client import LightningStoreClient
from relight.store.database import Database
from relight.store_api.app import create_app
from relight.store_api.backends import PostgresBackend
from relight.store_api.grants import CONTENT, GRANT_KEY, OF_AGENTS, Grant, Grants
from relight.types.names import RUNNER_QUEUE, runner_queue
from relight.types.store import Dispatch
from relight.types.wire import FinishRequest, OpenedAttempt, OpenRequest, WorkerReport
from tests.support.orchestration import eventually
from tests.support.otlp import make_request, make_span
from tests.support.seeds import RUN, seed_engine, seed_rollout, seed_run
from tests.support.store_kit import PostgresKit, call, opened
from tests.support.store_service import TOKEN, store_service

OTHER = "other"
OWN_QUEUE = runner_queue(RUNNER_QUEUE, "calculator")
WRITING = ("POST", "PUT", "DELETE", "PATCH")
PROTOBUF = {"Content-Type": "application/x-protobuf"}


@dataclass
class Bench:
    """A service over two runs, with an attempt of each."""

    database: Database
    session: aiohttp.ClientSession
    url: str
    mine: OpenedAttempt
    foreign: OpenedAttempt

    async def token(
        self, role: str = "viewer", run: str | None = None, seconds: float | None = 3600, agents: Sequence[str] = ()
    ) -> str:
        count = await self.database.pool.fetchval("select count(*) from tokens")
        options: dict[str, Any] = {"run": run, "agents": agents, "seconds": seconds}
        return await create_token(self.database, f"t{count}", Role(role), **options)

    async def ask(
        self, token: str, method: str, path: str, body: Any = None, data: bytes | None = None
    ) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {token}"} | (PROTOBUF if data else {})
        options: dict[str, Any] = {"data": data} if data else {"json": body}
        async with self.session.request(method, self.url + path, headers=headers, **options) as answer:
            if answer.content_type == "text/event-stream":
                return answer.status, ""
            return answer.status, await answer.text(errors="replace")


@pytest.fixture
async def bench(database: Database) -> AsyncGenerator[Bench]:
    kit = PostgresKit(database, await PostgresStore.create(database, "http://gateway"))
    for run, rollout_id in ((RUN, "r1"), (OTHER, "o1")):
        await seed_run(database, run, agent="calculator")
        await seed_engine(database, f"engine-{run}", run)
        await seed_rollout(database, rollout_id, run)
    await database.pool.execute(
        "insert into resources (resources_id, resources) values ('rs-other', '{}');"
        "update rollouts set resources_id = 'rs-other' where run = 'other';"
        "insert into commands (command_id, run, action, value, actor) values"
        " ('c1', 'demo', 'pause', '{}', 'x'), ('c2', 'other', 'pause', '{}', 'x')"
    )
    async with store_service(kit.store, database) as url, aiohttp.ClientSession() as session:
        yield Bench(database, session, url, await opened(kit, "r1"), await opened(kit, "o1"))


def all_routes(database: Database) -> set[tuple[str, str]]:
    """Every route of the app, with something in the place of its parameters."""
    app = create_app(PostgresBackend(None, database), token=TOKEN)  # type: ignore[arg-type]
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    return {(method, _filled(route.path)) for route in routes for method in route.methods} - {("GET", "/healthz")}


def _filled(path: str) -> str:
    return "/".join("x" if part.startswith("{") else part for part in path.split("/"))


@pytest.mark.parametrize("ending", ["expired", "revoked", "unknown"])
async def test_an_expired_token_is_refused_everywhere_with_the_reason(bench: Bench, ending: str) -> None:
    token = await bench.token("admin", seconds=0 if ending == "expired" else None)
    if ending == "revoked":
        await revoke_token(bench.database, "t0")
    if ending == "unknown":
        token = f"{token}x"
    for method, path in sorted(all_routes(bench.database)):
        status, text = await bench.ask(token, method, path, {})
        assert status == 401, (method, path)
        assert {"expired": "t0 expired at 20", "revoked": "t0 was revoked at 20", "unknown": "no such token"}[
            ending
        ] in text


async def test_a_token_is_refused_soon_after_it_is_revoked(bench: Bench) -> None:
    token = await bench.token()
    assert (await bench.ask(token, "GET", "/v1/relight/runs"))[0] == 200
    await revoke_token(bench.database, "t0")

    async def refused() -> bool:
        return (await bench.ask(token, "GET", "/v1/relight/runs"))[0] == 401

    await eventually(refused, 5)


async def test_a_viewer_reads_everything_and_writes_nothing(bench: Bench) -> None:
    token = await bench.token("viewer")
    for path in ("/v1/relight/runs", "/v1/relight/runs/demo", "/v1/relight/cluster", "/metrics", "/v1/agl/statistics"):
        assert (await bench.ask(token, "GET", path))[0] == 200, path
    assert (await bench.ask(token, "POST", "/v1/agl/rollouts/search", {}))[0] == 200
    assert (await bench.ask(token, "POST", "/v1/agl/waits/rollouts", {"rollout_ids": ["none"], "timeout": 0}))[0] == 200
    for method, path in sorted(all_routes(bench.database)):
        if method in WRITING and not path.endswith("/search") and path != "/v1/agl/waits/rollouts":
            status, text = await bench.ask(token, method, path, {})
            assert (status, "--role" in text) == (403, True), (method, path)


async def test_a_runner_writes_attempts_and_gives_no_commands(bench: Bench) -> None:
    token = await bench.token("runner")
    async with StoreClient(bench.url, token) as client:
        await client.heartbeat(bench.foreign.attempt_id, bench.foreign.fence, "runner-1")
    async with LightningStoreClient(bench.url, token) as client:
        await client.enqueue_rollout("x")
    for method, path in (
        ("POST", "/v1/relight/runs"),
        ("POST", "/v1/relight/runs/demo/pause"),
        ("PUT", "/v1/relight/datasets/x"),
        ("DELETE", "/v1/relight/datasets/x"),
    ):
        assert (await bench.ask(token, method, path, {}))[0] == 403, path


async def test_a_runner_records_no_model_calls_and_a_gateway_ends_no_attempts(bench: Bench) -> None:
    runner, gateway = await bench.token("runner"), await bench.token("gateway")
    record = call(bench.mine).model_dump(mode="json")
    finish = {"attempt_id": bench.mine.attempt_id, "fence": bench.mine.fence, "reward": 1.0}
    for token, path, body, status in (
        (runner, "/v1/relight/gateway/generations", {"items": [record]}, 403),
        (gateway, "/v1/relight/attempts/finish", finish, 403),
        (gateway, "/v1/agl/rollouts", {}, 403),
        (gateway, "/v1/relight/gateway/generations", {"items": [record]}, 200),
        (runner, "/v1/relight/attempts/finish", finish, 200),
    ):
        assert (await bench.ask(token, "POST", path, body))[0] == status, path
    for token, kind in ((runner, "runner"), (gateway, "gateway")):
        report = {"worker_id": kind, "kind": kind, "host": "h"}
        assert (await bench.ask(token, "POST", "/v1/relight/workers", report))[0] == 200


async def test_a_runners_token_of_some_agents_is_good_for_their_attempts_alone(bench: Bench) -> None:
    await bench.database.pool.execute("update runs set file = file || '{\"agent\": \"search\"}' where run = 'other'")
    token = await bench.token("runner", agents=["calculator"])
    mine, foreign = bench.mine, bench.foreign
    async with StoreClient(bench.url, token, retry_seconds=1) as client:
        again = OpenRequest(rollout_id=mine.rollout_id, try_number=1, execution="x2", worker_id="w")
        assert (await client.open_attempt(again)).state == "opened"
        for request in (
            client.open_attempt(again.model_copy(update={"rollout_id": foreign.rollout_id})),
            client.finish_attempt(FinishRequest(attempt_id=foreign.attempt_id, fence=foreign.fence, reward=1.0)),
            client.transcript(foreign.attempt_id),
        ):
            with pytest.raises(ForbiddenError, match="is limited to agents calculator"):
                await request
        await client.register_worker(WorkerReport(worker_id="w", kind="runner", host="h"))
    for method, path in sorted(all_routes(bench.database)):
        status, _ = await bench.ask(token, method, path, {})
        assert status == 403 or OF_AGENTS.fullmatch(path), (method, path)


async def test_the_token_that_a_runner_derives_is_a_runners_until_the_admin_token_changes(bench: Bench) -> None:
    derived = runner_token(TOKEN)
    assert TOKEN not in derived
    assert runner_token(derived) == derived
    async with StoreClient(bench.url, derived) as client:
        await client.heartbeat(bench.mine.attempt_id, bench.mine.fence, "runner-1")
    assert (await bench.ask(derived, "POST", "/v1/relight/runs/demo/pause?wait=0", {}))[0] == 403
    changed = Grants(bench.database, runner_token("another"))
    await changed.admit(runner_token("another"), {"method": "GET", "path": "/readyz"})
    states = sorted((token.name, token.state) for token in await list_tokens(bench.database))
    assert states == [(RUNNER_NAME, "revoked"), (RUNNER_NAME, "valid")]

    async def refused() -> bool:
        return (await bench.ask(derived, "GET", "/readyz"))[0] == 401

    await eventually(refused, 5)


async def test_an_admins_token_does_what_the_admin_token_does(bench: Bench) -> None:
    token = await bench.token("admin")
    for method, path in sorted(all_routes(bench.database)):
        if path.endswith("/events"):
            continue
        status, _ = await bench.ask(token, method, path, {})
        assert status not in (401, 403), (method, path)


async def test_a_token_is_accepted_as_a_basic_password(bench: Bench) -> None:
    token = await bench.token()
    for user, status in (("relight", 200), ("x", 401)):
        header = {"Authorization": "Basic " + b64encode(f"{user}:{token}".encode()).decode()}
        async with bench.session.get(f"{bench.url}/v1/relight/runs", headers=header) as answer:
            assert answer.status == status


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


async def test_a_long_request_ends_with_its_token(database: Database) -> None:
    text = await create_token(database, "t", Role.VIEWER)
    grants = Grants(database, recheck_seconds=0.01)
    grant = Grant(token_hash(text), "t", Role.VIEWER, None)
    ending = asyncio.create_task(grants.ended({GRANT_KEY: grant}))
    unending = asyncio.create_task(grants.ended({}))
    await revoke_token(database, "t")
    await asyncio.wait_for(ending, 20)
    assert not unending.done()
    unending.cancel()


async def test_a_tokens_text_is_kept_nowhere(database: Database) -> None:
    text = await create_token(database, "ci", Role.RUNNER, run=RUN, seconds=60)
    row = dict(await database.pool.fetchrow("select * from tokens"))
    assert row["token_hash"] == token_hash(text)
    assert text not in repr(row)
    (shown,) = await list_tokens(database)
    assert (shown.name, shown.role, shown.run, shown.state) == ("ci", Role.RUNNER, RUN, "valid")


async def test_a_name_is_free_again_once_its_token_is_revoked(database: Database) -> None:
    await create_token(database, "ci", Role.VIEWER, seconds=0)
    with pytest.raises(ConflictError, match="relight token revoke ci"):
        await create_token(database, "ci", Role.VIEWER)
    await revoke_token(database, "ci")
    await create_token(database, "ci", Role.ADMIN)
    assert sorted(token.state for token in await list_tokens(database)) == ["revoked", "valid"]
    await revoke_token(database, "ci")
    with pytest.raises(NotFoundError, match="ci"):
        await revoke_token(database, "ci")


async def test_only_a_runners_token_can_be_limited_to_agents(database: Database) -> None:
    with pytest.raises(ConfigError, match="agent: only a runner's token"):
        await create_token(database, "ci", Role.ADMIN, agents=["calculator"])


@pytest.mark.parametrize(("name", "run"), [("", None), ("a b", None), ("ci", "A/B"), ("x" * 64, None)])
async def test_an_invalid_name_is_refused(database: Database, name: str, run: str | None) -> None:
    with pytest.raises(ConfigError, match="is no name"):
        await create_token(database, name, Role.VIEWER, run=run)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90m", 5400), ("12h", 43200), ("7d", 604800), ("4w", 2419200), ("never", None)]
)
def test_a_lifetime_is_parsed(text: str, seconds: float | None) -> None:
    assert parse_lifetime(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "0d", "-1d", "7 days", "1y", "9999999d"])
def test_an_invalid_lifetime_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="7d"):
        parse_lifetime(text)


def relight(*arguments: str, url: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "relight.cli", "token", *arguments, "--postgres-url", url]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_commands_create_list_and_revoke(database_url: str) -> None:
    made = relight("create", "ci", "--run", RUN, "--role", "runner", "--expires", "7d", "--json", url=database_url)
    shown = json.loads(made.stdout)
    assert (shown["name"], shown["run"], shown["role"], shown["state"]) == ("ci", RUN, "runner", "valid")
    assert shown["token"].startswith("rl-token-")
    text = relight("create", "forever", "--expires", "never", url=database_url)
    assert "viewer of all runs, without an end" in text.stdout
    assert text.stdout.splitlines()[-1].startswith("rl-token-")
    assert json.loads(relight("revoke", "ci", "--json", url=database_url).stdout) == {"revoked": "ci"}
    listed = relight("list", url=database_url).stdout
    assert ("revoked" in listed, "forever" in listed, "rl-token" in listed) == (True, True, False)
    again = relight("revoke", "ci", url=database_url)
    assert (again.returncode, "relight token list" in again.stderr) == (1, True)
