"""Views of runs, read from Postgres; read-only."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import asyncpg

from relight.errors import NotFoundError
from relight.store.database import Database, Queries
from relight.store.generations import unpack_body
from relight.store.workers import GONE_SECONDS
from relight.types.names import POLICY
from relight.types.views import (
    AttemptView,
    AuditView,
    ClusterView,
    Counts,
    EngineView,
    EvaluationView,
    GenerationView,
    GpuHostView,
    OpenEvaluation,
    Page,
    RewardView,
    RolloutFilter,
    RolloutSummary,
    RolloutView,
    RunSummary,
    RunView,
    StepView,
    VersionView,
    WorkerView,
)

STATUS_COUNTERS = {
    "queuing": "queued",
    "requeuing": "queued",
    "preparing": "running",
    "running": "running",
    "succeeded": "succeeded",
    "failed": "failed",
    "cancelled": "cancelled",
}


class RunViews:
    """Reads runs and what belongs to them."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def runs(self, limit: int = 100) -> list[RunSummary]:
        """Runs, newest first."""
        return await self._db.models(RunSummary, "view_runs", None, limit)

    async def run(self, run: str) -> RunView:
        """One run with its progress.

        Raises:
            NotFoundError: there is no such run.
        """
        async with self._db.transaction() as tx:
            rows = await tx.fetch("view_runs", run, 1)
            if not rows:
                raise NotFoundError(f"there is no run {run!r}; `relight runs` lists them")
            marks = await tx.row("view_version_marks", run, POLICY)
            beside = {
                "rewards": await _rewards(tx, run),
                "evaluations": await _evaluations(tx, run),
                "engines": await tx.models(EngineView, "view_engines", run),
                "gpu_hosts": await tx.models(GpuHostView, "view_gpu_hosts", run),
                "open_step": await _open_step(tx, run),
                "open_evaluation": await _open_evaluation(tx, run, rows[0]["phase"]),
            }
            return RunView.model_validate({**dict(rows[0]), **dict(marks or {}), **beside})

    async def steps(
        self, run: str, *, after: int = 0, recorded: bool | None = None, limit: int = 200
    ) -> list[StepView]:
        """Training steps after `after`, oldest first."""
        return await _steps(self._db, run, after, recorded, limit)

    async def rollouts(self, run: str, wanted: RolloutFilter | None = None) -> Page[RolloutSummary]:
        """A page of a run's rollouts, by id."""
        wanted = wanted or RolloutFilter()
        filters = (wanted.step, wanted.kind, wanted.status, wanted.failure_class, wanted.cursor)
        found = await self._db.models(RolloutSummary, "view_rollouts", run, *filters, wanted.limit + 1)
        items = found[: wanted.limit]
        return Page[RolloutSummary](items=items, next=items[-1].rollout_id if len(found) > wanted.limit else None)

    async def rollout(self, rollout_id: str) -> RolloutView:
        """A rollout with its attempts and rewards.

        Raises:
            NotFoundError: there is no such rollout.
        """
        row = await _rollout(self._db, rollout_id)
        inspections = await self._db.fetch("view_inspections", rollout_id)
        beside = {
            "input": row["task"],
            "tries": await self._db.models(AttemptView, "view_attempts", rollout_id, row["day"]),
            "rewards": await self._db.models(RewardView, "view_rewards", rollout_id),
            "inspections": [row["rollout_id"] for row in inspections],
        }
        return RolloutView.model_validate({**dict(row), **beside})

    async def generations(self, rollout_id: str, *, bodies: bool = True) -> list[GenerationView]:
        """A rollout's model calls, attempt by attempt.

        Raises:
            NotFoundError: there is no such rollout.
        """
        row = await _rollout(self._db, rollout_id)
        found = await self._db.fetch("view_generations", rollout_id, row["day"], bodies)
        return [GenerationView.model_validate(dict(call) | _bodies(call)) for call in found]

    async def versions(self, run: str) -> list[VersionView]:
        """The policy versions of a run."""
        return await self._db.models(VersionView, "view_versions", run)

    async def audit(self, run: str, *, after: int = 0, limit: int = 200) -> list[AuditView]:
        """Changes to a run, oldest first."""
        return await self._db.models(AuditView, "view_audit", run, after, limit)

    async def cluster(self) -> ClusterView:
        """All processes that reported, GPU hosts and engines."""
        return ClusterView(
            workers=await self._db.models(WorkerView, "view_workers", GONE_SECONDS),
            gpu_hosts=await self._db.models(GpuHostView, "view_gpu_hosts", None),
            engines=await self._db.models(EngineView, "view_engines", None),
        )


