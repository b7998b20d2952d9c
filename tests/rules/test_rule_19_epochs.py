"""Rule 19: a run has an epoch, raised by each new workflow; every activity that changes something carries it."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from relight.activities.orchestrator import OrchestratorActivities
from relight.errors import SupersededError
from relight.gpu_worker.host import GpuHost
from relight.settings import Settings
from relight.store.database import Database
from relight.types.payloads import (
    ChangeInput,
    CheckInput,
    CloseRolloutInput,
    FinishInput,
    NextRolloutsInput,
    RunRequest,
    StepInput,
)
from relight.worker.orchestrator import activities_of
from tests.rules.kit import begin
from tests.support.orchestration import write_tasks

DRIVEN: dict[str, Any] = {"run": "driven", "epoch": 1}
REFUSED: dict[str, Any] = {
    "check_runners": CheckInput(**DRIVEN, agent="echo", runner_queue="relight-runner"),
    "advance_preflight": RunRequest(**DRIVEN),
    "plan_step": StepInput(**DRIVEN, step=2),
    "plan_evaluation": StepInput(**DRIVEN, step=0),
    "record_evaluation": StepInput(**DRIVEN, step=0),
    "advance_batch": NextRolloutsInput(**DRIVEN, step=1, batch=0),
    "close_rollout": CloseRolloutInput(**DRIVEN, rollout_id="driven-s0001-g00-i0"),
    "change_run": ChangeInput(**DRIVEN, action="pause", actor="late", request_key="late", value={}),
    "finish_run": FinishInput(**DRIVEN, status="failed"),
    "claim_gpu": RunRequest(**DRIVEN),
    "update_policy": StepInput(**DRIVEN, step=1),
}
OTHERWISE = {
    "begin_run": "makes the epoch",
    "batch_status": "reads",
    "prepare_engines": "starts what the run's newest version says, for any caller",
    "release_gpu": "leaves a newer epoch's host alone: test_rule_15_one_writer",
    "run_attempt": "opening is keyed by its execution and fenced: test_rule_01_opening",
    "grade_attempt": "its attempt is fenced",
}
"""Activities whose input has an epoch and that are not refused by it."""


def activities(database: Database, temporal: Client, folder: Path) -> dict[str, Callable[[Any], Awaitable[Any]]]:
    host = GpuHost(database, Settings(home=folder, data_root=folder), "host-a", "relight-gpu.host-a")
    methods = [*activities_of(OrchestratorActivities(database, temporal, folder)), *activities_of(host)]
    return {vars(method.__func__)["__temporal_activity_definition"].name: method for method in methods}


async def facts(database: Database) -> list[Any]:
    """All rows that an activity could have changed."""
    tables = ("runs", "steps", "rollouts", "attempts", "audit", "metrics", "policy_versions", "step_rollouts")
    return [await database.pool.fetch(f"select * from {table} order by 1, 2") for table in tables]


async def test_what_an_older_epoch_asks_for_is_refused_and_changes_nothing(
    temporal: Client, database: Database, tmp_path: Path
) -> None:
    run = await begin(database, tmp_path, "driven")
    await run.plan(1)
    await database.pool.execute("update runs set epoch = 2 where run = 'driven'")
    before = await facts(database)
    known = activities(database, temporal, tmp_path)
    for name, asked in REFUSED.items():
        with pytest.raises(SupersededError):
            await known[name](asked)
        assert await facts(database) == before, name


async def test_no_activity_with_an_epoch_was_forgotten(temporal: Client, database: Database, tmp_path: Path) -> None:
    write_tasks(tmp_path)
    with_epoch: set[str] = set()
    for name, method in activities(database, temporal, tmp_path).items():
        hints = typing.get_type_hints(method)
        inputs = [hints[parameter] for parameter in inspect.signature(method).parameters]
        if any("epoch" in kind.model_fields for kind in inputs):
            with_epoch.add(name)
    assert with_epoch - {*REFUSED, *OTHERWISE} == set()
