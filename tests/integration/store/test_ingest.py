"""Spans of known and unknown attempts, on a real Postgres."""

from __future__ import annotations

import asyncio
import math
import random
from typing import Any

import pytest

from relight.errors import InvalidRequestError, NotFoundError
from relight.store.database import Database
from relight.store.queue.reads import query_spans
from relight.store.spans.ingest import SpanIngest
from relight.store.spans.rows import MAX_SEQUENCE_ID
from relight.types.queries import SpanQuery
from relight.types.tracer import Span
from tests.support.seeds import seed_attempt, seed_rollout


@pytest.fixture
async def ingest(database: Database) -> SpanIngest:
    """An ingest over the rollouts r1 and r2, each with an attempt that has not begun."""
    for number in (1, 2):
        await seed_rollout(database, f"r{number}", None)
        await seed_attempt(database, f"r{number}", f"a{number}")
    return SpanIngest(database)


def span(span_id: str, sequence_id: int = -1, rollout: int = 1, **fields: Any) -> Span:
    values: dict[str, Any] = {
        "rollout_id": f"r{rollout}",
        "attempt_id": f"a{rollout}",
        "sequence_id": sequence_id,
        "trace_id": "0" * 32,
        "span_id": span_id,
        "name": "step",
        "start_time": 1.0,
        "end_time": 2.0,
    }
    return Span(**(values | fields))


async def stored(database: Database, rollout_id: str = "r1") -> list[Span]:
    return list(await query_spans(database, SpanQuery(rollout_id=rollout_id)))


async def test_a_span_comes_back_as_it_was_given(database: Database, ingest: SpanIngest) -> None:
    given = span(
        "s",
        7,
        parent_id="p",
        status={"status_code": "ERROR", "description": "broke"},
        attributes={"a": [1, 2.5, None, {"b": True}]},
        events=[{"name": "e", "timestamp": 1.5, "attributes": {"k": "v"}}],
        links=[{"context": {"trace_id": "t"}}],
        context={"trace_id": "0" * 32},
        resource={"attributes": {"service.name": "agent"}, "schema_url": ""},
        own_key={"kept": 1},
    )
    assert await ingest.add([given]) == [given]
    assert await stored(database) == [given]


async def test_names_and_ids_may_be_empty_or_hold_control_characters(database: Database, ingest: SpanIngest) -> None:
    alone = span("alone", 1, name="", parent_id="", trace_id="")
    assert await ingest.add([alone]) == [alone]
    others = [
        span("b\x1f", 2, name="left\x1fright\x1e"),
        span("c", 3, name="\x1f", parent_id=None),
        span("", 4, name=""),
    ]
    assert await ingest.add(others) == others
    assert await stored(database) == [alone, *others]


async def test_large_values_are_stored_once_and_come_back_whole(database: Database, ingest: SpanIngest) -> None:
    long = "again and again " * 500
    spans = [
        span(
            str(n),
            n,
            attributes={"messages": long, "small": n},
            events=[{"name": long}],
            resource={"attributes": {"l": long}},
        )
        for n in range(1, 6)
    ]
    await ingest.add(spans)
    assert await stored(database) == spans
    assert await database.pool.fetchval("select count(*) from bodies") == 3
    assert await database.pool.fetchval("select max(pg_column_size(s.*)) from spans s") < 2500


async def test_concurrent_spans_are_numbered_without_gaps(database: Database, ingest: SpanIngest) -> None:
    other = SpanIngest(database)
    batches = [
        (one, [span(f"{n}-{i}", rollout=1 + n % 2) for i in range(3)]) for n, one in enumerate([ingest, other] * 10)
    ]
    added = await asyncio.gather(*(one.add(spans) for one, spans in batches))
    for rollout in ("r1", "r2"):
        numbers = [s.sequence_id for spans in added for s in spans if s.rollout_id == rollout]
        assert sorted(numbers) == list(range(1, 31))
        assert [s.sequence_id for s in await stored(database, rollout)] == list(range(1, 31))


