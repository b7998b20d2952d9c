"""`relight up` with real servers: it boots, it is alone, it mends, and it leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest

from relight.settings import load_settings
from relight.stack import stack_file, temporal_binary
from relight.stack.embedded import EmbeddedStack
from relight.stack.postgres_roles import OWNER
from relight.temporal.connection import connect_temporal
from relight.types import names
from tests.integration.stack.conftest import descendants, gone, relight
from tests.support.orchestration import eventually
from tests.support.postgres import connected_as

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


async def test_a_killed_process_is_restarted_at_its_address(up: Start) -> None:
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


async def test_processes_stop_runners_first_and_postgres_last(tmp_path: Path) -> None:
    stopped: list[str] = []
    parts = ("postgres", "temporal", "store", "gateway", "orchestrator")
    stack = EmbeddedStack(
        tmp_path, only=parts, on_event=lambda event: stopped.append(event.name) if event.kind == "stopped" else None
    )
    async with stack:
        await stack.wait_ready()
        assert {stack.process(name).state for name in parts} == {"ready"}
    assert stopped == ["orchestrator", "gateway", "store", "temporal", "postgres"]


async def test_the_stacks_servers_have_their_documented_settings(tmp_path: Path) -> None:
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


async def test_unreachable_servers_are_named_before_anything_is_started(tmp_path: Path) -> None:
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


async def test_an_agent_that_cannot_be_imported_ends_the_boot_and_every_started_process(up: Start) -> None:
    parts = "postgres,temporal,store,runner"
    async with up("--only", parts, "--agent", "no_such_module:agent") as running:
        out, _ = await running.process.communicate()
        assert running.process.returncode == 1
        assert b"no_such_module" in out.splitlines()[-1]
        assert stack_file.running_pid(running.home) is None
        assert {part["pid"] for part in running.stack()["processes"].values()} == {None}


async def test_a_stack_with_a_server_of_its_own_needs_no_tls_and_no_key_whatever_temporals_configuration_says(
    up: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profile without an address: what it says is meant for a server elsewhere."""
    folder = tmp_path / "config" / "temporalio"
    folder.mkdir(parents=True)
    (folder / "temporal.toml").write_text('[profile.default]\napi_key = "hush"\ntls.server_name = "cloud.example"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TEMPORAL_TLS", "true")
    parts = "postgres,temporal,store,gateway,orchestrator,runner"
    async with up("--only", parts, "--agent", "examples/calculator/agent.py:calculator") as running:
        await running.until("up")
        code, out, err = await relight("status", "--json", "--home", str(running.home))
        assert code == 0, err
        shown = json.loads(out)
        assert {service["name"]: service["error"] for service in shown["services"]} == {"store": None, "Temporal": None}
        polled = {queue["serves"]: bool(queue["pollers"]) for queue in shown["queues"]}
        assert polled["workflows"]
        assert polled["agent calculator"]


async def test_a_postgres_that_waits_for_its_sessions_is_stopped_and_restarted(up: Start) -> None:
    """SIGTERM is Postgres' smart shutdown: it refuses new sessions and waits for the open ones, without a limit."""
    async with up("--only", "postgres,store") as running:
        await running.until("up")
        settings, first = running.stack()["settings"], running.pid("postgres")
        session = await asyncpg.connect(settings["postgres_url"])
        os.kill(first, signal.SIGTERM)
        stopping = await running.until("stopping", "postgres")
        assert "is shutting down and waits for its sessions" in stopping["text"]
        assert "exit status 0" in (await running.until("restarting", "postgres"))["text"]
        await running.until("ready", "postgres")
        assert running.pid("postgres") != first
        assert session.is_closed()
        token = (running.home / "token").read_text().strip()
        headers, url = {"Authorization": f"Bearer {token}"}, f"{settings['store_url']}/readyz"
        async with aiohttp.ClientSession(headers=headers) as client, client.get(url) as answer:
            assert answer.status == 200


async def test_a_postgres_that_stops_answering_is_shown_as_unresponsive_until_it_answers(up: Start) -> None:
    async with up("--only", "postgres") as running:
        await running.until("up")
        pid = running.pid("postgres")
        os.kill(pid, signal.SIGSTOP)
        try:
            await running.until("unresponsive", "postgres")
            assert running.stack()["processes"]["postgres"]["state"] == "unresponsive"
            _, out, _ = await relight("status", "--home", str(running.home))
            assert f"postgres  unresponsive  {pid}" in out
        finally:
            os.kill(pid, signal.SIGCONT)
        await running.until("ready", "postgres")
        assert (running.pid("postgres"), running.stack()["processes"]["postgres"]["restarts"]) == (pid, 0)


def cached_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A Temporal server in a cache of the test's own, and a `go` on its path that the test is to write."""
    real = temporal_binary.find(folder).found
    assert real
    cached = folder / "cache" / "relight" / f"temporal-{temporal_binary.CLI_VERSION}"
    cached.parent.mkdir(parents=True)
    shutil.copy2(real.path, cached)
    go = folder / "bin" / "go"
    go.parent.mkdir()
    go.touch(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")
    return cached, go


async def test_a_temporal_server_whose_file_is_missing_is_obtained_again(
    up: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order in which it was looked for at first: here Go makes one, where it can not be downloaded."""
    cached, go = cached_server(tmp_path, monkeypatch)
    go.write_text(f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ncp {shutil.copy2(cached, tmp_path)} "$2"\n')
    async with up("--only", "temporal") as running:
        await running.until("up")
        cached.unlink()
        os.kill(running.pid("temporal"), signal.SIGKILL)
        await running.until("restarting", "temporal")
        assert "file was deleted" in (await running.until("note", "temporal"))["text"]
        await running.until("ready", "temporal")
        assert running.stack()["processes"]["temporal"]["restarts"] == 1
        assert cached.exists()


async def test_a_stack_that_builds_its_temporal_server_stops_at_once_on_sigterm(
    up: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build takes minutes: to wait for it would have `relight down` kill Postgres with everything else."""
    cached, go = cached_server(tmp_path, monkeypatch)
    go.write_text(f"#!/bin/sh\n/bin/sleep 600 & echo $! > {go}.pid; wait\n")
    async with up("--only", "temporal") as running:
        await running.until("up")
        cached.unlink()
        os.kill(running.pid("temporal"), signal.SIGKILL)

        async def builds() -> bool:
            return (go.parent / "go.pid").exists()

        await eventually(builds)
        running.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            await running.process.communicate()
        assert running.process.returncode == 0
    assert await gone([int((go.parent / "go.pid").read_text())], 5) == []


async def test_a_home_of_a_release_before_0_1_ends_the_boot_with_the_remedy(up: Start) -> None:
    async with up("--only", "postgres") as first:
        await first.until("up")
        async with connected_as(OWNER, first.stack()["settings"]["postgres_url"]) as connection:
            await connection.execute("alter table migrations drop column digest")
    code, _, err = await relight("up", "--home", str(first.home), "--only", "postgres,store")
    assert code == 1
    assert err.startswith("error: store can't be started: ")
    assert "made by a Relight before 0.1" in err
    assert "Use a new home (--home or RELIGHT_HOME)" in err


async def test_a_stack_that_cannot_boot_reports_the_reason_alone(tmp_path: Path) -> None:
    data = tmp_path / "home" / "postgres" / "data"
    data.mkdir(parents=True)
    (data / "PG_VERSION").write_text("16\n")
    code, _, err = await relight("up", "--home", str(tmp_path / "home"), "--only", "postgres,store")
    assert code == 1
    assert err.startswith("error: postgres can't be started: ")
    assert "was made by Postgres 16" in err
    assert len(err.splitlines()) == 1, "no traceback, and no line of a library's"
    assert not (tmp_path / "home" / "logs" / "commands.log").exists(), "none that is only hidden either"
