"""Retention: old days go whole, what a run needs stays, and nothing else is lost."""

from __future__ import annotations

import asyncio
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from relight.errors import ConfigError
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.store.maintenance.check import check_store
from relight.store.maintenance.partitions import ensure_partitions
from relight.store.maintenance.retention import Day, RetentionPolicy, choose, parse_days, parse_size, retain
from relight.store.runs.views import RunViews
from relight.store.training import ledger
from relight.store_api.server import maintain_once
from tests.support.postgres import SUPERUSER, connected_as
from tests.support.small_run import RUN, SmallRun, play_small_run
from tests.support.store_kit import PostgresKit, call, finish, opened, span

LARGE = ("spans", "generations", "bodies", "call_failures")
KEPT = ("rollouts", "attempts", "rewards", "steps", "step_rollouts", "training_rows", "policy_versions", "metrics")


async def counts(database: Database, tables: tuple[str, ...]) -> dict[str, int]:
    return {table: await database.pool.fetchval(f"select count(*) from {table}") for table in tables}


async def age(database: Database, days: int, *, partitions: bool = True) -> date:
    """Make everything that is there so many days old, in partitions of that day or in the default ones."""
    async with connected_as(SUPERUSER, database.url) as connection, connection.transaction():
        await connection.execute("set local session_replication_role = replica")
        day = await connection.fetchval("select (now() at time zone 'utc')::date") - timedelta(days=days)
        if partitions:
            for table in LARGE:
                await connection.fetchval("select ensure_partition_v1($1, $2)", table, day)
        for table in (*LARGE, "rollouts"):
            await connection.execute(f"update {table} set day = $1 where day > $1", day)
        return day


async def dropped(database: Database, policy: RetentionPolicy, **options: Any) -> list[Day]:
    return [day for day in await retain(database, policy, **options) if day.action == "dropped"]


@pytest.mark.parametrize("partitions", [True, False], ids=["partitions of the day", "default partitions"])
async def test_an_old_day_is_dropped_and_the_record_of_its_run_stays(finished: Database, partitions: bool) -> None:
    day = await age(finished, 31, partitions=partitions)
    kept = await counts(finished, KEPT)
    assert [gone.day for gone in await dropped(finished, RetentionPolicy(days=30))] == [day]
    assert await counts(finished, LARGE) == dict.fromkeys(LARGE, 0)
    assert await counts(finished, KEPT) == kept
    assert await check_store(finished) == []
    assert len(await ledger.read_rows(finished, RUN, 1)) == 4
    rollout = await RunViews(finished).rollout(f"{RUN}-s0001-g00-i0")
    assert len(rollout.tries) == 2
    assert await RunViews(finished).generations(rollout.rollout_id) == []
    audit = await finished.pool.fetchrow("select actor, action, after from audit where action = 'drop_day'")
    assert audit["after"]["day"] == day.isoformat()


async def test_a_day_within_the_age_stays(finished: Database) -> None:
    await age(finished, 30)
    before = await counts(finished, LARGE)
    assert await dropped(finished, RetentionPolicy(days=30)) == []
    assert await counts(finished, LARGE) == before


async def test_a_dry_run_says_what_would_go_and_drops_nothing(finished: Database) -> None:
    day = await age(finished, 31)
    before = await counts(finished, LARGE)
    assert [found.day for found in await dropped(finished, RetentionPolicy(days=30), dry_run=True)] == [day]
    assert await counts(finished, LARGE) == before


async def test_the_oldest_days_go_until_the_rest_is_small_enough(finished: Database, tmp_path: Path) -> None:
    old = await age(finished, 3)
    await play_small_run(finished, tmp_path, "newer")
    newer = await age(finished, 2)
    sizes = {day.day: day.size_bytes for day in await retain(finished, RetentionPolicy())}
    total = sum(sizes.values())
    assert [day.day for day in await dropped(finished, RetentionPolicy(size_bytes=total), dry_run=True)] == []
    assert [day.day for day in await dropped(finished, RetentionPolicy(size_bytes=total - 1), dry_run=True)] == [old]
    assert [day.day for day in await dropped(finished, RetentionPolicy(size_bytes=total - sizes[old] - 1))] == [
        old,
        newer,
    ]


async def test_today_stays_whatever_its_size(finished: Database) -> None:
    before = await counts(finished, LARGE)
    assert await dropped(finished, RetentionPolicy(days=1, size_bytes=1)) == []
    assert await counts(finished, LARGE) == before


