"""A part without an address of its own is asked after by its reports."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from relight.observability.process_reports import own_report
from relight.stack.addresses import decide
from relight.stack.process_factory import ProcessFactory, StackRequest
from relight.store.database import Database
from relight.store.workers import register_worker


@pytest.mark.parametrize("kind", ["orchestrator", "gpu-worker", "runner"])
async def test_a_process_that_stops_reporting_is_unresponsive_unless_postgres_is_down(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("RELIGHT_POSTGRES_URL", database.url)
    asked = StackRequest(agents=["agents:any"])
    part = ProcessFactory(asked, decide({"home": tmp_path}, None), None, None, print).make(kind)[0]
    assert part.answers
    assert await part.answers(os.getpid()), "it has not reported yet"
    await register_worker(database, own_report(kind, worker_id="of an older process with this pid"))
    await database.pool.execute("update workers set last_heartbeat = now() - interval '1 day'")
    await register_worker(database, own_report(kind))
    assert await part.answers(os.getpid())
    await database.pool.execute("update workers set last_heartbeat = now() - interval '40 s'")
    assert not await part.answers(os.getpid())
    monkeypatch.setenv("RELIGHT_POSTGRES_URL", f"{database.url}-that-is-not-there")
    away = ProcessFactory(asked, decide({"home": tmp_path}, None), None, None, print).make(kind)[0]
    assert away.answers
    assert await away.answers(os.getpid())
