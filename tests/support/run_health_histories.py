"""The scenario of unhealthy runs for `tests.support.histories`: a held batch, preflights that go well and badly."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from temporalio.client import Client, WorkflowFailureError

from relight.store.database import Database
from relight.types import names
from relight.types.rollout import FailureClass
from relight.types.wire import FinishRequest, OpenedAttempt
from tests.support.orchestration import Cluster, always_right, cluster, eventually, run_file, write_tasks

CALLED = """
insert into generations (day, rollout_id, attempt_id, call_number, choice, request_hash, route, request, response,
                         prompt_token_ids, token_ids, logprobs, sampling, seed, engine_id, model, complete, delivered,
                         seconds)
select day, $1, $2, 1, 0, 'h', '/v1/chat/completions', 'r', 'r', '{1}', '{2}', '{-0.5}', '{}', 0, 'e1', 'policy', true,
       'yes', 0.1
from rollouts where rollout_id = $1
"""


class FailingAgent:
    """Fails the first step's rollouts once; calls the model in the preflight of `looked`."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.fails = True

    async def __call__(self, attempt: OpenedAttempt) -> FinishRequest:
        if "-preflight-" in attempt.rollout_id:
            if attempt.run == "looked":
                await self.database.pool.execute(CALLED, attempt.rollout_id, attempt.attempt_id)
            return FinishRequest(attempt_id=attempt.attempt_id, fence=attempt.fence, reward=1.0)
        if self.fails:
            return FinishRequest(
                attempt_id=attempt.attempt_id, fence=attempt.fence, failure_class=FailureClass.AGENT_ERROR
            )
        return await always_right(attempt)


async def play(client: Client, database: Database, folder: Path) -> dict[str, tuple[str, str | None]]:
    """Play it; the workflows whose histories are worth keeping, by the name of their file."""
    write_tasks(folder, count=4)
    agent = FailingAgent(database)
    async with cluster(client, database, folder, agent) as stack:
        await _held(stack, agent)
        looked = await stack.start("looked", run_file(steps=1, preflight=True))
        await looked.result()
        with suppress(WorkflowFailureError):
            await (await stack.start("refused", run_file(steps=1, preflight=True))).result()
    return {
        "run-health-training-held": (names.train_id("held"), None),
        "run-health-batch-held": (names.batch_id("held", 1, 0), None),
        "run-health-training-preflight": (names.train_id("looked"), None),
        "run-health-training-preflight-failed": (names.train_id("refused"), None),
    }


async def _held(stack: Cluster, agent: FailingAgent) -> None:
    handle = await stack.start("held", run_file(steps=1, data="train.jsonl"))

    async def is_paused() -> bool:
        return (await handle.query(names.PROGRESS))["paused"]

    await eventually(is_paused)
    agent.fails = False
    await handle.execute_update("retry_failed", {})
    await handle.execute_update("resume", {})
    await handle.result()
