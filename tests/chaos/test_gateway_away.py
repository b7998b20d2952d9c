"""Rule 3 on the whole stack: what has all its answers does not need the gateway any more."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.chaos.checker import contradictions, read
from tests.chaos.parts import agents
from tests.chaos.stack import FAST, ChaosStack, chaos_stack, open_folder

ROLLOUTS = 8
LINGERING = replace(
    FAST,
    agent=f"{agents.__file__}:lingers",
    file={**FAST.file, "agent": "lingers", "preflight": False},
)
ENDED = "select count(*) from attempts where ended_at is not null"
BAD = "select attempt_id, failure_class, message from attempts where status <> 'succeeded'"


async def all_answered(chaos: ChaosStack) -> None:
    """Every agent of the step has the answers to all its calls."""
    async with asyncio.timeout(120):
        while sum(said.reward is not None for said in read(chaos.said).values()) < ROLLOUTS:  # noqa: ASYNC110  # files
            await asyncio.sleep(0.1)


async def all_ended(chaos: ChaosStack) -> None:
    async with asyncio.timeout(120):
        while await chaos.database.pool.fetchval(ENDED) < ROLLOUTS:  # noqa: ASYNC110  # rows
            await asyncio.sleep(0.1)


async def test_rule_03_attempts_that_end_after_their_last_answer_while_the_gateway_is_down_are_not_run_again() -> None:
    with open_folder() as folder:
        async with chaos_stack(folder, parts=LINGERING) as chaos:
            hold = chaos.said / "hold"
            hold.touch()
            handle = await chaos.start("held", 1)
            await all_answered(chaos)
            async with chaos.held_down("gateway"):
                hold.unlink()
                await all_ended(chaos)
                assert [dict(row) for row in await chaos.database.pool.fetch(BAD)] == []
            await handle.result()
            assert len((await chaos.outcome("held")).trained) == ROLLOUTS
            assert await contradictions(chaos) == []
