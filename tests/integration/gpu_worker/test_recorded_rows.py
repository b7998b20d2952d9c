"""What a step's ledger keeps of its model calls: the temperature of each, what became of each, and the batch's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relight.cli.progress import step_event
from relight.store.database import Database
from relight.store.runs.views import RunViews
from relight.store.training import ledger
from relight.store.training.ledger import Candidate, Sample
from relight.types.wire import Choice
from tests.rules.host import gpu_host
from tests.rules.kit import ManualRun, begin
from tests.support.store_kit import call

OPEN = {"sampling": {"temperature": 0.7, "agent_chooses": True}, "algorithm": {"level": "trajectory"}}


async def play(run: ManualRun, *calls: dict[str, Any]) -> None:
    """Step 1, each of whose rollouts makes these calls; its update."""
    await run.plan(1)
    for row in await run.rollouts(1):
        attempt = await run.opened(row["rollout_id"])
        items = [call(attempt, i, f"hash-{i}", delivered="yes", **fields) for i, fields in enumerate(calls, 1)]
        await run.store.commit_generations(items)
        await run.end(attempt, float(row["index_in_group"] % 2 == 0))
    await run.advance(1)


async def weights_after(database: Database, folder: Path, name: str, *calls: dict[str, Any]) -> str:
    run = await begin(database, folder, name, **OPEN)
    async with gpu_host(database, folder, run, f"host-of-{name}") as host:
        await play(run, *calls)
        await host.update(run.step_input(1))
    version = await ledger.get_version(database, name, 1)
    assert version is not None
    return version.weights_hash


async def rows_of_first_rollout(database: Database, run: str) -> list[Any]:
    rows = await ledger.read_rows(database, run, 1)
    return [row for row in rows if row.rollout_id == rows[0].rollout_id]


async def test_the_trainer_gets_the_temperature_of_each_call(database: Database, tmp_path: Path) -> None:
    cold, hot = {"sampling": {"temperature": 0.3}}, {"sampling": {"temperature": 1.5}}
    first = await weights_after(database, tmp_path, "cold", cold)
    assert await weights_after(database, tmp_path, "cold-again", cold) == first
    assert await weights_after(database, tmp_path, "hot", hot) != first
    [row] = await rows_of_first_rollout(database, "hot")
    assert row.temperature == 1.5


async def test_calls_of_different_temperature_are_different_rows(database: Database, tmp_path: Path) -> None:
    turns = [
        {"sampling": {"temperature": temperature}, "prompt_token_ids": [1, 2, *[3, 4] * number]}
        for number, temperature in enumerate((0.5, 0.5, 1.0))
    ]
    await weights_after(database, tmp_path, "mixed", *turns)
    rows = await rows_of_first_rollout(database, "mixed")
    assert [(row.calls, row.temperature) for row in rows] == [([1, 2], 0.5), ([3], 1.0)]


async def test_a_batchs_hash_is_that_of_its_stored_rows(database: Database, tmp_path: Path) -> None:
    await weights_after(database, tmp_path, "named", {"sampling": {"temperature": 1 / 3}})
    step = await ledger.get_step(database, "named", 1)
    text = "select * from step_rollouts where run = 'named' order by group_number, rollout_id"
    samples = [
        Sample(
            Candidate(r["rollout_id"], r["attempt_id"], r["group_number"], r["reward"], "agent", None), r["advantage"]
        )
        for r in await database.pool.fetch(text)
    ]
    rows = await ledger.read_rows(database, "named", 1)
    assert ledger.batch_hash(rows, samples) == step["batch_hash"]
    assert {row.group for row in rows} == {sample.candidate.group for sample in samples}


async def test_model_calls_that_came_without_ids_or_logprobs_are_counted_and_shown(
    database: Database, tmp_path: Path
) -> None:
    whole = Choice(index=0, response_token_ids=[3, 4], logprobs=[-0.5, -0.25], finish_reason="stop")
    calls = [
        {"choices": [whole, whole.model_copy(update={"index": 1, "logprobs": None})]},
        {"prompt_token_ids": None},
        {"choices": [whole.model_copy(update={"response_token_ids": None, "logprobs": None})]},
        {"choices": [Choice(index=0, response_token_ids=[], logprobs=[], finish_reason=None, complete=False)]},
        {"model": "a-judge", "prompt_token_ids": None},
    ]
    await weights_after(database, tmp_path, "gaps", *calls)
    steps = await RunViews(database).steps("gaps")
    rollouts = len(await database.pool.fetch("select from rollouts where run = 'gaps' and kind = 'train'"))
    assert steps[-1].metrics["calls_left_out"] == 3 * rollouts
    assert (
        f"{3 * rollouts} model calls not trained: they have no token ids or logprobs"
        in step_event(steps[-1], None).text
    )


async def test_calls_that_another_model_answered_train_nothing_whatever_ids_they_have(
    database: Database, tmp_path: Path
) -> None:
    await weights_after(database, tmp_path, "judged", {}, {"model": "a-judge"})
    assert {tuple(row.calls) for row in await ledger.read_rows(database, "judged", 1)} == {(1,)}


async def test_a_greedy_call_trains_at_the_temperature_of_its_logprobs(database: Database, tmp_path: Path) -> None:
    calls = [{"sampling": {"temperature": temperature}} for temperature in (0, 0.001)]
    await weights_after(database, tmp_path, "greedy", *calls)
    assert [row.temperature for row in await rows_of_first_rollout(database, "greedy")] == [1.0, 0.01]
