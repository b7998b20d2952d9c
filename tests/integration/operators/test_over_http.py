"""Commands over HTTP: written down first, done by an orchestrator, once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from temporalio.client import Client

from relight.operators.command_loop import keep_doing_commands
from relight.runner.agent_call import AgentCall, AgentOutcome
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.types.names import ORCHESTRATOR_QUEUE
from tests.integration.operators.kit import Gate, at, audit, status_of
from tests.support.orchestration import cluster, eventually, run_file, served_grader, write_tasks
from tests.support.store_service import TOKEN, store_service


class Http:
    """Posts commands."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = f"{url}/v1/relight"

    async def post(self, path: str, value: Any = None, key: str | None = None, wait: float = 10) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {TOKEN}", **({"Idempotency-Key": key} if key else {})}
        async with self.session.post(f"{self.url}{path}?wait={wait}", json=value, headers=headers) as answer:
            return answer.status, await answer.json()

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.session.get(f"{self.url}{path}", headers={"Authorization": f"Bearer {TOKEN}"}) as answer:
            return answer.status, await answer.json()


@asynccontextmanager
async def http(database: Database) -> AsyncGenerator[Http]:
    store = await PostgresStore.create(database, "http://127.0.0.1:9")
    async with store_service(store, database) as url, aiohttp.ClientSession() as session:
        yield Http(session, url)


@asynccontextmanager
async def doing_commands(database: Database, temporal: Client) -> AsyncGenerator[None]:
    loop = asyncio.create_task(keep_doing_commands(database, temporal, ORCHESTRATOR_QUEUE))
    try:
        yield
    finally:
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)


