"""What a run that is driven again knows of its evaluations."""

from __future__ import annotations

from pathlib import Path

from relight.datasets import Tasks
from relight.store.database import Database
from relight.store.runs import lifecycle
from relight.store.training import plans
from relight.types.payloads import BeginInput, kept_evaluations
from relight.types.rollout import FailureClass
from tests.rules.kit import begin


def test_the_first_and_the_newest_ten_are_kept() -> None:
    known = {version: float(version) for version in range(0, 300, 5)}
    assert sorted(kept_evaluations(known)) == [0, *range(250, 300, 5)]
    assert kept_evaluations({3: 0.5}) == {3: 0.5}
    assert kept_evaluations({}) == {}


async def test_an_evaluation_without_a_reward_is_complete_too(database: Database, tmp_path: Path) -> None:
    run = await begin(database, tmp_path, "hopeless")
    await plans.plan_evaluation(database, run.step_input(0))
    for row in await run.rollouts(0, "eval"):
        await run.play(row["rollout_id"], failure=FailureClass.AGENT_ERROR)
    await run.advance(0, kind="eval")
    await plans.record_evaluation(database, run.step_input(0))
    nothing = Tasks([], await run.value("train_dataset"), "")
    again = BeginInput(run="hopeless", driver="another", file=run.file)
    state = await lifecycle.begin_run(database, again, nothing, None)
    assert (state.epoch, state.evaluated, state.evaluations) == (2, 0, {0: 0.0})