async def test_a_day_that_an_open_step_of_an_unfinished_run_needs_stays(database: Database, tmp_path: Path) -> None:
    await ensure_partitions(database)
    run = SmallRun(database, await PostgresStore.create(database, "http://gateway"), tmp_path)
    await run.begin()
    await run.sample(1)
    await age(database, 100)
    for status in ("running", "interrupted", "failed", "cancelled"):
        await database.pool.execute("update runs set status = $1", status)
        (kept,) = [day for day in await retain(database, RetentionPolicy(days=30)) if day.reason]
        assert (kept.action, kept.reason) == ("kept", f"step 1 of run {RUN} needs it")
    await database.pool.execute("update runs set status = 'running'")
    await run.write_ledger(1)
    assert await dropped(database, RetentionPolicy(days=30)) == []
    await run.update(1)
    assert len(await dropped(database, RetentionPolicy(days=30))) == 1
    assert await check_store(database) == []


async def test_a_day_that_a_replay_has_still_to_train_on_stays(finished: Database) -> None:
    await age(finished, 100)
    await finished.pool.execute(
        "insert into runs (run, file, driver, total_steps, train_dataset, parent_run, parent_step, replays)"
        " select 'again', file, driver, 2, train_dataset, run, 0, true from runs"
    )
    (kept,) = [day for day in await retain(finished, RetentionPolicy(days=30)) if day.reason]
    assert (kept.action, kept.reason) == ("kept", "replay again needs it")
    await finished.pool.execute("update runs set status = 'finished', finished_at = now()")
    assert len(await dropped(finished, RetentionPolicy(days=30))) == 1


async def test_a_day_with_an_open_rollout_stays_and_its_calls_are_taken(postgres_url: str, database: Database) -> None:
    await ensure_partitions(database)
    kit = PostgresKit(database, await PostgresStore.create(database, "http://gateway"))
    await kit.start()
    await kit.load(0)
    await kit.add_rollout("outside", external=True)
    await age(database, 100)
    attempt = await opened(kit, "outside")
    assert await dropped(database, RetentionPolicy(days=30)) == []
    await kit.store.commit_generations([call(attempt)])
    await finish(kit, attempt)
    assert len(await dropped(database, RetentionPolicy(days=30))) == 1
    late = await kit.store.add_spans("outside", attempt.attempt_id, attempt.fence, [span("late")])
    assert late == 1


async def test_services_that_apply_retention_concurrently_drop_a_day_once(finished: Database) -> None:
    await age(finished, 31)
    await asyncio.gather(*(maintain_once(finished, RetentionPolicy(days=30)) for _ in range(4)))
    assert await counts(finished, LARGE) == dict.fromkeys(LARGE, 0)
    assert await finished.pool.fetchval("select count(*) from audit where action = 'drop_day'") == 1


async def test_a_day_with_a_reader_is_dropped_an_hour_later(finished: Database) -> None:
    await age(finished, 31)
    before = await counts(finished, LARGE)
    async with finished.pool.acquire() as reader, reader.transaction():
        await reader.fetch("select * from spans")
        await maintain_once(finished, RetentionPolicy(days=30))
    assert await counts(finished, LARGE) == before
    await maintain_once(finished, RetentionPolicy(days=30))
    assert await counts(finished, LARGE) == dict.fromkeys(LARGE, 0)


async def test_without_a_policy_everything_is_kept(finished: Database) -> None:
    await age(finished, 1000)
    before = await counts(finished, LARGE)
    await maintain_once(finished, RetentionPolicy())
    assert await counts(finished, LARGE) == before


def test_a_needed_day_does_not_keep_younger_ones() -> None:
    days = [Day(date(2026, 1, number), size_bytes=10) for number in (1, 2, 3)]
    gone = choose(days, RetentionPolicy(size_bytes=15), date(2026, 2, 1), {date(2026, 1, 1): "run a"})
    assert [day.day.day for day in gone] == [2, 3]


@pytest.mark.parametrize(("text", "days"), [("30d", 30), ("4w", 28), (" 7 ", 7), ("1D", 1)])
def test_ages_are_parsed(text: str, days: int) -> None:
    assert parse_days(text) == days


@pytest.mark.parametrize(
    ("text", "size"), [("50GB", 50 * 10**9), ("1.5tb", 15 * 10**11), ("512MiB", 2**29), ("12", 12), ("3 B", 3)]
)
def test_sizes_are_parsed(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0d", "-1d", "soon", "3h", "1.5d"])
def test_an_invalid_age_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="30d"):
        parse_days(text)


@pytest.mark.parametrize("text", ["", "many", "-5GB", "5XB", "GB"])
def test_an_invalid_size_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="50GB"):
        parse_size(text)
