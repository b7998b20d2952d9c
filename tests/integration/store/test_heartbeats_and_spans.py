"""Heartbeats, spans and workers (rule 2), the same in every store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relight.errors import ConflictError, NotFoundError
from relight.store.client import LightningStoreClient
from relight.types.store import Gpu, WorkerStatus
from relight.types.wire import WorkerReport
from tests.support.store_kit import PostgresKit, StoreKit, finish, opened, span
from tests.support.store_service import TOKEN, store_service


async def test_a_heartbeat_is_accepted_while_the_attempt_is_open(kit: StoreKit) -> None:
    attempt = await opened(kit)
    await kit.store.heartbeat(attempt.attempt_id, attempt.fence, "runner-1")
    with pytest.raises(ConflictError):
        await kit.store.heartbeat(attempt.attempt_id, attempt.fence + 1, "runner-1")
    await finish(kit, attempt)
    with pytest.raises(ConflictError):
        await kit.store.heartbeat(attempt.attempt_id, attempt.fence, "runner-1")


async def test_a_heartbeat_of_a_superseded_attempt_is_a_conflict(kit: StoreKit) -> None:
    attempt = await opened(kit)
    await opened(kit, execution="x2")
    with pytest.raises(ConflictError):
        await kit.store.heartbeat(attempt.attempt_id, attempt.fence, "runner-1")
    with pytest.raises(NotFoundError):
        await kit.store.heartbeat("at-404", 1, "runner-1")


async def add(kit: StoreKit, attempt: Any, *ids: str, fence: int | None = None) -> int:
    spans = [span(id_) for id_ in ids]
    return await kit.store.add_spans(attempt.rollout_id, attempt.attempt_id, fence, spans)


async def test_sequence_ids_are_gap_free_over_all_attempts_and_duplicates_are_skipped(kit: StoreKit) -> None:
    first = await opened(kit)
    assert await add(kit, first, "a", "b", "a", fence=first.fence) == 2
    second = await opened(kit, execution="x2")
    assert await add(kit, second, "a", "c", fence=second.fence) == 2
    assert await add(kit, second, "c", "d", "a", fence=second.fence) == 1
    assert await kit.spans("r1") == [
        (1, first.attempt_id, "a"),
        (2, first.attempt_id, "b"),
        (3, second.attempt_id, "a"),
        (4, second.attempt_id, "c"),
        (5, second.attempt_id, "d"),
    ]


async def test_sequence_ids_are_gap_free_under_concurrency(postgres_kit: PostgresKit) -> None:
    attempt = await opened(postgres_kit)
    await asyncio.gather(*(add(postgres_kit, attempt, f"s{n % 12}", f"t{n}") for n in range(24)))
    assert [number for number, _, _ in await postgres_kit.spans("r1")] == list(range(1, 37))


async def test_a_span_with_the_right_fence_sets_the_attempt_running(kit: StoreKit) -> None:
    attempt = await opened(kit)
    await add(kit, attempt, "a", fence=attempt.fence)
    assert (await kit.rollout("r1")).status == "running"


@pytest.mark.parametrize("stale", [True, False])
async def test_spans_with_a_stale_fence_or_none_are_kept_and_change_nothing(kit: StoreKit, stale: bool) -> None:
    attempt = await opened(kit)
    assert await add(kit, attempt, "a", fence=attempt.fence + 7 if stale else None) == 1
    assert (await kit.rollout("r1")).status == "preparing"


async def test_spans_after_the_end_are_kept_and_change_nothing(kit: StoreKit) -> None:
    attempt = await opened(kit)
    await finish(kit, attempt)
    assert await add(kit, attempt, "late", fence=attempt.fence) == 1
    assert (await kit.rollout("r1")).status == "succeeded"


async def test_spans_of_an_unknown_attempt_are_refused(kit: StoreKit) -> None:
    attempt = await opened(kit)
    await kit.add_rollout("r2")
    for rollout_id, attempt_id in (("r1", "at-404"), ("r404", attempt.attempt_id), ("r2", attempt.attempt_id)):
        with pytest.raises(NotFoundError):
            await kit.store.add_spans(rollout_id, attempt_id, None, [span()])


async def test_values_that_json_in_postgres_lacks_are_made_storable(kit: StoreKit) -> None:
    attempt = await opened(kit)
    attributes = {
        "nul\x00": "a\x00b",
        "nan": float("nan"),
        "infinity": [float("inf")],
        "big": 2**70,
        "nested": {"deep": [{"x": None}]},
        "surrogate": "\ud800",
        "true": True,
    }
    odd = span("odd", attributes=attributes, name="n\x00", start_time=float("nan"), end_time=float("inf"))
    assert await kit.store.add_spans("r1", attempt.attempt_id, attempt.fence, [odd]) == 1
    stored = await kit.attributes("r1", "odd")
    assert stored == {
        "nul\ufffd": "a\ufffdb",
        "nan": "nan",
        "infinity": ["inf"],
        "big": str(2**70),
        "nested": {"deep": [{"x": None}]},
        "surrogate": "?",
        "true": True,
    }


async def test_a_worker_that_reports_again_is_the_same_worker(postgres_kit: PostgresKit) -> None:
    report = WorkerReport(worker_id="w", kind="runner", host="h", pid=7, serves=["calc"])
    await postgres_kit.store.register_worker(report)
    await postgres_kit.store.register_worker(report.model_copy(update={"heartbeat_stats": {"slots": 4}}))
    rows = await postgres_kit.database.pool.fetch("select * from workers")
    assert [(row["worker_id"], row["serves"], row["heartbeat_stats"]) for row in rows] == [
        ("w", ["calc"], {"slots": 4})
    ]


async def test_what_a_worker_reports_is_what_it_is_read_as(postgres_kit: PostgresKit) -> None:
    report = WorkerReport(worker_id="g", kind="gpu-worker", host="h", pid=7, status=WorkerStatus.BUSY)
    reported = {
        "doing": ["update_policy"],
        "version": "1",
        "queues": ["q", "q.h"],
        "memory_bytes": 2**40,
        "gpus": [Gpu(name="A\ud800", memory_bytes=8)],
    }
    await postgres_kit.store.register_worker(report.model_copy(update=reported))
    async with (
        store_service(postgres_kit.store, postgres_kit.database) as url,
        LightningStoreClient(url, TOKEN) as client,
    ):
        worker = await client.get_worker_by_id("g")
        await postgres_kit.database.pool.execute("update workers set last_heartbeat = now() - interval '5 min'")
        silent = await client.get_worker_by_id("g")
        assert list(await client.query_workers(status_in=[WorkerStatus.BUSY])) == []
    assert silent is not None
    assert (silent.status, silent.doing, silent.version) == ("unknown", [], "1")
    assert worker is not None
    assert (worker.kind, worker.host, worker.pid, worker.status, worker.doing) == (
        *("gpu-worker", "h", 7, "busy"),
        ["update_policy"],
    )
    assert (worker.version, worker.queues, worker.memory_bytes) == ("1", ["q", "q.h"], 2**40)
    assert worker.gpus == [Gpu(name="A?", memory_bytes=8)]
    assert worker.last_busy_time == pytest.approx(worker.last_heartbeat_time)
    assert worker.last_idle_time is None
