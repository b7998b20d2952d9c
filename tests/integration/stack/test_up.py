"""`relight up` with real servers: it boots, it is alone, it mends, and it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest

from relight.connections import connect_temporal
from relight.settings import load_settings
from relight.types import names
from relight.worker import stack_file
from relight.worker.stack import EmbeddedStack
from tests.integration.stack.conftest import descendants, gone, relight

SERVERS = ("--only", "postgres,temporal")
Start = Callable[..., Any]


async def test_a_killed_stack_leaves_no_process_and_the_next_one_takes_over_its_addresses(up: Start) -> None:
    async with up("--only", "postgres,temporal,store") as first:
        await first.until("up")
        before = first.stack()["settings"]
        children = descendants(first.process.pid)
        assert len(children) >= 5, "Postgres has children of its own"
        os.kill(first.process.pid, signal.SIGKILL)
        assert await gone([first.process.pid, *children]) == []
        assert stack_file.running_pid(first.home) is None
    async with up("--only", "postgres,temporal,store") as second:
        await second.until("up")
        assert second.stack()["settings"] == before


async def test_a_second_stack_of_a_home_is_refused_and_the_first_is_ended_by_down(up: Start) -> None:
    async with up(*SERVERS) as running:
        await running.until("up")
        code, _, err = await relight("up", "--home", str(running.home), *SERVERS)
        assert code == 1
        assert f"is running already (pid {running.process.pid})" in err
        children = descendants(running.process.pid)
        code, out, _ = await relight("down", "--home", str(running.home))
        assert (code, out) == (0, f"stopped (pid {running.process.pid})\n")
        assert await gone(children, 0) == []
        assert await running.process.wait() == 0


async def test_a_part_that_is_killed_comes_back_where_it_was(up: Start) -> None:
    async with up(*SERVERS) as running:
        await running.until("up")
        url = running.stack()["settings"]["postgres_url"]
        for name in ("postgres", "temporal"):
            first = running.pid(name)
            os.kill(first, signal.SIGKILL)
            death = await running.until("restarting", name)
            assert death["text"].startswith(f"{name} (pid {first}) died: killed by SIGKILL")
            await running.until("ready", name)
            assert running.pid(name) != first
        connection = await asyncpg.connect(url)
        assert await connection.fetchval("show fsync") == "on"
        await connection.close()
        await connect_temporal(load_settings(home=running.home))


async def test_parts_stop_agents_first_and_postgres_last(tmp_path: Path) -> None:
    stopped: list[str] = []
    parts = ("postgres", "temporal", "store", "gateway", "orchestrator")
    stack = EmbeddedStack(
        tmp_path, only=parts, on_event=lambda event: stopped.append(event.name) if event.kind == "stopped" else None
    )
    async with stack:
        await stack.wait_ready()
        assert {stack.process(name).state for name in parts} == {"ready"}
    assert stopped == ["orchestrator", "gateway", "store", "temporal", "postgres"]


async def test_what_the_stack_promises_of_its_servers(tmp_path: Path) -> None:
    async with EmbeddedStack(tmp_path, only=("postgres", "temporal", "store")) as stack:
        await stack.wait_ready()
        settings = stack.settings
        client = await connect_temporal(settings)
        request = DescribeNamespaceRequest(namespace=settings.temporal_namespace)
        namespace = await client.workflow_service.describe_namespace(request)
        assert namespace.config.workflow_execution_retention_ttl.ToTimedelta().days == 30
        found = [
            entry async for entry in client.list_workflows(f"{names.SEARCH_RUN} = 'x' and {names.SEARCH_STEP} = 1")
        ]
        assert found == []
        connection = await asyncpg.connect(settings.postgres_url)
        assert await connection.fetchval("show max_connections") == "200"
        assert await connection.fetchval("show listen_addresses") == ""
        await connection.close()
        headers = {"Authorization": f"Bearer {settings.token_value}"}
        url = f"{settings.store_url}/readyz"
        async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as answer:
            assert answer.status == 200
        assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600


async def test_a_stack_in_the_background_is_up_when_the_command_returns(tmp_path: Path) -> None:
    code, out, err = await relight("up", "--detach", "--home", str(tmp_path), "--only", "postgres")
    assert code == 0, err
    assert "the stack is up" in out
    pid = stack_file.running_pid(tmp_path)
    assert pid
    connection = await asyncpg.connect(load_settings(home=tmp_path).postgres_url)
    await connection.close()
    code, _, _ = await relight("down", "--home", str(tmp_path))
    assert code == 0
    assert await gone([pid], 0) == []


async def test_servers_out_of_reach_are_named_before_anything_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]
    home = str(tmp_path / "home")
    code, _, err = await relight("up", "--home", home, RELIGHT_POSTGRES_URL=f"postgresql://u:hush@127.0.0.1:{closed}/x")
    assert code == 1
    assert err.startswith(f"error: can't reach Postgres at postgresql://u:***@127.0.0.1:{closed}/x")
    code, _, err = await relight("up", "--home", home, TEMPORAL_ADDRESS=f"127.0.0.1:{closed}")
    assert code == 1
    assert err.startswith(f"error: can't reach the Temporal server at 127.0.0.1:{closed}")
    assert "check TEMPORAL_ADDRESS" in err
    assert not (tmp_path / "home" / "postgres").exists()
    assert stack_file.running_pid(tmp_path / "home") is None


async def test_a_port_in_use_is_named_with_its_holder(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        code, _, err = await relight("up", "--home", str(tmp_path), "--store-url", url)
    assert code == 1
    assert f"is in use by pytest (pid {os.getpid()})" in err or f"(pid {os.getpid()})" in err
    assert err.count("\n") == 1


async def test_an_agent_that_can_not_be_imported_ends_the_boot_and_everything_that_was_started(up: Start) -> None:
    parts = "postgres,temporal,store,runner"
    async with up("--only", parts, "--agent", "no_such_module:agent") as running:
        out, _ = await running.process.communicate()
        assert running.process.returncode == 1
        assert b"no_such_module" in out.splitlines()[-1]
        assert stack_file.running_pid(running.home) is None
        assert {part["pid"] for part in running.stack()["processes"].values()} == {None}
