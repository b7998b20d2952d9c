"""What one sees of a run is what Postgres holds."""

from __future__ import annotations

import aiohttp
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from relight.cli.rollouts import attempt_lines
from relight.cli.store_reader import StoreReader
from relight.errors import NotFoundError, RelightError
from relight.store.client import LightningStoreClient
from relight.store.database import Database
from relight.store.runs.views import RunViews
from relight.store_api.view_routes import router
from relight.types.views import RolloutFilter
from tests.integration.views.serving import serve
from tests.support.store_service import TOKEN


async def test_runs_come_newest_first_with_their_last_figures(seeded: Database) -> None:
    newest, oldest = await RunViews(seeded).runs()
    assert (newest.run, newest.agent, newest.algorithm) == ("calc-1", "calculator", "rloo")
    assert (newest.step, newest.total_steps, newest.reward, newest.held_out) == (1, 4, 0.5, 0.52)
    assert (oldest.run, oldest.algorithm, oldest.reward) == ("old", "grpo", None)


async def test_a_run_shows_its_open_step_and_what_each_rollout_does(seeded: Database) -> None:
    run = await RunViews(seeded).run("calc-1")
    assert run.open_step is not None
    assert (run.open_step.step, run.open_step.status) == (2, "planned")
    counts = run.open_step.rollouts
    assert (counts.planned, counts.queued, counts.running, counts.succeeded) == (5, 1, 1, 1)
    assert (counts.failed, counts.cancelled, counts.retried) == (1, 1, 1)
    assert counts.failures == {"agent_error": 1, "cancelled": 1}
    assert counts.reward_mean == 1.0


async def test_a_run_shows_curves_versions_and_engines(seeded: Database) -> None:
    run = await RunViews(seeded).run("calc-1")
    assert run.rewards == {1: 0.5}
    (evaluation,) = run.evaluations
    assert (evaluation.version, evaluation.score, evaluation.reward) == (0, 0.52, 0.53)
    assert (evaluation.rewarded, evaluation.failed) == (239, 1)
    assert (run.published, run.checkpointed) == (1, 0)
    assert [(engine.engine_id, engine.version) for engine in run.engines] == [("e1", 1)]
    assert [host.host for host in run.gpu_hosts] == ["box"]


async def test_an_evaluation_in_progress_is_shown_until_its_result_is_recorded(seeded: Database) -> None:
    async with seeded.transaction() as tx:
        await tx.connection.execute(
            "insert into rollouts (rollout_id, run, step, kind, group_number, index_in_group, status) values"
            " ('x1', 'calc-1', 1, 'eval', 0, 0, 'succeeded'), ('x2', 'calc-1', 1, 'eval', 1, 0, 'running');"
            "update runs set phase = 'evaluating' where run = 'calc-1'"
        )
    opened = (await RunViews(seeded).run("calc-1")).open_evaluation
    assert opened is not None
    assert (opened.version, opened.rollouts.planned, opened.rollouts.running) == (1, 2, 1)
    async with seeded.transaction() as tx:
        await tx.connection.execute(
            "insert into metrics (run, step, name, value) values ('calc-1', 1, 'eval/failed', 2)"
        )
    assert (await RunViews(seeded).run("calc-1")).open_evaluation is None


async def test_evaluation_rollouts_are_not_counted_with_the_step(seeded: Database) -> None:
    async with seeded.transaction() as tx:
        await tx.connection.execute(
            "insert into rollouts (rollout_id, run, step, kind, group_number, index_in_group)"
            " values ('x', 'calc-1', 2, 'eval', 0, 0)"
        )
    opened = (await RunViews(seeded).run("calc-1")).open_step
    assert opened is not None
    assert opened.rollouts.planned == 5


async def test_steps_come_in_order_without_the_evaluation_of_version_0(seeded: Database) -> None:
    first, second = await RunViews(seeded).steps("calc-1")
    assert (first.step, first.reward, first.seconds) == (1, 0.5, {"rollouts": 1.5, "total": 2.0})
    assert (first.rollouts.planned, first.rollouts.retried) == (2, 2)
    assert second.recorded_at is None
    assert [step.step for step in await RunViews(seeded).steps("calc-1", recorded=True)] == [1]
    assert [step.step for step in await RunViews(seeded).steps("calc-1", after=1)] == [2]


async def test_pages_of_rollouts_join_to_the_whole_list(seeded: Database) -> None:
    whole = (await RunViews(seeded).rollouts("calc-1")).items
    paged: list[str] = []
    cursor = None
    while True:
        page = await RunViews(seeded).rollouts("calc-1", RolloutFilter(cursor=cursor, limit=2))
        paged += [rollout.rollout_id for rollout in page.items]
        cursor = page.next
        if cursor is None:
            break
    assert paged == [rollout.rollout_id for rollout in whole]
    assert len(paged) == 7


@pytest.mark.parametrize(
    ("filters", "number"),
    [
        ({"step": 1}, 2),
        ({"status": "succeeded"}, 3),
        ({"failure_class": "agent_error"}, 1),
        ({"kind": "eval"}, 0),
        ({"step": 2, "status": "failed"}, 1),
    ],
)
async def test_rollouts_are_filtered(seeded: Database, filters: dict[str, object], number: int) -> None:
    page = await RunViews(seeded).rollouts("calc-1", RolloutFilter(**filters))  # type: ignore[arg-type]
    assert len(page.items) == number


