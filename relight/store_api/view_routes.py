"""Read-only routes: runs, steps, rollouts, generations, audit, and the cluster's processes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from relight.operators import start_requests
from relight.store.database import Database
from relight.store.runs import views
from relight.types import views as answers

router = APIRouter(prefix="/v1/relight", tags=["views"])
Limit = Annotated[int, Query(ge=1, le=views.MAX_PAGE)]


def _database(request: Request) -> Database:
    return request.app.state.database


@router.get("/runs")
async def read_runs(request: Request, limit: Limit = 100) -> answers.Page[answers.RunSummary]:
    """Runs, newest first."""
    return answers.Page[answers.RunSummary](items=await views.list_runs(_database(request), limit))


@router.get("/runs/{run}")
async def read_run(request: Request, run: str) -> answers.RunView:
    """One run with its progress; until it has begun it is `requested`, or `refused` with the error."""
    return await start_requests.get_run(_database(request), run)


@router.get("/runs/{run}/steps")
async def read_steps(
    request: Request, run: str, after: int = 0, recorded: bool | None = None, limit: Limit = 200
) -> answers.Page[answers.StepView]:
    """Training steps after `after`, oldest first."""
    items = await views.list_steps(_database(request), run, after=after, recorded=recorded, limit=limit)
    return answers.Page[answers.StepView](items=items, next=str(items[-1].step) if len(items) == limit else None)


@router.get("/runs/{run}/rollouts")
async def read_rollouts(
    request: Request,
    run: str,
    step: int | None = None,
    kind: str | None = None,
    status: str | None = None,
    failure_class: str | None = None,
    cursor: str | None = None,
    limit: Limit = 100,
) -> answers.Page[answers.RolloutSummary]:
    """A page of a run's rollouts."""
    page = await views.list_rollouts(
        _database(request),
        run,
        step=step,
        kind=kind,
        status=status,
        failure_class=failure_class,
        cursor=cursor,
        limit=limit,
    )
    if not page.items and cursor is None:
        await views.get_run(_database(request), run)  # a run that does not exist is a 404, not an empty page
    return page


@router.get("/runs/{run}/versions")
async def read_versions(request: Request, run: str) -> answers.Page[answers.VersionView]:
    """The policy versions of a run."""
    return answers.Page[answers.VersionView](items=await views.list_versions(_database(request), run))


@router.get("/runs/{run}/audit")
async def read_audit(request: Request, run: str, after: int = 0, limit: Limit = 200) -> answers.Page[answers.AuditView]:
    """Changes to a run, oldest first."""
    items = await views.list_audit(_database(request), run, after=after, limit=limit)
    return answers.Page[answers.AuditView](items=items, next=str(items[-1].id) if len(items) == limit else None)


@router.get("/rollouts/{rollout_id}")
async def read_rollout(request: Request, rollout_id: str) -> answers.RolloutView:
    """A rollout with its attempts and rewards."""
    return await views.get_rollout(_database(request), rollout_id)


@router.get("/rollouts/{rollout_id}/generations")
async def read_generations(
    request: Request, rollout_id: str, bodies: bool = True
) -> answers.Page[answers.GenerationView]:
    """A rollout's model calls, with what was asked and answered."""
    return answers.Page[answers.GenerationView](
        items=await views.list_generations(_database(request), rollout_id, bodies=bodies)
    )


@router.get("/cluster")
async def read_cluster(request: Request) -> answers.ClusterView:
    """All workers that reported, GPU hosts and engines."""
    return await views.get_cluster(_database(request))