async def test_a_live_run_is_commanded_over_http_and_refusals_give_the_reason(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate(at("s0001-g00-i0"))
    async with (
        cluster(temporal, database, tmp_path, gate) as stack,
        http(database) as api,
        doing_commands(database, temporal),
    ):
        handle = await stack.start("told", run_file(steps=2, data="train.jsonl"))
        await gate.until(lambda: bool(gate.held))
        await eventually(status_of(database, "told-s0001-g00-i1", "succeeded"))
        changed = await api.post("/runs/told/set_hyperparameters", {"learning_rate": 0.5, "actor": "ada"})
        invalid = await api.post("/runs/told/set_hyperparameters", {"learning_rate": "fast"})
        refused = await api.post("/runs/told/cancel_rollout", {"rollout_id": "told-s0001-g00-i1"})
        unknown = await api.post("/runs/told/explode", {})
        missing = await api.post("/runs/unknown/pause", {})
        paused = await api.post("/runs/told/pause", {"reason": "lunch"})
        resumed = await api.post("/runs/told/resume")
        gate.open.set()
        await handle.result()
    assert (changed[0], changed[1]["result"]["before"], changed[1]["result"]["after"]) == (
        200,
        {"learning_rate": 1e-6},
        {"learning_rate": 0.5},
    )
    assert (invalid[0], refused[0], unknown[0], missing[0]) == (422, 409, 404, 404)
    assert "learning_rate: " in invalid[1]["detail"]
    assert "can't be cancelled: it is succeeded" in refused[1]["detail"]
    assert (paused[0], resumed[0]) == (200, 200)
    done = [(row["actor"], row["action"]) for row in await audit(database, "told") if row["refused"] is None]
    assert done == [("ada", "set_hyperparameters"), ("operator", "pause"), ("operator", "resume")]


async def test_a_command_waits_for_an_orchestrator_and_is_done_once_however_often_it_is_sent(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate(at("s0001-g00-i0"))
    async with cluster(temporal, database, tmp_path, gate) as stack, http(database) as api:
        handle = await stack.start("patient", run_file(steps=1, data="train.jsonl"))
        await gate.until(lambda: bool(gate.held))
        for _ in range(2):
            status, waiting = await api.post("/runs/patient/set_concurrency", {"concurrency": 5}, key="k1", wait=0)
            assert (status, waiting["done_at"]) == (202, None)
        reused = [
            await api.post("/runs/patient/pause", {}, key="k1", wait=0),
            await api.post("/runs/patient/set_concurrency", {"concurrency": 6}, key="k1", wait=0),
        ]
        async with doing_commands(database, temporal):

            async def done() -> Any:
                _, found = await api.get("/commands/k1")
                return found if found["done_at"] else None

            found = await eventually(done)
            status, again = await api.post("/runs/patient/set_concurrency", {"concurrency": 5}, key="k1")
        gate.open.set()
        await handle.result()
    assert [status for status, _ in reused] == [422, 422]
    assert reused[1][1]["detail"] == "Idempotency-Key: k1 was sent with another request; send another key"
    assert found["result"]["after"] == again["result"]["after"] == 5
    assert status == 200
    assert [row["action"] for row in await audit(database, "patient")] == ["set_concurrency"]


async def test_a_command_that_no_orchestrator_of_the_run_answers_is_tried_until_one_does(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    gate = Gate(at("s0001-g00-i0"))
    async with cluster(temporal, database, tmp_path, gate) as stack, http(database) as api:
        handle = await stack.start("dead", run_file(steps=1, data="train.jsonl"))
        await gate.until(lambda: bool(gate.held))
        away = await Client.connect("127.0.0.1:1", lazy=True)
        async with doing_commands(database, away):
            await api.post("/runs/dead/set_concurrency", {"concurrency": 5}, key="k2", wait=0)

            async def postponed() -> Any:
                _, found = await api.get("/commands/k2")
                return found["waiting_for"]

            assert await eventually(postponed)
        await database.pool.execute("update commands set claimed_until = now()")
        async with doing_commands(database, temporal):
            status, found = await api.post("/runs/dead/set_concurrency", {"concurrency": 5}, key="k2")
        gate.open.set()
        await handle.result()
    assert (status, found["result"]["after"]) == (200, 5)
    assert found["tries"] >= 2


async def steady(call: AgentCall) -> AgentOutcome:
    """A grader that is content with everything."""
    return AgentOutcome(kind="returned", rewards={"primary": 0.5})


async def test_a_fork_a_replay_and_a_regrade_are_requested_over_http_and_made_once(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    write_tasks(tmp_path)
    async with (
        cluster(temporal, database, tmp_path) as stack,
        served_grader(temporal, database, steady),
        http(database) as api,
        doing_commands(database, temporal),
    ):
        await (await stack.start("parent", run_file(steps=2, data="train.jsonl"))).result()
        change = {"set": {"steps": 3}, "actor": "ada"}
        forked = await api.post("/runs/parent/fork", {"from_step": 2, **change}, key="f00dfeed-1", wait=30)
        again = await api.post("/runs/parent/fork", {"from_step": 2, **change}, key="f00dfeed-1", wait=30)
        replayed = await api.post("/runs/parent/replay", {"name": "by-loss"}, wait=30)
        regraded = await api.post("/runs/parent/regrade", {"grader": "judge"}, wait=30)
        too_far = await api.post("/runs/parent/fork", {"from_step": 9}, wait=30)
        wrong = await api.post("/runs/parent/fork", {"set": {}})
        missing = await api.post("/runs/unknown/replay", {})
        for workflow in ("train/parent-fork-f00dfeed", "train/by-loss", "train/parent/regrade-judge"):
            await temporal.get_workflow_handle(workflow).result()
    assert forked[0] == replayed[0] == regraded[0] == 200
    assert forked[1]["result"]["after"] == again[1]["result"]["after"] == {"run": "parent-fork-f00dfeed"}
    assert replayed[1]["result"]["after"] == {"run": "by-loss"}
    assert regraded[1]["result"]["after"] == {"workflow": "train/parent/regrade-judge", "grader": "judge"}
    assert (too_far[0], wrong[0], missing[0]) == (409, 422, 404)
    assert "from_step" in wrong[1]["detail"]
    assert "9" in too_far[1]["detail"]
    runs = await database.pool.fetch("select run, parent_run, parent_step, status from runs order by run")
    assert [tuple(row) for row in runs] == [
        ("by-loss", "parent", 0, "finished"),
        ("parent", None, None, "finished"),
        ("parent-fork-f00dfeed", "parent", 2, "finished"),
    ]
    assert await database.pool.fetchval("select count(*) from rewards where grader = 'judge'") == 16