async def test_a_rollout_shows_why_each_attempt_failed(seeded: Database) -> None:
    rollout = await RunViews(seeded).rollout("calc-1-s0002-g01-i1")
    assert rollout.input == {"question": "2+2?"}
    first, second = rollout.tries
    assert (first.failure_class, first.message, first.generations) == ("infrastructure", "the runner died", 0)
    assert (second.failure_class, second.output, second.generations) == ("agent_error", "thinking...", 1)
    assert second.error == {"type": "KeyError", "traceback": "..."}
    assert [(reward.attempt_id, reward.grader, reward.value) for reward in rollout.rewards] == [("a2", "agent", 0.25)]


async def test_generations_include_request_and_response(seeded: Database) -> None:
    (call,) = await RunViews(seeded).generations("calc-1-s0002-g01-i1")
    assert (call.request, call.response) == ({"body": "request"}, {"body": "response"})
    assert (call.prompt_tokens, call.response_tokens) == (3, 2)
    (bare,) = await RunViews(seeded).generations("calc-1-s0002-g01-i1", bodies=False)
    assert (bare.request, bare.response) == (None, None)


async def test_the_audit_shows_changes_and_refusals(seeded: Database) -> None:
    change, refusal = await RunViews(seeded).audit("calc-1")
    assert (change.actor, change.after, change.effective_step) == ("ann", {"learning_rate": 0.2}, 3)
    assert refusal.refused == "is paused already"
    assert await RunViews(seeded).audit("calc-1", after=refusal.id) == []


async def test_what_does_not_exist_is_named(seeded: Database) -> None:
    with pytest.raises(NotFoundError, match="no run 'nope'"):
        await RunViews(seeded).run("nope")
    with pytest.raises(NotFoundError, match="no rollout 'nope'"):
        await RunViews(seeded).rollout("nope")


async def test_the_routes_answer_with_the_views(seeded: Database) -> None:
    async with serve(_app(seeded)) as url, StoreReader(url, "secret") as reader:
        assert await reader.runs() == await RunViews(seeded).runs()
        assert await reader.run("calc-1") == await RunViews(seeded).run("calc-1")
        assert await reader.steps("calc-1") == await RunViews(seeded).steps("calc-1")
        assert await reader.rollouts("calc-1", step=1) == await RunViews(seeded).rollouts(
            "calc-1", RolloutFilter(step=1)
        )
        name = "calc-1-s0002-g01-i1"
        assert await reader.rollout(name) == await RunViews(seeded).rollout(name)
        assert await reader.generations(name) == await RunViews(seeded).generations(name)
        assert await reader.audit("calc-1") == await RunViews(seeded).audit("calc-1")
        assert await reader.versions("calc-1") == await RunViews(seeded).versions("calc-1")
        cluster = await reader.cluster()
        assert [(worker.worker_id, worker.serves) for worker in cluster.workers] == [("r1", ["calculator"])]


async def test_a_missing_run_is_not_found_over_http_too(seeded: Database) -> None:
    async with serve(_app(seeded)) as url, StoreReader(url, None) as reader:
        with pytest.raises(NotFoundError, match="no run 'nope'"):
            await reader.run("nope")
        with pytest.raises(NotFoundError, match="no run 'nope'"):
            await reader.rollouts("nope")


async def test_a_page_size_out_of_bounds_is_refused(seeded: Database) -> None:
    async with serve(_app(seeded)) as url, aiohttp.ClientSession() as session:
        answer = await session.get(f"{url}/v1/relight/runs?limit=100000")
        assert answer.status == 422


def _app(database: Database) -> FastAPI:
    app = FastAPI()
    app.state.database = database
    app.include_router(router)

    @app.exception_handler(RelightError)
    async def answer(_request: Request, error: RelightError) -> JSONResponse:
        return JSONResponse({"detail": error.message, "status": error.http_status}, error.http_status)

    return app


async def test_spans_that_were_not_kept_are_shown_wherever_their_attempt_is(seeded: Database, store_url: str) -> None:
    attempt_id = await seeded.pool.fetchval(
        "update attempts set spans_dropped = 401 where attempt_id = (select min(attempt_id) from attempts)"
        " returning attempt_id"
    )
    rollout_id = await seeded.value("rollout_of_attempt", attempt_id)
    async with StoreReader(store_url, TOKEN) as reader:
        shown = next(one for one in (await reader.rollout(rollout_id)).tries if one.attempt_id == attempt_id)
    assert shown.spans_dropped == 401
    assert any("spans dropped: 401" in line for line in attempt_lines(shown, counts=False))
    async with LightningStoreClient(store_url, TOKEN) as store:
        found = {attempt.attempt_id: attempt.spans_dropped for attempt in await store.query_attempts(rollout_id)}
    assert found[attempt_id] == 401
    address, headers = f"{store_url}/v1/agl/rollouts/{rollout_id}/attempts", {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(address) as response:
        assert "spans_dropped" not in (await response.json())["items"][0]
