"""What Agent Lightning 0.3's users have installed works with our store: its client, and its runner.

The same scripts drive its own server in the long tests: what they ask for is what that does, not what we take it to do.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from relight.store.attempts.attempt_tokens import token_hash
from relight.store.attempts.client import StoreClient
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.types.upstreams import Upstream
from tests.support.fake_provider import WORDS, fake_provider
from tests.support.gateway import listening_gateway
from tests.support.peer import peer_environment, peer_python, peer_store
from tests.support.postgres import fresh_database_url
from tests.support.processes import TOKEN, free_port, store_process
from tests.support.store_service import TOKEN as STORE_TOKEN
from tests.support.store_service import store_service

HERE = Path(__file__).parent
NAMES = HERE / "names_of_0_3.json"
SCRIPT_SECONDS = 180


@pytest.fixture(scope="session")
def python() -> Path:
    """The Python of the peer's environment."""
    return peer_python()


@pytest.fixture(params=["relight", pytest.param("peer", marks=pytest.mark.long)])
async def store_url(request: pytest.FixtureRequest, python: Path, tmp_path: Path) -> AsyncGenerator[str]:
    """Each server in turn: its own, in memory, and ours on Postgres, with the token in its URL."""
    log = tmp_path / "store.log"
    if request.param == "peer":
        async with peer_store(log) as (url, _):
            yield url
    else:
        maintenance = request.getfixturevalue("postgres_url")
        async with fresh_database_url(maintenance) as database_url, store_process(database_url, log) as (url, _):
            yield url.replace("http://", f"http://relight:{TOKEN}@")


async def printed(python: Path, script: str, url: str, folder: Path, *more: str) -> dict[str, Any]:
    """The JSON object that a script of the peer's environment prints about a store."""
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        python, HERE / script, url, *more, stdout=pipe, stderr=pipe, cwd=folder, env=peer_environment()
    )
    try:
        async with asyncio.timeout(SCRIPT_SECONDS):
            out, errors = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    assert child.returncode == 0, errors.decode()[-4000:]
    return json.loads(out.splitlines()[-1])


async def test_the_published_client_works_with_every_method_of_the_store(
    python: Path, store_url: str, tmp_path: Path
) -> None:
    results = await printed(python, "client_checks.py", store_url, tmp_path)
    failed = {name: result for name, result in results.items() if result != "ok"}
    assert not failed, "\n".join(f"{name}:\n{result}" for name, result in failed.items())
    assert len(results) > 20


async def test_the_published_package_has_the_names_that_are_on_record(python: Path, tmp_path: Path) -> None:
    assert await printed(python, "read_names.py", "", tmp_path) == json.loads(NAMES.read_text())


async def test_the_published_runner_runs_agents_against_the_store(python: Path, store_url: str, tmp_path: Path) -> None:
    found = await printed(python, "run_agents.py", store_url, tmp_path)
    traced = ["agentlightning.message", "agentlightning.operation"]
    rewarded = [*traced, "agentlightning.annotation"]
    well = {"status": "succeeded", "attempts": ["succeeded"], "workers": ["Worker-1"], "sequence_ids": [1, 2, 3]}
    for name, reward in {"right": 1.0, "wrong": 0.0, "returned": 1.0, "written": 1.0}.items():
        assert found[name] == well | {"spans": rewarded, "reward": reward}, name
    assert found["broken"] == well | {
        "status": "failed", "attempts": ["failed"], "sequence_ids": [1, 2], "spans": traced, "reward": None
    }  # fmt: skip
    assert found["retried"] == well | {
        "attempts": ["failed", "succeeded"], "sequence_ids": [1, 2, 3, 4, 5], "spans": rewarded, "reward": 1.0
    }  # fmt: skip
    assert found["worker"] == {"status": "idle", "has_statistics": True}


async def test_an_agent_of_the_published_runner_calls_a_model_through_the_gateway(
    python: Path, database: Database, tmp_path: Path
) -> None:
    """Nothing changes in the agent: its resources bring the gateway's address and a key for its attempt alone."""
    port = free_port()
    async with AsyncExitStack() as stack:
        provider = await stack.enter_async_context(fake_provider())
        judge = Upstream(name="other", base_url=provider.url, models=["judge"])
        service = await PostgresStore.create(database, f"http://127.0.0.1:{port}")
        url = await stack.enter_async_context(store_service(service, database, gateway_url=f"http://127.0.0.1:{port}"))
        store = await stack.enter_async_context(StoreClient(url, STORE_TOKEN))
        gateway = await stack.enter_async_context(listening_gateway(store, port=port, upstreams=[judge]))
        address = url.replace("http://", f"http://relight:{STORE_TOKEN}@")
        found = await printed(python, "run_model_agents.py", address, tmp_path, gateway.origin)
        calls = await database.pool.fetch("select attempt_id, engine_id from generations order by attempt_id")
        attempts = await database.pool.fetch("select * from attempts order by attempt_id")
    assert found["statuses"] == ["succeeded", "succeeded"]
    assert {name: said["answer"] for name, said in found["said"].items()} == dict.fromkeys(
        ("proxy", "plain"), "".join(WORDS)
    )
    assert [call["engine_id"] for call in calls] == ["upstream:other"] * 2
    assert [call["attempt_id"] for call in calls] == [attempt["attempt_id"] for attempt in attempts]
    for said, attempt in zip(found["said"].values(), attempts, strict=True):
        assert (
            said["endpoint"] == f"{gateway.origin}/rollout/{attempt['rollout_id']}/attempt/{attempt['attempt_id']}/v1"
        )
        assert token_hash(said["key"]) == attempt["token_hash"]
        assert said["key"] not in found["shown"]
    assert all(f'"resources_id":"{resources_id}"' in found["shown"] for resources_id in found["resources"].values())
