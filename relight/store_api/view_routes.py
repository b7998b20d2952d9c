"""Read-only routes: runs, steps, rollouts, generations, audit, and the cluster's processes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from relight.operators import start_requests
from relight.store.runs.views import RunViews
from relight.types import views as answers
from relight.types.queries import MAX_PAGE

router = APIRouter(prefix="/v1/relight", tags=["views"])
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]


async def _views(request: Request) -> RunViews:
    return RunViews(request.app.state.database)


Views = Annotated[RunViews, Depends(_views)]


@router.get("/runs")
async def read_runs(views: Views, limit: Limit = 100) -> answers.Page[answers.RunSummary]:
    """Runs, newest first."""
    return answers.Page[answers.RunSummary](items=await views.runs(limit))


@router.get("/runs/{run}")
async def read_run(request: Request, run: str) -> answers.RunView:
    """One run with its progress; until it has begun it is `requested`, or `refused` with the error."""
    return await start_requests.get_run(request.app.state.database, run)


@router.get("/runs/{run}/steps")
async def read_steps(
    views: Views, run: str, after: int = 0, recorded: bool | None = None, limit: Limit = 200
) -> answers.Page[answers.StepView]:
    """Training steps after `after`, oldest first."""
    items = await views.steps(run, after=after, recorded=recorded, limit=limit)
    return answers.Page[answers.StepView](items=items, next=str(items[-1].step) if len(items) == limit else None)


@router.get("/runs/{run}/rollouts")
async def read_rollouts(
    views: Views, run: str, wanted: Annotated[answers.RolloutFilter, Query()]
) -> answers.Page[answers.RolloutSummary]:
    """A page of a run's rollouts."""
    page = await views.rollouts(run, wanted)
    if not page.items and wanted.cursor is None:
        await views.run(run)  # a run that does not exist is a 404, not an empty page
    return page


@router.get("/runs/{run}/versions")
async def read_versions(views: Views, run: str) -> answers.Page[answers.VersionView]:
    """The policy versions of a run."""
    return answers.Page[answers.VersionView](items=await views.versions(run))


@router.get("/runs/{run}/audit")
async def read_audit(views: Views, run: str, after: int = 0, limit: Limit = 200) -> answers.Page[answers.AuditView]:
    """Changes to a run, oldest first."""
    items = await views.audit(run, after=after, limit=limit)
    return answers.Page[answers.AuditView](items=items, next=str(items[-1].id) if len(items) == limit else None)


@router.get("/rollouts/{rollout_id}")
async def read_rollout(views: Views, rollout_id: str) -> answers.RolloutView:
    """A rollout with its attempts and rewards."""
    return await views.rollout(rollout_id)


@router.get("/rollouts/{rollout_id}/generations")
async def read_generations(views: Views, rollout_id: str, bodies: bool = True) -> answers.Page[answers.GenerationView]:
    """A rollout's model calls, with what was asked and answered."""
    return answers.Page[answers.GenerationView](items=await views.generations(rollout_id, bodies=bodies))


@router.get("/cluster")
async def read_cluster(views: Views) -> answers.ClusterView:
    """All workers that reported, GPU hosts and engines."""
    return await views.cluster()
