"""Clocks that jump by an hour, either way, change nothing: not for one process, not for Postgres, not for all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from tests.chaos.checker import contradictions
from tests.chaos.clocks import HOUR, may_jump
from tests.chaos.faults import CLOCKED
from tests.chaos.stack import ChaosStack, chaos_stack, open_folder

pytestmark = [
    pytest.mark.skipif(not may_jump(), reason="what makes a clock jump is built with a C compiler, and there is no cc"),
    pytest.mark.asyncio(loop_scope="module"),
]
STEPS = 8
JUMPS = (
    (("postgres",), HOUR),
    (("postgres",), -HOUR),
    (("gpu-worker", "runner"), HOUR),
    (("store", "gateway"), -HOUR),
    (CLOCKED, HOUR),
    (CLOCKED, -HOUR),
)
"""Made one after the other; each is off by so much from the true time."""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def chaos() -> AsyncGenerator[ChaosStack]:
    with open_folder() as folder:
        async with chaos_stack(folder, clocks=True) as stack:
            yield stack


async def test_a_run_has_the_same_result_when_clocks_jump_and_repeats_nothing(chaos: ChaosStack) -> None:
    await (await chaos.start("undisturbed", STEPS)).result()
    handle = await chaos.start("jumping", STEPS)
    async with asyncio.timeout(400):
        for step, (names, seconds) in enumerate(JUMPS, start=1):
            while await chaos.recorded("jumping") < step:  # noqa: ASYNC110  # a row
                await asyncio.sleep(0.05)
            for name in names:
                chaos.clocks[name].jump(seconds)
        await handle.result()
    assert await chaos.outcome("jumping") == await chaos.outcome("undisturbed")
    assert await contradictions(chaos) == []  # among them whatever took less than no time
    attempts = await chaos.database.pool.fetch(
        "select a.status, count(*) as number from attempts a join rollouts r using (rollout_id)"
        " where r.kind = 'train' group by a.status"
    )
    assert [tuple(row) for row in attempts] == [("succeeded", 2 * 8 * STEPS)], "a jump must cost no attempt"
    log = (chaos.stack.home / "logs" / "gpu-worker.log").read_text()
    assert "was lost" not in log, "a lease ended early"
