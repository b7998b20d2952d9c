"""What an evaluation measures: the reward of what brought one, and the score in which failures count."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import orjson
import pytest

from relight.datasets import load_tasks
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.store.runs import lifecycle
from relight.store.runs.views import RunViews
from relight.store.training import plans
from relight.types.names import POLICY
from relight.types.payloads import BeginInput, EvaluationResult
from relight.types.rollout import FailureClass
from relight.types.run_file import parse_run_file
from relight.types.wire import ResolveRequest
from tests.rules.kit import ManualRun, begin
from tests.support.orchestration import run_file, write_tasks
from tests.support.seeds import seed_engine

Ending = float | FailureClass


async def evaluate(run: ManualRun, version: int, endings: list[Ending]) -> EvaluationResult:
    """Play the held-out rollouts of a version in order, and record what came of it."""
    await plans.plan_evaluation(run.database, run.step_input(version))
    for row, ending in zip(await run.rollouts(version, "eval"), endings, strict=True):
        if isinstance(ending, FailureClass):
            await run.play(row["rollout_id"], failure=ending)
        else:
            await run.play(row["rollout_id"], ending)
    await run.advance(version, kind="eval")
    return await plans.record_evaluation(run.database, run.step_input(version))


async def with_sources(
    database: Database, folder: Path, name: str, sources: list[str | None], **changes: Any
) -> ManualRun:
    """A run whose held-out tasks name these sources, in order."""
    write_tasks(folder)
    tasks = [{"question": str(n)} | ({"data_source": source} if source else {}) for n, source in enumerate(sources)]
    (folder / "heldout.jsonl").write_bytes(b"\n".join(orjson.dumps(task) for task in tasks))
    file = parse_run_file(run_file(**changes))
    train, held_out = (load_tasks(f"{part}.jsonl", folder) for part in ("train", "heldout"))
    await lifecycle.begin_run(database, BeginInput(run=name, driver="driver", file=file), train, held_out)
    await seed_engine(database, f"engine-of-{name}", name)
    return ManualRun(database, await PostgresStore.create(database, "http://gateway"), name, file)


async def test_a_timeout_lowers_the_score_though_the_mean_over_rewards_rises(
    database: Database, tmp_path: Path
) -> None:
    run = await begin(database, tmp_path, "scored", evaluation={"limit": 4})
    well = await evaluate(run, 0, [1.0, 1.0, 0.0, 0.0])
    worse = await evaluate(run, 1, [1.0, 1.0, FailureClass.TIMEOUT, FailureClass.INFRASTRUCTURE])
    assert (well.reward, well.score, well.rewarded, well.failed) == (0.5, 0.5, 4, 0)
    assert (worse.reward, worse.score, worse.rewarded, worse.failed) == (1.0, 0.5, 2, 2)
    view = await RunViews(database).run("scored")
    assert [(one.version, one.reward, one.score) for one in view.evaluations] == [(0, 0.5, 0.5), (1, 1.0, 0.5)]
    assert view.held_out == 0.5


async def test_a_failure_counts_in_the_score_as_the_run_file_says(database: Database, tmp_path: Path) -> None:
    given = {"rewards": {"timeout": -1.0}}
    run = await begin(database, tmp_path, "valued", evaluation={"limit": 3}, failures=given)
    result = await evaluate(run, 0, [1.0, FailureClass.TIMEOUT, FailureClass.AGENT_ERROR])
    assert (result.reward, result.score) == (1.0, 0.0)


async def test_an_evaluation_without_a_reward_has_a_score_and_is_not_repeated(
    database: Database, tmp_path: Path
) -> None:
    unmoved = {"pause_above": None, "pause_without_reward": False}
    run = await begin(database, tmp_path, "nothing", evaluation={"limit": 1}, failures=unmoved)
    result = await evaluate(run, 0, [FailureClass.AGENT_ERROR])
    assert (result.reward, result.score) == (None, 0.0)
    train, held_out = (load_tasks(f"{part}.jsonl", tmp_path) for part in ("train", "heldout"))
    state = await lifecycle.begin_run(
        database, BeginInput(run="nothing", driver="driver", file=run.file), train, held_out
    )
    assert state.evaluations == {0: 0.0}


async def test_the_versions_that_are_kept_are_those_with_the_best_score(database: Database, tmp_path: Path) -> None:
    run = await begin(database, tmp_path, "kept", evaluation={"limit": 2})
    for version, endings in ((1, [0.75, 0.5]), (2, [1.0, FailureClass.TIMEOUT])):
        await run.plan(version)
        await run.play_all(version)
        await run.advance(version)
        await run.update(version)
        await evaluate(run, version, list(endings))
    stored = await database.fetch("stored_versions", "kept", POLICY)
    assert {row["version"]: row["score"] for row in stored} == {1: 0.625, 2: 0.5}


@pytest.mark.parametrize(
    ("threshold", "passed"),
    [({}, {"": 0.5, "algebra": 0.5, "sums": 1.0}), ({"pass_threshold": 0.5}, {"": 0.75, "algebra": 1.0, "sums": 1.0})],
)
async def test_samples_of_a_task_give_mean_spread_and_pass_at_k_by_data_source(
    database: Database, tmp_path: Path, threshold: dict[str, float], passed: dict[str, float]
) -> None:
    wanted = {"samples": 2, **threshold}
    run = await with_sources(database, tmp_path, "sourced", ["algebra", "sums", "algebra", None], evaluation=wanted)
    endings: list[Ending] = [1.0, FailureClass.TIMEOUT, 1.0, 1.0, 0.5, 0.5, 0.0, 0.25]
    await evaluate(run, 0, endings)
    (found,) = (await RunViews(database).run("sourced")).evaluations
    assert (found.samples, found.score, found.spread, found.pass_at_k) == (2, 0.53125, 0.15625, passed[""])
    assert {
        name: (one.tasks, one.score, one.spread, one.pass_at_k, one.failed) for name, one in found.sources.items()
    } == {
        "algebra": (2, 0.5, 0.25, passed["algebra"], 1),
        "sums": (1, 1.0, 0.0, passed["sums"], 0),
    }
    assert found.sources["algebra"].reward == pytest.approx(2 / 3)


async def test_a_rollout_that_failed_passes_at_no_threshold(database: Database, tmp_path: Path) -> None:
    worth = {"rewards": {"timeout": 1.0}}
    wanted = {"limit": 3, "pass_threshold": -0.5}
    run = await begin(database, tmp_path, "below", evaluation=wanted, failures=worth)
    await evaluate(run, 0, [FailureClass.TIMEOUT, FailureClass.AGENT_ERROR, 0.0])
    (found,) = (await RunViews(database).run("below")).evaluations
    assert found.pass_at_k == pytest.approx(1 / 3)


async def test_one_sample_a_task_has_no_spread(database: Database, tmp_path: Path) -> None:
    run = await with_sources(database, tmp_path, "single", ["a/b", "a/b"])
    await evaluate(run, 0, [1.0, 0.0])
    (found,) = (await RunViews(database).run("single")).evaluations
    assert (found.samples, found.spread, found.pass_at_k, found.sources["a/b"].spread) == (1, None, 0.5, None)


async def test_a_long_source_name_is_cut_in_metric_names(database: Database, tmp_path: Path) -> None:
    dice = random.Random(1)
    long = "".join(chr(dice.randrange(0x4E00, 0x9FFF)) for _ in range(5000))  # no index of Postgres holds that
    run = await with_sources(database, tmp_path, "long", [long, "short"])
    await evaluate(run, 0, [1.0, 0.0])
    (found,) = (await RunViews(database).run("long")).evaluations
    assert {name: one.score for name, one in found.sources.items()} == {long[:200]: 1.0, "short": 0.0}


async def test_evaluations_may_have_sampling_settings_of_their_own(database: Database, tmp_path: Path) -> None:
    sampling = {"temperature": 1.0, "max_tokens": 32, "stop": ["\n"]}
    own = {"limit": 1, "sampling": {"temperature": 0.0, "max_tokens": 64}}
    run = await begin(database, tmp_path, "greedy", sampling=sampling, evaluation=own)
    await run.plan(1)
    found: list[dict[str, Any]] = []
    for version, kind in ((1, "train"), (0, "eval"), (1, "eval")):
        await plans.plan_evaluation(database, run.step_input(version))
        opened = await run.opened((await run.rollouts(version, kind))[0]["rollout_id"])
        asked = ResolveRequest(rollout_id=opened.rollout_id, attempt_id=opened.attempt_id, token=opened.token)
        context = await run.store.resolve(asked)
        assert context.sampling == opened.sampling
        found.append({name: opened.sampling[name] for name in ("temperature", "max_tokens", "stop")})
    assert found == [sampling, *[sampling | {"temperature": 0.0, "max_tokens": 64}] * 2]
