"""Histories of real runs replay on today's workflows: what is live goes on after a deployment."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner
from temporalio.workflow import _Definition  # the SDK has no public way to ask for a definition

from relight.workflows import WORKFLOWS
from relight.workflows.batch import RolloutBatchWorkflow
from relight.workflows.evaluation import EvaluationWorkflow
from relight.workflows.regrade import RegradeWorkflow
from relight.workflows.rollout import RolloutWorkflow
from relight.workflows.training import TrainingWorkflow

FOLDER = Path(__file__).parents[2] / "histories"
HISTORIES = sorted(FOLDER.glob("*.json"))
PAYLOAD_BUDGET_BYTES = 8 * 1024


def history(path: Path) -> WorkflowHistory:
    text = path.read_text()
    started = json.loads(text)["events"][0]["workflowExecutionStartedEventAttributes"]
    return WorkflowHistory.from_json(started["workflowId"], text)


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_a_saved_history_replays(path: Path) -> None:
    replayer = Replayer(
        workflows=WORKFLOWS, data_converter=pydantic_data_converter, workflow_runner=UnsandboxedWorkflowRunner()
    )
    await replayer.replay_workflow(history(path))


CHANGED = {
    "RolloutWorkflow": RolloutWorkflow,
    "RolloutBatchWorkflow": RolloutBatchWorkflow,
    "EvaluationWorkflow": EvaluationWorkflow,
    "RegradeWorkflow": RegradeWorkflow,
    "TrainingWorkflow": TrainingWorkflow,
}


@pytest.mark.parametrize("kind", CHANGED)
async def test_a_change_that_live_workflows_could_not_follow_is_found_by_the_replay(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: Any = CHANGED[kind].run

    async def changed(self: Any, given: Any) -> Any:
        await workflow.sleep(1)
        return await own(self, given)

    broken = dataclasses.replace(_Definition.must_from_class(CHANGED[kind]), run_fn=changed)
    monkeypatch.setattr(CHANGED[kind], "__temporal_workflow_definition", broken)
    path = next(path for path in HISTORIES if kind_of(path) == kind)
    with pytest.raises(workflow.NondeterminismError):
        await test_a_saved_history_replays(path)


def kind_of(path: Path) -> str:
    """Type of the workflow whose history it is."""
    return history(path).events[0].workflow_execution_started_event_attributes.workflow_type.name


def test_every_workflow_has_a_saved_history() -> None:
    kinds = {kind_of(path) for path in HISTORIES}
    assert kinds == {
        "TrainingWorkflow",
        "RolloutBatchWorkflow",
        "RolloutWorkflow",
        "EvaluationWorkflow",
        "RegradeWorkflow",
    }


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_what_travels_through_temporal_stays_within_the_payload_budget(path: Path) -> None:
    sizes = list(payload_sizes(json.loads(path.read_text())))
    assert sizes
    assert max(sizes) <= PAYLOAD_BUDGET_BYTES


def payload_sizes(value: Any) -> Iterator[int]:
    """Bytes of every payload in a history's JSON, wherever it stands."""
    if isinstance(value, list):
        for one in value:
            yield from payload_sizes(one)
    elif isinstance(value, dict):
        if "metadata" in value and isinstance(value.get("data"), str):
            yield len(base64.b64decode(value["data"]))
        for one in value.values():
            yield from payload_sizes(one)
