"""Histories of real runs replay on today's workflows: what is live goes on after a deployment."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable, Iterator
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
from relight.workflows.step_batches import StepBatches
from relight.workflows.training import TrainingWorkflow
from relight.workflows.unknown_type import UnknownWorkflow
from tests.support.changed_source import module_of, with_changed_source

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


@pytest.mark.parametrize("kind", [kind for kind in WORKFLOWS if kind is not UnknownWorkflow])
async def test_another_first_command_of_a_workflow_fails_the_replay(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    own: Any = kind.run

    async def changed(self: Any, given: Any) -> Any:
        await workflow.sleep(1)
        return await own(self, given)

    broken = dataclasses.replace(_Definition.must_from_class(kind), run_fn=changed)
    monkeypatch.setattr(kind, "__temporal_workflow_definition", broken)
    path = next(path for path in HISTORIES if kind_of(path) == kind.__name__)
    with pytest.raises(workflow.NondeterminismError):
        await test_a_saved_history_replays(path)


@dataclasses.dataclass(frozen=True)
class Change:
    """A part of a workflow's code is replaced by another; the history that holds what it changes."""

    function: Callable[..., Any]
    part: str
    changed: str
    history: str

    def __str__(self) -> str:
        return f"{self.function.__qualname__}: {self.changed} for {self.part}"


SLEEP = "await workflow.sleep(1)"
IN_ATTEMPT, IN_BACK_OFF = "failures-rollout-cancelled-in-attempt", "failures-rollout-cancelled-in-back-off"
ROLLOUT, BATCH, EVALUATION, REGRADE = RolloutWorkflow, RolloutBatchWorkflow, EvaluationWorkflow, RegradeWorkflow
TRAINING = TrainingWorkflow
CHANGES = [
    Change(ROLLOUT._close_rollout, "return await", "return RolloutResult(rollout_id='') or await", IN_ATTEMPT),
    Change(ROLLOUT._close_rollout, "return await", f"{SLEEP}; return await", IN_BACK_OFF),
    Change(ROLLOUT._close_rollout, "names.CLOSE_ROLLOUT", "'other'", "failures-rollout-cancelled-with-evaluation"),
    Change(ROLLOUT._try_until_it_ends, "await workflow.sleep", "str", IN_BACK_OFF),
    Change(ROLLOUT._attempt, "return await self._grade(result.grade)", "return result", "rollout-graded"),
    Change(ROLLOUT._grade, "names.GRADE_ATTEMPT", "'other'", "rollout-graded"),
    Change(ROLLOUT._show, "workflow.upsert_search_attributes", "str", "rollout"),
    Change(BATCH._run_rollout, "if result is None", "if False", "failures-batch"),
    Change(BATCH._run_rollout, "self.added += self._start(left)", "pass", "failures-batch"),
    Change(BATCH._run_child, "await workflow.sleep(seconds, ", "dict(", "failures-batch"),
    Change(BATCH._run_child, "names.rollout_workflow_id(rollout_id)", "'other'", "rolloutbatch"),
    Change(BATCH._wait_while_held, "lambda: self.signalled", "lambda: True", "run-health-batch-held"),
    Change(BATCH._show_held, "workflow.upsert_search_attributes", "str", "run-health-batch-held"),
    Change(EVALUATION._run_batch, "if again:", "if False:", "failures-evaluation"),
    Change(EVALUATION._run_batch, "if not may_restart_child(error):", "if True:", "failures-evaluation"),
    Change(REGRADE._grade_page, "names.RECORD_REGRADES", "'other'", "operators-regrade"),
    Change(REGRADE._grade, "names.REGRADE_ATTEMPT", "'other'", "operators-regrade"),
    Change(TRAINING._update_policy, "tries >= SAME_FAILURES", "tries >= 99", "failures-training"),
    Change(TRAINING._update_policy, "await self._acquire_gpu_host()", "pass", "failures-training"),
    Change(TRAINING._pause_after_same_failures, "< SAME_FAILURES", "< 99", "failures-training"),
    Change(TRAINING._evaluation, "return await await_then", f"{SLEEP}; return await await_then", "training-0"),
    Change(TRAINING._evaluation, "await self._wait_and_show(reason, interval)", "pass", "failures-training"),
    Change(
        TRAINING._train_unless_reset, "await self._begin(again=self.cursor.epoch)", "pass", "operators-training-reset"
    ),
    Change(TRAINING._cancel_open_batches, "await batch.cancel()", "pass", "failures-training-cancelled"),
    Change(TRAINING._cancel_open_batches, "await self._wait_for_batches()", "pass", "failures-training-cancelled"),
    Change(TRAINING._close_after, 'await self._finish("cancelled")', "pass", "failures-training-cancelled"),
    Change(TRAINING._finish, "await self._release_gpu_host", "str", "operators-training"),
    Change(TRAINING._preflight, "await run_preflight(", "(lambda *_: None)(", "run-health-training-preflight"),
    Change(StepBatches._run_batches, "begun -= ended", "pass", "operators-training-terminated"),
    Change(StepBatches._check_batches, "await self._query", f"{SLEEP}; await self._query", "failures-training"),
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
async def test_a_change_that_live_workflows_could_not_follow_fails_the_replay(
    change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = change.function
    owner = getattr(module_of(function), function.__qualname__.split(".")[0])
    monkeypatch.setattr(owner, function.__name__, with_changed_source(function, change.part, change.changed))
    with pytest.raises(workflow.NondeterminismError):
        await test_a_saved_history_replays(FOLDER / f"0.1-{change.history}.json")


def kind_of(path: Path) -> str:
    """Type of the workflow whose history it is."""
    return history(path).events[0].workflow_execution_started_event_attributes.workflow_type.name


def test_every_workflow_has_a_saved_history() -> None:
    kinds = {kind_of(path) for path in HISTORIES}
    assert kinds == {kind.__name__ for kind in WORKFLOWS if kind is not UnknownWorkflow}


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
