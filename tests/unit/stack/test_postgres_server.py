"""The embedded Postgres' folders: sockets that fit, data of our version, leftovers of a killed server."""

from __future__ import annotations

import asyncio
import os
import pwd
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from relight.errors import StackError
from relight.stack import postgres_roles, postgres_server
from relight.stack.postgres_server import PostgresServer

MAKE = "import sys; from relight.stack import postgres_server as p; print(p._owner(sys.argv[1]).pw_uid)"


@pytest.fixture
def server(tmp_path: Path) -> PostgresServer:
    """Served by our own user, with data that looks made."""
    made = PostgresServer(tmp_path / "postgres", postgres_server.binaries_folder(), tmp_path / "postgres/socket", None)
    made.data.mkdir(parents=True)
    (made.data / "PG_VERSION").write_text("18\n")
    (made.data / "pg_hba.conf").write_text(postgres_roles.HBA)
    made.password_file.write_text("*:*:*:relight_owner:x\n*:*:*:relight_service:x\n")
    return made


def test_the_socket_lies_beside_the_data_where_its_path_is_short_enough(tmp_path: Path) -> None:
    assert postgres_server.socket_folder(Path("/data/relight/postgres")) == Path("/data/relight/postgres/socket")
    deep = tmp_path / ("deep" * 30) / "postgres"
    moved = postgres_server.socket_folder(deep)
    assert moved.parent == Path("/tmp")
    assert len(os.fsencode(moved / ".s.PGSQL.5432.lock")) <= 107
    assert moved == postgres_server.socket_folder(deep)
    assert moved != postgres_server.socket_folder(deep.with_name("other"))


def test_the_url_names_the_socket_whatever_its_folder_is_called() -> None:
    server = PostgresServer(Path("/x"), Path("/y"), Path("/a b&c/socket"), None)
    assert server.url() == "postgresql://relight_service@/postgres?host=/a%20b%26c/socket&passfile=/postgres.pgpass"


async def test_data_of_another_version_is_refused_with_a_remedy(server: PostgresServer) -> None:
    (server.data / "PG_VERSION").write_text("16\n")
    with pytest.raises(StackError, match=r"made by Postgres 16, and this is 18; dump and restore it"):
        await postgres_server.prepare(server)


async def test_the_pid_file_of_a_killed_server_does_not_prevent_a_start(server: PostgresServer) -> None:
    pid_file = server.data / "postmaster.pid"
    pid_file.write_text(f"{os.getpid()}\n/elsewhere\n")
    await postgres_server.prepare(server)
    assert not pid_file.exists()


async def test_an_orphaned_server_is_stopped(server: PostgresServer) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)", "-D", str(server.data)]
    leftover = await asyncio.create_subprocess_exec(*command)
    (server.data / "postmaster.pid").write_text(f"{leftover.pid}\n")
    await postgres_server.prepare(server)
    assert await asyncio.wait_for(leftover.wait(), 20) < 0


def test_a_wheel_that_was_installed_under_a_strict_umask_is_opened_for_reading(tmp_path: Path) -> None:
    program, library = tmp_path / "bin" / "postgres", tmp_path / "lib" / "x.so"
    for path, mode in ((program, 0o700), (library, 0o600)):
        path.parent.mkdir(mode=0o700)
        path.touch(mode)
    postgres_server._open_tree(tmp_path)
    assert program.stat().st_mode & 0o777 == 0o705
    assert library.stat().st_mode & 0o777 == 0o604
    assert library.parent.stat().st_mode & 0o777 == 0o705


async def test_a_folder_of_another_user_is_not_used(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(StackError, match="belongs to another user"):
        await postgres_server.prepare(server)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes users")
def test_stacks_that_start_concurrently_use_the_same_system_user() -> None:
    name = f"relight-{os.getpid()}"

    def make(_: int) -> int:
        return int(subprocess.check_output([sys.executable, "-c", MAKE, name]))

    try:
        with ThreadPoolExecutor(4) as pool:
            ids = set(pool.map(make, range(4)))
        assert ids == {pwd.getpwnam(name).pw_uid}
    finally:
        subprocess.run(["userdel", name], check=True)