async def test_a_given_sequence_id_raises_the_counter(database: Database, ingest: SpanIngest) -> None:
    spans = await ingest.add([span("1"), span("2", 100), span("3"), span("4", 5), span("5"), span("6", 100)])
    assert [s.sequence_id for s in spans] == [1, 100, 101, 5, 102, 100]
    assert [s.sequence_id for s in await ingest.add([span("7"), span("8", 0)])] == [103, 0]


async def test_duplicates_are_skipped_and_the_rest_is_stored(database: Database, ingest: SpanIngest) -> None:
    await ingest.add([span("1"), span("2")])
    added = await ingest.add([span("2"), span("3"), span("3"), span("1", 50), span("4")])
    assert [(s.span_id, s.sequence_id) for s in added] == [("3", 3), ("4", 4)]
    assert ingest.counts == {"new": 4, "duplicate": 3}


@pytest.mark.parametrize("changes", [{"rollout_id": "r9"}, {"attempt_id": "a9"}, {"attempt_id": "a2"}])
async def test_a_span_of_an_unknown_attempt_fails_for_its_caller_alone(
    database: Database, ingest: SpanIngest, changes: dict[str, Any]
) -> None:
    lost = span("lost", **changes)
    results = await asyncio.gather(
        ingest.add([span("1")]),
        ingest.add([span("2"), lost, span("3")]),
        ingest.add([span("4")]),
        return_exceptions=True,
    )
    assert isinstance(results[1], NotFoundError)
    assert [s.span_id for s in await stored(database)] == ["1", "2", "3", "4"]


async def test_spans_that_postgres_refuses_fail_alone(database: Database, ingest: SpanIngest) -> None:
    too_long = random.Random(0).randbytes(9000).hex()  # no index takes such a key
    given = [span(str(n)) for n in range(40)]
    given[7] = span(too_long)
    given[31] = span("x" + too_long)
    outcomes = await asyncio.gather(*(ingest.add([one]) for one in given), return_exceptions=True)
    assert [n for n, outcome in enumerate(outcomes) if isinstance(outcome, InvalidRequestError)] == [7, 31]
    assert [s.sequence_id for s in await stored(database)] == list(range(1, 39))
    assert ingest.counts["rejected"] == 2


async def test_values_that_json_lacks_are_stored_as_text(database: Database, ingest: SpanIngest) -> None:
    await ingest.add(
        [
            span(
                "1",
                attributes={"nul\x00": "a\x00b", "nan": math.nan, "big": 2**70, "lone": "\ud800"},
                start_time=math.inf,
            )
        ]
    )
    [kept] = await stored(database)
    assert kept.attributes == {"nul\ufffd": "a\ufffdb", "nan": "nan", "big": str(2**70), "lone": "?"}
    assert kept.start_time is None


async def test_a_sequence_id_out_of_range_is_refused(ingest: SpanIngest) -> None:
    with pytest.raises(InvalidRequestError, match="sequence_id"):
        await ingest.add([span("1", MAX_SEQUENCE_ID + 1)])


async def test_the_first_span_starts_the_attempt_and_each_extends_its_deadline(
    database: Database, ingest: SpanIngest
) -> None:
    await ingest.add([span("1")])
    first = await database.pool.fetchrow("select status, last_heartbeat from attempts where attempt_id = 'a1'")
    assert first["status"] == "running"
    assert await database.pool.fetchval("select status from rollouts where rollout_id = 'r1'") == "running"
    assert await database.pool.fetchval("select status from rollouts where rollout_id = 'r2'") == "preparing"
    await ingest.add([span("2")])
    assert await database.pool.fetchval("select last_heartbeat from attempts where attempt_id = 'a1'") > first[1]


async def test_spans_of_an_ended_attempt_leave_the_newer_one_alone(database: Database, ingest: SpanIngest) -> None:
    await database.pool.execute("update attempts set status = 'timeout', ended_at = now() where attempt_id = 'a1'")
    await seed_attempt(database, "r1", "a1b", 2)
    await ingest.add([span("late")])
    states = await database.pool.fetch("select attempt_id, status from attempts where rollout_id = 'r1' order by 1")
    assert [tuple(row) for row in states] == [("a1", "timeout"), ("a1b", "preparing")]
    assert await database.pool.fetchval("select status from rollouts where rollout_id = 'r1'") == "preparing"
