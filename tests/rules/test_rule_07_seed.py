"""Rule 7: a seed follows from the run file's seed, step, group, index, try and call; never from the name of the run.

In evaluations the version is no part of it.
"""

from __future__ import annotations

from pathlib import Path

from relight.llm_proxy.requests import seed_for
from relight.store.database import Database
from relight.store.training import plans
from relight.types.rollout import FailureClass
from relight.types.wire import OpenedAttempt, ResolveRequest
from tests.rules.kit import ManualRun, begin
from tests.support.store_kit import call


async def seeds(run: ManualRun, attempt: OpenedAttempt) -> int:
    """The seed of the attempt's next call."""
    asked = ResolveRequest(rollout_id=attempt.rollout_id, attempt_id=attempt.attempt_id, token=attempt.token)
    context = await run.store.resolve(asked)
    return seed_for(context.seed_base, context.next_call_number)


async def test_two_runs_of_one_file_have_the_same_seeds_whatever_their_names(
    database: Database, tmp_path: Path
) -> None:
    found: list[list[int]] = []
    for name, seed in (("apple", 7), ("pear", 7), ("other", 8)):
        run = await begin(database, tmp_path, name, seed=seed)
        await run.plan(1)
        found.append([await seeds(run, await run.opened(row["rollout_id"])) for row in await run.rollouts(1)])
    apple, pear, other = found
    assert apple == pear
    assert len({*apple, *other}) == len(apple) + len(other)


async def test_a_new_try_and_a_new_call_have_new_seeds_and_a_repeated_attempt_has_the_old_ones(
    database: Database, tmp_path: Path
) -> None:
    run = await begin(database, tmp_path, "tried", rollout={"max_attempts": 2, "retry_condition": ["agent_error"]})
    await run.plan(1)
    rollout = (await run.rollouts(1))[0]["rollout_id"]
    first = await seeds(run, await run.opened(rollout))
    attempt = await run.opened(rollout)  # the first one's process died
    assert await seeds(run, attempt) == first
    await run.store.commit_generations([call(attempt, 1)])
    second_call = await seeds(run, attempt)
    await run.end(attempt, failure=FailureClass.AGENT_ERROR)
    second_try = await seeds(run, await run.opened(rollout, number=2))
    assert len({first, second_call, second_try}) == 3


async def test_every_evaluation_has_the_same_seeds_and_none_of_the_training(database: Database, tmp_path: Path) -> None:
    run = await begin(database, tmp_path, "drawn", evaluation={"samples": 2, "limit": 3})
    await run.plan(1)
    for version in (0, 1):
        await plans.plan_evaluation(database, run.step_input(version))
    given, trained = [
        [await seeds(run, await run.opened(row["rollout_id"])) for row in await run.rollouts(version, "eval")]
        for version in (0, 1)
    ]
    sampled = [await seeds(run, await run.opened(row["rollout_id"])) for row in await run.rollouts(1)]
    assert given == trained
    assert len({*given, *sampled}) == len(given) + len(sampled)
