"""Rule 9: version 0 is the given model; step n samples with version n-1 and makes n; `eval-n` is of version n."""

from __future__ import annotations

from pathlib import Path

from relight.store.database import Database
from relight.store.training import plans
from relight.types.rollout import FailureClass
from tests.rules.host import gpu_host
from tests.rules.kit import begin


async def test_versions_steps_and_evaluations_are_numbered_by_the_rule_and_a_step_without_groups_keeps_the_weights(
    database: Database, tmp_path: Path
) -> None:
    unmoved = {"pause_above": None, "pause_without_reward": False}
    run = await begin(database, tmp_path, "counted", failures=unmoved)
    async with gpu_host(database, tmp_path, run) as host:
        await run.plan(1)
        await run.play_all(1)
        await run.advance(1)
        await host.update(run.step_input(1))
        await plans.plan_evaluation(database, run.step_input(1))
        first, *rest = await run.rollouts(1, "eval")
        await run.play(first["rollout_id"], failure=FailureClass.TIMEOUT)
        for row in rest:
            await run.play(row["rollout_id"], 0.5)
        await run.advance(1, kind="eval")
        evaluation = await plans.record_evaluation(database, run.step_input(1))
        await run.plan(2)
        for row in await run.rollouts(2):
            await run.play(row["rollout_id"], failure=FailureClass.AGENT_ERROR)
        await run.advance(2)
        await host.update(run.step_input(2))
    rows = await database.pool.fetch("select version, weights_hash from policy_versions order by version")
    given, trained, kept = [row["weights_hash"] for row in rows]
    assert [row["version"] for row in rows] == [0, 1, 2]
    assert given != trained == kept
    steps = await database.pool.fetch("select step, status, unchanged from steps order by step")
    assert [tuple(step) for step in steps] == [(1, "recorded", False), (2, "recorded", True)]
    pins = await database.pool.fetch("select distinct kind, step, min_version, max_version from rollouts order by 1, 2")
    assert [tuple(pin) for pin in pins] == [("eval", 1, 1, 1), ("train", 1, 0, 0), ("train", 2, 1, 1)]
    assert (evaluation.reward, evaluation.rewarded, evaluation.failed) == (0.5, len(rest), 1)
    assert evaluation.score == 0.5 * len(rest) / (len(rest) + 1)
