"""Rule 23: what decides is not partitioned; what is large carries the day on which its rollout was created."""

from __future__ import annotations

from pathlib import Path

from relight.store.database import Database
from tests.rules.kit import begin
from tests.support.store_kit import call, failure, span

WHOLE = {"rollouts", "attempts", "steps", "step_rollouts"}
BY_DAY = {"spans", "generations", "bodies", "call_failures"}


async def test_rollouts_attempts_steps_and_the_ledger_are_whole_and_what_is_large_is_partitioned(
    database: Database,
) -> None:
    text = "select relname, relkind::text from pg_class where relname = any ($1)"
    kinds = {row["relname"]: row["relkind"] for row in await database.pool.fetch(text, [*WHOLE, *BY_DAY])}
    assert kinds == dict.fromkeys(WHOLE, "r") | dict.fromkeys(BY_DAY, "p")


async def test_what_an_attempt_writes_today_carries_the_day_of_its_rollout(database: Database, tmp_path: Path) -> None:
    run = await begin(database, tmp_path, "dated")
    await run.plan(1)
    old, new, *_ = [row["rollout_id"] for row in await run.rollouts(1)]
    await database.pool.execute("update rollouts set day = day - 3 where rollout_id = $1", old)
    for rollout in (old, new):
        attempt = await run.opened(rollout)
        await run.store.commit_generations([call(attempt, 1), call(attempt, 2)])
        await run.store.record_call_failures([failure(attempt, 3, "other")])
        await run.store.add_spans(rollout, attempt.attempt_id, attempt.fence, [span("one")])
    today = await database.pool.fetchval("select (now() at time zone 'utc')::date")
    for table in ("generations", "spans", "call_failures"):
        days = await database.pool.fetch(f"select distinct day from {table} order by day")
        assert [(today - row["day"]).days for row in days] == [3, 0], table
    text = "select day, array_agg(encode(hash, 'hex') order by hash) as hashes from bodies group by day"
    one, other = await database.pool.fetch(text)  # what both days' calls say is the same: it is stored once a day
    assert one["hashes"] == other["hashes"]
    assert len(set(one["hashes"])) == len(one["hashes"]) < 4
