"""Rule 10: planning writes its values once; a change takes effect at the first step that is not planned."""

from __future__ import annotations

import asyncio
from pathlib import Path

from relight.store.database import Database
from relight.store.postgres import PostgresLightningStore
from relight.types.resources import PromptTemplate
from relight.types.rollout import FailureClass
from tests.rules.kit import begin
from tests.support.seeds import seed_run

PROMPT = {"prompt": {"resource_type": "prompt_template", "template": "Other. {question}", "engine": "f-string"}}


async def test_a_step_that_is_planned_again_keeps_its_plan_whatever_the_run_has_changed(
    database: Database, tmp_path: Path
) -> None:
    run = await begin(database, tmp_path, "planned")
    first = await run.plan(1)
    before = await database.pool.fetch("select * from steps"), await run.rollouts(1)
    changes = {"learning_rate": 0.5, "group_size": 2, "batch_size": 1, "temperature": 0.1}
    assert (await run.change("set_hyperparameters", changes)).effective_step == 2
    assert (await run.change("update_resources", {"resources": PROMPT})).effective_step == 2
    assert await run.plan(1) == first
    assert (await database.pool.fetch("select * from steps"), await run.rollouts(1)) == before
    await run.plan(2)
    row = await database.pool.fetchrow("select plan, resources_id from steps where step = 2")
    assert row["plan"]["algorithm"]["learning_rate"] == 0.5
    assert row["resources_id"] != before[0][0]["resources_id"]
    assert len(await run.rollouts(2)) == 2


async def test_concurrent_planning_of_a_step_plans_it_once(database: Database, tmp_path: Path) -> None:
    run = await begin(database, tmp_path, "once")
    plans = await asyncio.gather(*(run.plan(1) for _ in range(6)))
    assert {plan.model_dump_json() for plan in plans} == {plans[0].model_dump_json()}
    assert len(await run.rollouts(1)) == 8
    positions = await database.pool.fetchval("select plan -> 'positions' from steps")
    assert len(set(positions)) == 2


async def test_a_retry_and_a_fill_up_keep_the_pins_of_their_group(database: Database, tmp_path: Path) -> None:
    run = await begin(database, tmp_path, "pinned")
    await run.plan(1)
    first, second, *rest = await run.rollouts(1)
    await run.change("update_resources", {"resources": PROMPT})
    await run.play(first["rollout_id"], failure=FailureClass.ENGINE_ERROR)
    await run.play(second["rollout_id"], failure=FailureClass.AGENT_ERROR)
    for row in rest:
        await run.play(row["rollout_id"])
    await run.change("retry_rollout", {"rollout_id": second["rollout_id"]})
    retried = await run.opened(second["rollout_id"], number=2)
    await run.end(retried, 1.0)
    assert (await run.advance(1)).rollouts == [(0, 4, 1)]
    filled = next(row for row in await run.rollouts(1) if row["fill_up"])
    pins = (
        "resources_id",
        "resources_version",
        "dataset_id",
        "position",
        "min_version",
        "max_version",
        "config",
        "step",
    )
    assert [filled[pin] for pin in pins] == [first[pin] for pin in pins]
    assert (filled["group_number"], filled["index_in_group"]) == (0, 4)
    assert "Other" not in str(retried.resources)


async def test_a_run_follows_its_own_resources_and_latest_is_for_rollouts_from_outside(
    database: Database, tmp_path: Path
) -> None:
    run = await begin(database, tmp_path, "own", resources=PROMPT)
    await seed_run(database)  # brings newer resources of another client
    await run.plan(1)
    [row] = await database.pool.fetch("select distinct resources_id from rollouts where run = 'own'")
    assert row["resources_id"] == "rs-own"
    opened = await run.opened((await run.rollouts(1))[0]["rollout_id"])
    assert "Other" in str(opened.resources)


async def test_a_run_keeps_the_version_of_its_resources_when_a_client_overwrites_them(
    database: Database, tmp_path: Path
) -> None:
    run = await begin(database, tmp_path, "kept", resources=PROMPT)
    await run.plan(1)
    first, *_ = await run.rollouts(1)
    given = await run.opened(first["rollout_id"])
    outside = await PostgresLightningStore.create(database)
    await outside.update_resources("rs-kept", {"prompt": PromptTemplate(template="Overwritten.")})
    await outside.aclose()
    again = await run.opened(first["rollout_id"])  # the first one's process died
    await run.plan(2)
    later = await run.opened((await run.rollouts(2))[0]["rollout_id"])
    assert given.resources == again.resources == later.resources
    assert (await run.change("update_resources", {"resources_id": "rs-kept"})).effective_step == 3
    await run.plan(3)
    newest = await run.opened((await run.rollouts(3))[0]["rollout_id"])
    assert "Overwritten." in str(newest.resources)


async def test_existing_resources_under_the_id_of_a_new_run_do_not_become_its_own(
    database: Database, tmp_path: Path
) -> None:
    outside = await PostgresLightningStore.create(database)
    await outside.update_resources("rs-late", {"prompt": PromptTemplate(template="Earlier.")})
    await outside.aclose()
    run = await begin(database, tmp_path, "late", resources=PROMPT)
    await run.plan(1)
    assert "Other" in str((await run.opened((await run.rollouts(1))[0]["rollout_id"])).resources)
