"""What would fail every time ends a run before anything is trained, on the whole stack."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from relight.cli.store_reader import StoreReader
from tests.integration.poison.kit import PoisonStack

pytestmark = [pytest.mark.long, pytest.mark.asyncio(loop_scope="package")]

HOPELESS: dict[str, tuple[dict[str, Any], str, str]] = {
    "broken": ({"agent": "broken"}, "well", "ModuleNotFoundError: No module named 'there_is_no_such_module'"),
    "silent": ({"agent": "silent"}, "well", "the agent ended without calling the model"),
    "rewardless": ({"agent": "rewardless"}, "well", "no_reward: the agent gave no reward"),
    "strict": ({"grader": "strict"}, "well", "grader_error: grader 'strict': FileNotFoundError: /opt/verifier"),
    "idless": ({}, "no-token-ids", "the engine returned no token ids and logprobs"),
    "long": ({}, "long " * 5000, "maximum context length is 256 tokens"),
}


@pytest.mark.parametrize("run", HOPELESS)
async def test_a_preflight_failure_ends_the_run_with_a_message_that_names_it(poison: PoisonStack, run: str) -> None:
    changes, kind, says = HOPELESS[run]
    with pytest.raises(WorkflowFailureError):
        await poison.result(await poison.start(run, [[kind, kind]], preflight=True, **changes))
    async with StoreReader.from_settings(poison.stack.settings) as reader:
        view = await reader.run(run)
        steps = await reader.steps(run)
    assert view.status == "failed"
    assert says in (view.error or "")
    assert f"`relight resume {run}`" in (view.error or "")
    assert steps == []


async def test_a_successful_preflight_leaves_no_trace_in_any_step(poison: PoisonStack) -> None:
    handle = await poison.start("sound", [["well", "well"]], preflight=True)
    result = await poison.result(handle)
    listed = await poison.command("rollouts", "sound")
    assert sorted(row["kind"] for row in listed) == ["preflight", "train", "train"]
    assert [row["rollout_id"] for row in listed if row["kind"] == "preflight"] == ["sound-preflight-train"]
    trained = await poison.database.pool.fetch("select rollout_id from step_rollouts where run = 'sound'")
    assert len(trained) == 2
    assert result["counters"] == {"rollouts": 2, "retried": 0}
