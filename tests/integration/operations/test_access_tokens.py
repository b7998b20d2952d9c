"""Tokens with a role and an end: what each permits at every route, and the commands that make and end them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from base64 import b64encode

import pytest

from relight.errors import ConfigError, ConflictError, ForbiddenError, NotFoundError
from relight.store.access_tokens import RUNNER_NAME, Role, create_token, list_tokens, parse_lifetime, revoke_token
from relight.store.attempts.attempt_tokens import runner_token, token_hash
from relight.store.attempts.client import StoreClient
from relight.store.client import LightningStoreClient
from relight.store.database import Database
from relight.store_api.grants import GRANT_KEY, OF_AGENTS, Grant, Grants
from relight.types.wire import FinishRequest, OpenRequest, WorkerReport
from tests.integration.operations.token_bench import WRITING, Bench, all_routes
from tests.support.orchestration import eventually
from tests.support.seeds import RUN
from tests.support.store_kit import call
from tests.support.store_service import TOKEN


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