async def _rewards(database: Queries, run: str) -> dict[int, float]:
    rows = await database.fetch("view_rewards_by_step", run)
    return {row["step"]: row["reward"] for row in rows}


async def _evaluations(database: Queries, run: str) -> list[EvaluationView]:
    found: dict[int, dict[str, Any]] = defaultdict(dict)
    for row in await database.fetch("view_evaluations", run):
        name, _, source = row["name"].removeprefix("eval/").partition("/")
        figures = found[row["step"]].setdefault("sources", {}).setdefault(source, {}) if source else found[row["step"]]
        figures[name] = row["value"]
    return [EvaluationView.model_validate({"version": version, **all_}) for version, all_ in sorted(found.items())]


async def _steps(database: Queries, run: str, after: int, recorded: bool | None, limit: int) -> list[StepView]:
    rows = await database.fetch("view_steps", run, after, recorded, limit)
    if not rows:
        return []
    counts = await _counts(database, run, "train", rows[0]["step"], rows[-1]["step"])
    return [
        StepView.model_validate({**dict(row), "rollouts": counts.get(row["step"], Counts()).model_dump()})
        for row in rows
    ]


async def _open_step(database: Queries, run: str) -> StepView | None:
    found = await _steps(database, run, 0, False, 1)
    return found[0] if found else None


async def _open_evaluation(database: Queries, run: str, phase: str | None) -> OpenEvaluation | None:
    if phase != "evaluating":
        return None
    version = await database.value("view_open_evaluation", run)
    if version is None:
        return None
    counts = await _counts(database, run, "eval", version, version)
    return OpenEvaluation(version=version, rollouts=counts[version])


async def _counts(database: Queries, run: str, kind: str, first: int, last: int) -> dict[int, Counts]:
    by_step: dict[int, list[asyncpg.Record]] = defaultdict(list)
    for row in await database.fetch("view_counts", run, kind, first, last):
        by_step[row["step"]].append(row)
    return {step: _sum_up(rows) for step, rows in by_step.items()}


def _sum_up(rows: list[asyncpg.Record]) -> Counts:
    numbers: dict[str, int] = defaultdict(int)
    failures: dict[str, int] = defaultdict(int)
    for row in rows:
        numbers["planned"] += row["number"]
        numbers["retried"] += int(row["retried"])
        numbers[STATUS_COUNTERS[row["status"]]] += row["number"]
        if row["status"] in ("failed", "cancelled"):
            failures[row["failure_class"] or row["status"]] += row["number"]
    rewarded = sum(row["rewarded"] for row in rows)
    mean = sum(row["reward_sum"] or 0.0 for row in rows) / rewarded if rewarded else None
    return Counts(**numbers, failures=dict(failures), reward_mean=mean)


async def _rollout(db: Database, rollout_id: str) -> asyncpg.Record:
    row = await db.row("view_rollout", rollout_id)
    if row is None:
        raise NotFoundError(f"there is no rollout {rollout_id!r}; `relight rollouts RUN` lists a run's")
    return row


def _bodies(call: asyncpg.Record) -> dict[str, Any]:
    return {name: None if call[name] is None else unpack_body(call[name]) for name in ("request", "response")}
