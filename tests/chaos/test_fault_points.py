"""Each named place kills its process once, and the run ends as if nothing had happened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from relight.faults import Place, arm, is_armed
from tests.chaos.stack import ChaosStack, Outcome, chaos_stack, open_folder

STEPS = 14
REFERENCE = "undisturbed"
PLACES = {
    "store": [Place.OPENED, Place.FINISHED, Place.GENERATION_COMMITTED],
    "gateway": [Place.CALL_COMMITTED, Place.ANSWER_SENT],
    "runner": [Place.ATTEMPT_KNOWN, Place.AGENT_ENDED, Place.ATTEMPT_RECORDED],
    "orchestrator": [Place.PLANNED, Place.BATCH_CLOSED],
    "gpu-worker": [
        Place.LEDGERED,
        Place.TRAINED,
        Place.SAVED,
        Place.VERSION_RECORDED,
        Place.PUBLISHED,
        Place.STEP_RECORDED,
    ],
}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def chaos() -> AsyncGenerator[ChaosStack]:
    with open_folder() as folder:
        async with chaos_stack(folder) as stack:
            yield stack


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def undisturbed(chaos: ChaosStack) -> Outcome:
    await (await chaos.start(REFERENCE, STEPS)).result()
    return await chaos.outcome(REFERENCE)


def test_every_place_is_visited() -> None:
    elsewhere = {Place.UPLOADING}  # in test_checkpoints.py: this run's storage is a directory
    assert {place for places in PLACES.values() for place in places} | elsewhere == set(Place)


@pytest.mark.asyncio(loop_scope="module")
async def test_an_undisturbed_run_repeats_itself_bit_for_bit(chaos: ChaosStack, undisturbed: Outcome) -> None:
    await (await chaos.start("again", STEPS)).result()
    assert await chaos.outcome("again") == undisturbed
    assert undisturbed.status == "finished"
    assert undisturbed.steps == list(range(1, STEPS + 1))
    assert len(set(undisturbed.weights)) == STEPS + 1
    assert len(undisturbed.trained) == 8 * STEPS
    assert not undisturbed.ran_again


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("process", PLACES)
async def test_a_run_ends_as_if_nothing_had_happened_whatever_its_processes_died_of(
    chaos: ChaosStack, undisturbed: Outcome, process: str
) -> None:
    run = f"killed-{process}"
    restarts = chaos.stack.process(process).restarts
    handle = await chaos.start(run, STEPS)
    for place in PLACES[process]:
        await kill_at(chaos, run, place)
    await handle.result()
    assert chaos.stack.process(process).restarts - restarts == len(PLACES[process])
    assert await chaos.outcome(run) == undisturbed


async def kill_at(chaos: ChaosStack, run: str, place: Place) -> None:
    """Arm the place, and return when somebody has died there and the run has got on since."""
    arm(chaos.faults, place)
    async with asyncio.timeout(90):
        while is_armed(chaos.faults, place):  # noqa: ASYNC110  # a file
            await asyncio.sleep(0.05)
        recorded = await chaos.recorded(run)
        while await chaos.recorded(run) == recorded < STEPS:  # noqa: ASYNC110  # a row
            await asyncio.sleep(0.1)
