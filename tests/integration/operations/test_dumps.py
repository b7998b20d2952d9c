"""Databases of earlier schemas: each dump under tests/dumps reaches today's schema with every row."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from relight.store.database import Database, migrations
from relight.store.maintenance.check import check_store
from relight.store.runs import views
from relight.store.training import ledger
from tests.dumps.make import FOLDER
from tests.support.postgres import create_database, database_url
from tests.support.small_run import RUN, play_small_run

DUMPS = {path.stem: path.read_text() for path in sorted(FOLDER.glob("schema-*.sql"))}
MIGRATE = """
import asyncio, sys
from relight.store.database import Database
async def main():
    database = await Database.connect(sys.argv[1], max_size=1)
    print("ready", flush=True)
    sys.stdin.readline()
    print(await database.migrate(), flush=True)
    await database.close()
asyncio.run(main())
"""


DROPPED = {"file_hash"}
"""Columns that no release reads any more."""


@asynccontextmanager
async def loaded(postgres_url: str, dump: str) -> AsyncGenerator[Database]:
    """A database as the dump has it, not yet migrated."""
    url = await create_database(postgres_url, template="template0")
    connection = await asyncpg.connect(url)
    await connection.execute(DUMPS[dump])
    await connection.close()
    database = await Database.connect(url)
    yield database
    await database.close()


async def read_rows(database: Database) -> dict[str, list[Any]]:
    """Each table's rows."""
    async with database.pool.acquire() as connection:
        tables = await connection.fetch(
            "select relname from pg_class where relnamespace = 'public'::regnamespace"
            " and relkind in ('r', 'p') and not relispartition and relname <> 'migrations' order by 1"
        )
        return {
            row[0]: [dict(found) for found in await connection.fetch(f"select * from {row[0]} x order by x::text")]
            for row in tables
        }


def lost(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that are no longer there as they were; columns that came later, or were dropped, don't matter."""

    def compared(row: dict[str, Any]) -> dict[str, Any]:
        return {name: row.get(name) for name in before[0] if name not in DROPPED}

    kept = [compared(row) for row in after]
    return [row for row in before if compared(row) not in kept]


def test_the_first_schema_that_was_frozen_has_a_dump() -> None:
    assert "schema-0003" in DUMPS


@pytest.mark.parametrize("dump", DUMPS)
async def test_a_database_of_an_earlier_schema_is_migrated_with_every_row(postgres_url: str, dump: str) -> None:
    async with loaded(postgres_url, dump) as database:
        before = await read_rows(database)
        assert await database.migrate() == migrations()[-1][0]
        after = await read_rows(database)
        assert [table for table, rows in before.items() if lost(rows, after.get(table, []))] == []
        assert await check_store(database) == []
        run = await views.get_run(database, RUN)
        assert (run.status, run.step, run.published) == ("finished", 2, 2)
        assert [len(await ledger.read_rows(database, RUN, step)) for step in (1, 2)] == [4, 4]


@pytest.mark.parametrize("dump", DUMPS)
async def test_a_migrated_database_takes_new_runs(postgres_url: str, dump: str, tmp_path: Path) -> None:
    async with loaded(postgres_url, dump) as database:
        await database.migrate()
        await play_small_run(database, tmp_path, "after")
        assert await check_store(database) == []
        assert (await views.get_run(database, "after")).status == "finished"


async def test_processes_that_start_at_once_migrate_a_database_once(postgres_url: str) -> None:
    async with loaded(postgres_url, "schema-0003") as database:
        address = database_url(postgres_url, await database.pool.fetchval("select current_database()"))
        pipes: dict[str, Any] = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
        processes = [
            await asyncio.create_subprocess_exec(sys.executable, "-c", MIGRATE, address, **pipes) for _ in range(4)
        ]
        for process in processes:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
        answers = await asyncio.gather(*(process.communicate(b"\n") for process in processes))
        assert [answer for answer, _ in answers] == [f"{migrations()[-1][0]}\n".encode()] * 4
        versions = await database.pool.fetch("select version from migrations order by version")
        assert [row[0] for row in versions] == [number for number, _, _ in migrations()]


async def test_a_migration_that_came_to_be_after_a_later_one_is_made_up_for(postgres_url: str) -> None:
    async with loaded(postgres_url, "schema-0003") as database:
        name = migrations()[-1][1]
        await database.pool.execute("insert into migrations (version, name) values ($1, $2)", migrations()[-1][0], name)
        assert await database.migrate() == migrations()[-1][0]
        versions = await database.pool.fetch("select version from migrations order by version")
        assert [row[0] for row in versions] == [number for number, _, _ in migrations()]
        assert await database.pool.fetchval("select to_regclass('events') is not null")
