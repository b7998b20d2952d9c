"""Attacks on the embedded Postgres: by a process without its passwords, and by one with those of a service."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from relight.processes.child import tied_to_parent
from relight.retrying import Backoff, retry
from relight.stack import postgres_roles, postgres_server
from relight.stack.embedded import EmbeddedStack
from relight.stack.postgres_roles import OWNER, SERVICE, SUPERUSER
from relight.store.database import MIGRATIONS_TABLE, Database, digest_of, migrations
from tests.integration.stack.conftest import descendants
from tests.support.postgres import as_role

HOST_CODE = "copy (select 1) to program 'touch /tmp/relight-was-here'"
REFUSED = (
    HOST_CODE,
    "copy runs from program 'id'",
    "copy runs to '/tmp/relight-was-here'",
    "alter system set listen_addresses = '*'",
    "create role intruder superuser",
    "alter role relight_service superuser",
    "alter role relight_owner password 'x'",
    "create database intruder",
    "select rolpassword from pg_authid",
    "select pg_read_file('pg_hba.conf')",
    "select pg_ls_dir('.')",
    "select lo_import('/etc/passwd')",
    "set role relight_owner",
    "set session authorization relight",
    "set session_replication_role = replica",
    "create function f() returns int language internal as 'x'",
    "create table intruder (x int)",
    "create temporary table runs (x int)",
    "alter table attempts disable trigger all",
    "drop table runs",
    "insert into migrations (version, name) values (999, 'x')",
    "update migrations set version = 999 where version = 1",
    "delete from migrations",
    "truncate runs",
    "select pg_reload_conf()",
)
NO_ROLES = f"""
reassign owned by {OWNER} to {SUPERUSER};

drop owned by {OWNER};

drop owned by {SERVICE};

alter database postgres owner to {SUPERUSER};

drop role {OWNER}, {SERVICE};
"""
OF_OTHERS = """
select c.oid::regclass::text from pg_class c
where relnamespace = 'public'::regnamespace and relowner <> 'relight_owner'::regrole
union all
select p.oid::regprocedure::text from pg_proc p
where pronamespace = 'public'::regnamespace and proowner <> 'relight_owner'::regrole
"""


def without_password(url: str, role: str) -> str:
    host = parse_qs(urlsplit(url).query)["host"][0]
    return f"postgresql://{role}@/postgres?host={host}&passfile=/dev/null"


@pytest.mark.parametrize("role", [SUPERUSER, OWNER, SERVICE, "postgres"])
@pytest.mark.parametrize("password", [None, "", "relight"])
async def test_no_role_connects_without_the_password(postgres_url: str, role: str, password: str | None) -> None:
    with pytest.raises((asyncpg.InvalidPasswordError, asyncpg.InterfaceError)):
        await asyncpg.connect(without_password(postgres_url, role), password=password)


@pytest.mark.parametrize("statement", REFUSED)
async def test_the_role_of_the_services_is_refused(database: Database, statement: str) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await database.pool.execute(statement)


async def test_the_role_of_the_services_drops_no_table_but_days(database: Database) -> None:
    with pytest.raises(asyncpg.RaiseError, match="only partitions of days are dropped, given runs"):
        await database.execute("drop_partition", "runs")


async def test_the_owner_of_the_schema_runs_no_code_on_the_host_either(database_url: str) -> None:
    connection = await asyncpg.connect(as_role(database_url, OWNER))
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await connection.execute(HOST_CODE)
    await connection.close()


async def test_passwords_are_in_one_private_file_and_nowhere_else(up: Callable[..., Any]) -> None:
    async with up("--only", "postgres,temporal,store,gateway,orchestrator") as running:
        await running.until("up")
        file = running.home / postgres_roles.PASSWORD_FILE
        assert file.stat().st_mode & 0o777 == 0o600
        secrets = [line.split(":")[4].encode() for line in file.read_text().splitlines()]
        assert len(secrets) == 2
        pids = [running.process.pid, *descendants(running.process.pid)]
        assert len(pids) > 10
        exposed = [Path(f"/proc/{pid}/{name}") for pid in pids for name in ("cmdline", "environ")]
        logs = [path for path in running.home.glob("logs/*") if path.is_file()]
        read = {path: path.read_bytes() for path in (*exposed, *logs, running.home / "stack.json") if path.exists()}
        assert b"passfile" in read[running.home / "stack.json"]
        assert [path for path, text in read.items() if any(secret in text for secret in secrets)] == []


@pytest.fixture
async def old_home(tmp_path: Path) -> Path:
    """A home from before there were roles: every connection is trusted, and the superuser owns the schema."""
    server = postgres_server.describe(tmp_path / "home")
    await postgres_server.prepare(server)
    postgres_roles.execute_alone(server.binaries, server.data, server.user, NO_ROLES)
    (server.data / "pg_hba.conf").write_text("local all all trust\n")
    server.password_file.unlink()
    process = await asyncio.create_subprocess_exec(
        *tied_to_parent(server.command(), signal.SIGQUIT, server.user), stderr=asyncio.subprocess.DEVNULL
    )
    url = without_password(server.url(), SUPERUSER)
    backoff = Backoff(0.1, 1.0, within_seconds=60)
    connection = await retry(partial(asyncpg.connect, url), OSError, asyncpg.PostgresError, backoff=backoff)
    await connection.execute(MIGRATIONS_TABLE)
    for version, name, sql in migrations():
        if name != "19_least_privilege.sql":
            await connection.execute(sql)
            values = "insert into migrations (version, name, digest) values ($1, $2, $3)"
            await connection.execute(values, version, name, digest_of(sql))
    await connection.execute("insert into secrets values ('kept', 'x')")
    await connection.close()
    process.send_signal(signal.SIGINT)
    await process.wait()
    return tmp_path / "home"


async def test_a_home_where_every_connection_was_trusted_is_moved_with_its_rows(old_home: Path) -> None:
    async with EmbeddedStack(old_home, only=("postgres", "store")) as stack:
        await stack.wait_ready()
        url = str(stack.settings.postgres_url)
        for role in (SUPERUSER, OWNER, SERVICE):
            with pytest.raises((asyncpg.InvalidPasswordError, asyncpg.InterfaceError)):
                await asyncpg.connect(without_password(url, role))
        connection = await asyncpg.connect(url)
        assert await connection.fetchval("select current_user") == SERVICE
        assert await connection.fetchval("select value from secrets where name = 'kept'") == b"x"
        assert await connection.fetch(OF_OTHERS) == []
        assert await connection.fetchval("select ensure_partition_v1('spans', '2040-01-01')")
        assert await connection.fetchval("select count(*) from spans_20400101") == 0
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(HOST_CODE)
        await connection.close()
    passwords = (old_home / postgres_roles.PASSWORD_FILE).read_text()
    async with EmbeddedStack(old_home, only=("postgres",)) as stack:
        await stack.wait_ready()
    assert (old_home / postgres_roles.PASSWORD_FILE).read_text() == passwords


async def test_new_passwords_are_made_where_their_file_was_lost(tmp_path: Path) -> None:
    for _ in range(2):
        async with EmbeddedStack(tmp_path, only=("postgres",)) as stack:
            await stack.wait_ready()
            await (await asyncpg.connect(stack.settings.postgres_url)).close()
        (tmp_path / postgres_roles.PASSWORD_FILE).unlink()
