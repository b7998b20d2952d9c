"""Rule 15: one writer of versions, by a lease with a fence; a GPU host serves one run at a time and says whose."""

from __future__ import annotations

from pathlib import Path

import pytest

from relight.errors import LeaseLostError
from relight.gpu_worker.host import GpuHost
from relight.settings import Settings
from relight.store.database import Database
from relight.store.runs import lifecycle
from relight.store.training import ledger
from relight.store.training.ledger import PolicyVersion
from relight.types.payloads import FinishInput, RunRequest
from tests.rules.kit import begin


async def test_a_worker_that_lost_its_lease_records_nothing_and_the_row_names_the_holder(
    database: Database, tmp_path: Path
) -> None:
    run = await begin(database, tmp_path, "written")
    name = f"policy/{run.name}"
    slow = await ledger.take_lease(database, name, "slow", 60)
    assert slow is not None
    assert await ledger.take_lease(database, name, "quick", 60) is None
    await database.pool.execute("update leases set expires_at = now() - interval '1 s'")  # it was frozen for long
    quick = await ledger.take_lease(database, name, "quick", 60)
    assert quick is not None
    assert quick > slow
    await ledger.record_version(database, run.name, PolicyVersion(1, "theirs", "quick", None), (name, "quick", quick))
    assert not await ledger.renew_lease(database, name, "slow", slow, 60)
    with pytest.raises(LeaseLostError):
        await ledger.record_version(database, run.name, PolicyVersion(1, "mine", "slow", None), (name, "slow", slow))
    await ledger.release_lease(database, name, "slow", slow)
    assert await ledger.renew_lease(database, name, "quick", quick, 60)
    rows = await database.pool.fetch("select fence, weights_hash from policy_versions where version = 1")
    assert [tuple(row) for row in rows] == [(quick, "theirs")]


async def test_the_lease_of_one_policy_does_not_block_a_writer_of_another(database: Database) -> None:
    fences = [await database.value("take_lease", "policy/r", policy, "host-" + policy, 60) for policy in ("a", "b")]
    assert fences == sorted(fences)
    assert await database.value("take_lease", "policy/r", "a", "host-b", 60) is None


async def test_a_host_serves_one_run_until_it_ends_and_another_run_gets_its_name(
    database: Database, tmp_path: Path
) -> None:
    first, second = await begin(database, tmp_path, "first"), await begin(database, tmp_path, "second")
    host = GpuHost(database, Settings(home=tmp_path), "host-a", "relight-gpu.host-a")
    await host.start()
    assert (await host.claim(RunRequest(run="first", epoch=1))).granted
    refused = await host.claim(RunRequest(run="second", epoch=1))
    assert (refused.granted, refused.waiting_for) == (False, "GPU host host-a is in use by run first")
    assert await second.value("waiting_for") == "GPU host host-a is in use by run first"
    await lifecycle.finish_run(database, FinishInput(run=first.name, epoch=1, status="failed"))
    assert (await host.claim(RunRequest(run="second", epoch=1))).granted


async def test_a_late_release_takes_no_host_from_a_newer_epoch(database: Database, tmp_path: Path) -> None:
    await begin(database, tmp_path, "again")
    host = GpuHost(database, Settings(home=tmp_path), "host-a", "relight-gpu.host-a")
    await host.start()
    await host.claim(RunRequest(run="again", epoch=1))
    await database.pool.execute("update runs set epoch = 2 where run = 'again'")
    await host.claim(RunRequest(run="again", epoch=2))
    await host.release(RunRequest(run="again", epoch=1))
    assert await database.pool.fetchval("select run from gpu_hosts where host = 'host-a'") == "again"
    await host.release(RunRequest(run="again", epoch=2))
    assert await database.pool.fetchval("select run from gpu_hosts where host = 'host-a'") is None
