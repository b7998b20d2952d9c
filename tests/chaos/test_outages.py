"""Parts that stay away for minutes, and deployments that restart everything, one process after the other."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from tests.chaos.checker import contradictions
from tests.chaos.faults import AWAY_SECONDS, RELIGHT, Fault, inflict
from tests.chaos.stack import ChaosStack, Outcome, chaos_stack, open_folder

pytestmark = pytest.mark.asyncio(loop_scope="module")
STEPS = 8
RECOVERY_SECONDS = 120
"""From the return of what was away to the next step; a few seconds where the machine has nothing else to do."""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def chaos() -> AsyncGenerator[ChaosStack]:
    with open_folder() as folder:
        async with chaos_stack(folder) as stack:
            yield stack


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def undisturbed(chaos: ChaosStack) -> Outcome:
    await (await chaos.start("undisturbed", STEPS)).result()
    return await chaos.outcome("undisturbed")


async def middle_of(chaos: ChaosStack, run: str, step: int) -> None:
    """Some rollouts of the step have ended and some have not."""
    query = "select count(ended_at) between 1 and count(*) - 1 from rollouts where run = $1 and step = $2"
    async with asyncio.timeout(240):
        while not await chaos.database.pool.fetchval(query, run, step):  # rows
            if await chaos.recorded(run) >= step:
                return  # it was too quick to be seen
            await asyncio.sleep(0.01)


async def test_two_deployments_during_an_epoch_change_nothing(chaos: ChaosStack, undisturbed: Outcome) -> None:
    handle = await chaos.start("deployed", STEPS)
    for step in (2, 4):
        await middle_of(chaos, "deployed", step)
        await inflict(chaos, Fault("deploy", RELIGHT, 0.0, 0.0))
    await asyncio.wait_for(handle.result(), 400)
    assert await chaos.outcome("deployed") == undisturbed
    assert await contradictions(chaos) == []


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", sorted(AWAY_SECONDS))
@pytest.mark.parametrize("how", ["away", "freeze"])
async def test_a_run_continues_automatically_after_an_outage(
    chaos: ChaosStack, undisturbed: Outcome, name: str, how: str
) -> None:
    run, seconds = f"{how}-{name}", AWAY_SECONDS[name]
    handle = await chaos.start(run, STEPS)
    await middle_of(chaos, run, random.Random(run).randrange(2, 5))
    await inflict(chaos, Fault(how, (name,), seconds, 0.0))
    back = time.monotonic()
    await asyncio.wait_for(chaos.stack.wait_ready(), RECOVERY_SECONDS)
    recorded = await chaos.recorded(run)
    async with asyncio.timeout(RECOVERY_SECONDS):
        while await chaos.recorded(run) == recorded < STEPS:  # noqa: ASYNC110  # a row
            await asyncio.sleep(0.1)
    print(f"{name} {how} for {seconds:.0f} s: the next step {time.monotonic() - back:.1f} s after its return")
    await asyncio.wait_for(handle.result(), 400)
    assert await chaos.outcome(run) == undisturbed
    assert await contradictions(chaos) == []
