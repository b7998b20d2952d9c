"""The schema, partitions and errors of the database layer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

import relight
from relight.errors import ConfigError, ConflictError, InvalidRequestError, NotFoundError, PostgresError
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import MIGRATIONS_TABLE, Database, digest_of, migrations, queries
from relight.store.maintenance.check import check_store
from relight.store.maintenance.partitions import DAYS_AHEAD, ensure_partitions
from tests.support.postgres import as_role, create_database
from tests.support.store_kit import PostgresKit, call, opened, span

PARTITIONED = 4


async def test_many_services_may_migrate_at_once(postgres_url: str) -> None:
    url = await create_database(postgres_url, template="template0")
    pools = await asyncio.gather(*(Database.connect(url, max_size=2) for _ in range(4)))
    newest = migrations()[-1][0]
    assert await asyncio.gather(*(pool.migrate() for pool in pools)) == [newest] * 4
    assert await pools[0].pool.fetchval("select count(*) from migrations") == len(migrations())
    for pool in pools:
        await pool.close()


async def test_no_two_files_of_the_schema_have_one_number() -> None:
    numbers = [number for number, _, _ in migrations()]
    assert numbers == sorted(set(numbers))


@asynccontextmanager
async def recorded(postgres_url: str, number: int, name: str, digest: str | None) -> AsyncGenerator[Database]:
    """A database in which a file of a schema is recorded, and nothing else; before 0.1 without a digest."""
    database = await Database.connect(await create_database(postgres_url, template="template0"))
    await database.pool.execute(MIGRATIONS_TABLE)
    await database.pool.execute(
        "insert into migrations (version, name, digest) values ($1, $2, $3)", number, name, digest or ""
    )
    if digest is None:
        await database.pool.execute("alter table migrations drop column digest")
    yield database
    await database.close()


async def test_a_file_that_was_added_after_a_later_one_is_applied_too(postgres_url: str) -> None:
    newest, name, text = migrations()[-1]
    async with recorded(postgres_url, newest, name, digest_of(text)) as database:
        assert await database.migrate() == newest
        applied = await database.pool.fetch("select version, name from migrations order by version")
        assert [tuple(row) for row in applied] == [(number, name) for number, name, _ in migrations()]
        assert await database.pool.fetchval("select to_regclass('events') is not null")


@pytest.mark.parametrize(
    ("number", "name", "digest", "mend"),
    [
        (1, "0001_initial.sql", None, "new home .* or an empty database"),
        (1, "01_datasets.sql", "of an earlier text", "new home .* or an empty database"),
        (999, "999_later.sql", "x", "newer Relight"),
    ],
)
async def test_a_database_of_an_earlier_or_newer_release_is_refused_with_the_remedy_and_left_as_it_is(
    postgres_url: str, number: int, name: str, digest: str | None, mend: str
) -> None:
    async with recorded(postgres_url, number, name, digest) as database:
        for use in (database.migrate(), check_store(database)):
            with pytest.raises(ConfigError, match=mend):
                await use
        tables = await database.pool.fetch(
            "select relname from pg_class where relkind = 'r' and relname !~ '^(pg|sql)_'"
        )
        assert [row[0] for row in tables] == ["migrations"]


async def test_every_named_query_is_understood_by_postgres(database: Database) -> None:
    async with database.pool.acquire() as connection:
        for name, text in queries().items():
            try:
                await connection.prepare(text)
            except asyncpg.PostgresError as error:
                pytest.fail(f"query {name}: {error}")


async def test_every_column_is_read_by_a_query_a_function_or_the_code(database: Database) -> None:
    columns = await database.pool.fetch(
        "select table_name, column_name from information_schema.columns where table_schema = 'public'"
        " and table_name not in (select relname from pg_class where relispartition)"
    )
    functions = await database.pool.fetch("select prosrc from pg_proc where pronamespace = 'public'::regnamespace")
    code = [file.read_text() for file in Path(relight.__file__).parent.rglob("*.py")]
    text = "\n".join([*queries().values(), *(row["prosrc"] for row in functions), *code])
    read = set(re.findall(r"\w+", re.sub(r"insert into \w+ \([^)]*\)", "", text)))
    assert [tuple(row) for row in columns if row["column_name"] not in read] == []


async def test_partitions_are_made_ahead_and_take_the_rows(postgres_url: str) -> None:
    database = await Database.connect(as_role(await create_database(postgres_url)))
    made = await asyncio.gather(*(ensure_partitions(database) for _ in range(3)))
    assert sorted(made) == [0, 0, PARTITIONED * (1 + DAYS_AHEAD)]
    kit = PostgresKit(database, await PostgresStore.create(database, "http://gateway"))
    await kit.start()
    for rollout_id, days in (("today", 0), ("stray", 400)):
        await kit.add_rollout(rollout_id)
        await database.pool.execute("update rollouts set day = day + $2::int where rollout_id = $1", rollout_id, days)
        attempt = await opened(kit, rollout_id)
        await kit.store.commit_generations([call(attempt)])
        await kit.store.add_spans(rollout_id, attempt.attempt_id, attempt.fence, [span()])
    for table in ("generations", "spans"):
        homes = await database.pool.fetch(f"select rollout_id, tableoid::regclass::text from {table}")
        day = await database.pool.fetchval("select day from rollouts where rollout_id = 'today'")
        assert dict(map(tuple, homes)) == {"today": f"{table}_{day:%Y%m%d}", "stray": f"{table}_default"}
    await database.close()


async def test_a_day_whose_rows_are_in_the_default_partition_stays_there(postgres_url: str) -> None:
    database = await Database.connect(as_role(await create_database(postgres_url)))
    today = await database.pool.fetchval("select (now() at time zone 'utc')::date")
    await database.pool.execute("insert into bodies values ($1, 'x', 'x')", today + timedelta(days=1))
    assert await ensure_partitions(database) == PARTITIONED * (1 + DAYS_AHEAD) - 1
    assert await database.pool.fetchval("select count(*) from bodies") == 1
    await database.close()


async def test_terminal_states_hold_against_plain_sql(postgres_kit: PostgresKit) -> None:
    attempt = await opened(postgres_kit)
    pool = postgres_kit.database.pool
    await pool.execute("update attempts set status = 'failed', ended_at = now()")
    with pytest.raises(asyncpg.PostgresError, match=attempt.attempt_id):
        await pool.execute("update attempts set status = 'succeeded'")
    with pytest.raises(asyncpg.PostgresError, match="has ended"):
        await pool.execute("update attempts set ended_at = null")
    await pool.execute("update rollouts set status = 'succeeded'")
    with pytest.raises(asyncpg.PostgresError, match="can not become"):
        await pool.execute("update rollouts set status = 'running'")


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("do $$ begin raise exception 'no' using errcode = 'RL404'; end $$", NotFoundError),
        ("do $$ begin raise exception 'no' using errcode = 'RL409'; end $$", ConflictError),
        ("do $$ begin raise exception 'no' using errcode = '40P01'; end $$", PostgresError),
        ("do $$ begin raise exception 'no' using errcode = '57P01'; end $$", PostgresError),
        ("select 'x'::int", InvalidRequestError),
        ("select 1 / 0", InvalidRequestError),
    ],
)
async def test_errors_of_postgres_become_ours(database: Database, sql: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        async with database.transaction() as tx:
            await tx.connection.execute(sql)


async def test_a_transaction_that_fails_leaves_nothing_behind_on_its_connection(database_url: str) -> None:
    database = await Database.connect(database_url, max_size=1)

    async def fail() -> None:
        async with database.transaction() as tx:
            await tx.connection.execute("insert into secrets values ('left over', '')")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    assert await database.pool.fetchval("select count(*) from secrets") == 0
    await database.close()


async def test_what_a_transaction_writes_it_reads_and_others_read_it_once_it_has_ended(database: Database) -> None:
    async with database.transaction() as tx:
        await tx.execute("insert_dataset", "d", "somewhere", 3)
        assert (await tx.one("get_dataset", "d"))["row_count"] == 3
        assert await database.row("get_dataset", "d") is None
    assert (await database.one("get_dataset", "d"))["row_count"] == 3


@pytest.mark.parametrize(
    "url", ["postgresql://u:secret@127.0.0.1:1/x", "http://what", "postgresql://u:secret@/x?port=y"]
)
async def test_a_postgres_out_of_reach_is_named_without_its_password(url: str) -> None:
    with pytest.raises(PostgresError, match="can't reach Postgres") as caught:
        await Database.connect(url)
    assert "secret" not in str(caught.value)


async def test_the_token_key_is_made_once(database_url: str) -> None:
    databases = [await Database.connect(database_url, max_size=2) for _ in range(4)]
    stores = await asyncio.gather(*(PostgresStore.create(database, "http://g") for database in databases))
    assert len({store._key for store in stores}) == 1
    for database in databases:
        await database.close()
