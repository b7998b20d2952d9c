"""Names that live in databases and histories never change by a rename."""

from __future__ import annotations

import os
import subprocess
import sys

from relight.activities.orchestrator import OrchestratorActivities
from relight.gpu_worker.host import GpuHost
from relight.runner.attempt_activity import RunnerActivities
from relight.runner.grading_activity import GradingActivities
from relight.types import commands, names

PINNED = {
    "POLICY": "policy",
    "RELIGHT_API": "/v1/relight",
    "AGL_API": "/v1/agl",
    "ORCHESTRATOR_QUEUE": "relight",
    "RUNNER_QUEUE": "relight-runner",
    "GPU_QUEUE": "relight-gpu",
    "TRAINING_WORKFLOW": "TrainingWorkflow",
    "BATCH_WORKFLOW": "RolloutBatchWorkflow",
    "ROLLOUT_WORKFLOW": "RolloutWorkflow",
    "EVALUATION_WORKFLOW": "EvaluationWorkflow",
    "REGRADE_WORKFLOW": "RegradeWorkflow",
    "BEGIN_REGRADE": "begin_regrade",
    "LIST_UNGRADED": "list_ungraded",
    "REGRADE_ATTEMPT": "regrade_attempt",
    "RECORD_REGRADES": "record_regrades",
    "BEGIN_RUN": "begin_run",
    "CHECK_RUNNERS": "check_runners",
    "CLAIM_GPU": "claim_gpu",
    "PREPARE_ENGINES": "prepare_engines",
    "PLAN_STEP": "plan_step",
    "PLAN_EVALUATION": "plan_evaluation",
    "RUN_ATTEMPT": "run_attempt",
    "GRADE_ATTEMPT": "grade_attempt",
    "CLOSE_ROLLOUT": "close_rollout",
    "ADVANCE_BATCH": "advance_batch",
    "BATCH_STATUS": "batch_status",
    "ADVANCE_PREFLIGHT": "advance_preflight",
    "UPDATE_POLICY": "update_policy",
    "RECORD_EVALUATION": "record_evaluation",
    "CHANGE_RUN": "change_run",
    "FINISH_RUN": "finish_run",
    "RELEASE_GPU": "release_gpu",
    "PAUSE": "pause",
    "RESUME": "resume",
    "STOP_AFTER_STEP": "stop_after_step",
    "SET_HYPERPARAMETERS": "set_hyperparameters",
    "UPDATE_RESOURCES": "update_resources",
    "RETRY_ROLLOUT": "retry_rollout",
    "RETRY_FAILED": "retry_failed",
    "CANCEL_ROLLOUT": "cancel_rollout",
    "SET_CONCURRENCY": "set_concurrency",
    "ADD_ROLLOUTS": "add_rollouts",
    "BATCH_DONE": "batch_done",
    "NOTICE": "notice",
    "PROGRESS": "progress",
    "CANCEL": "cancel",
    "CANCELLED_WORKFLOW": "its workflow was cancelled",
    "START": "start",
    "SEARCH_RUN": "RelightRun",
    "SEARCH_STEP": "RelightStep",
    "SEARCH_STATUS": "RelightStatus",
    "SEARCH_ALGORITHM": "RelightAlgorithm",
    "SEARCH_TASK": "RelightTask",
    "SEARCH_WAITING": "RelightWaiting",
}


def test_every_name_is_pinned() -> None:
    found = {name: value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    assert found == PINNED


def test_workflows_register_under_the_pinned_names() -> None:
    from temporalio.workflow import _Definition  # the SDK has no public way to ask for a definition

    from relight.workflows import WORKFLOWS

    definitions = [_Definition.must_from_class(workflow) for workflow in WORKFLOWS]
    assert {definition.name for definition in definitions if definition.name} == {
        "TrainingWorkflow",
        "RolloutBatchWorkflow",
        "RolloutWorkflow",
        "EvaluationWorkflow",
        "RegradeWorkflow",
    }
    training = next(definition for definition in definitions if definition.name == "TrainingWorkflow")
    assert set(training.updates) == set(commands.LIVE_COMMANDS)
    assert set(training.signals) == {*commands.LIVE_COMMANDS, "batch_done", "notice"}
    assert "progress" in training.queries
    by_name = {definition.name: definition for definition in definitions}
    assert set(by_name["RolloutWorkflow"].signals) == {"cancel"}
    assert set(by_name["RolloutBatchWorkflow"].signals) == {"add_rollouts", "set_concurrency"}
    assert set(by_name["RolloutBatchWorkflow"].queries) == {"progress"}
    assert set(by_name["RegradeWorkflow"].queries) == {"progress"}


def test_which_build_a_workflow_continues_under_is_pinned() -> None:
    code = (
        "from relight.workflows import WORKFLOWS; from temporalio.workflow import _Definition as D;"
        "print(*sorted(f'{d.name}={d.versioning_behavior.name}' for d in map(D.must_from_class, WORKFLOWS)))"
    )
    for build, pinned, follows in (("7", "PINNED", "AUTO_UPGRADE"), ("", "UNSPECIFIED", "UNSPECIFIED")):
        environment = os.environ | {"RELIGHT_BUILD_ID": build}
        ended = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        assert ended.stdout.split() == [
            f"EvaluationWorkflow={pinned}",
            f"None={pinned}",  # what answers types that are not known
            f"RegradeWorkflow={follows}",
            f"RolloutBatchWorkflow={pinned}",
            f"RolloutWorkflow={pinned}",
            f"TrainingWorkflow={follows}",
        ]


def test_activities_register_under_the_pinned_names() -> None:
    holders = (OrchestratorActivities, RunnerActivities, GradingActivities, GpuHost)
    found = {
        vars(method)["__temporal_activity_definition"].name
        for holder in holders
        for method in vars(holder).values()
        if hasattr(method, "__temporal_activity_definition")
    }
    values = list(PINNED.values())
    assert found == set(values[values.index("begin_regrade") : values.index("pause")])


def test_ids_are_pinned() -> None:
    assert names.train_id("r") == "train/r"
    assert names.batch_id("r", 12, 3) == "train/r/step-12/batch-3"
    assert names.evaluation_id("r", 4) == "train/r/eval-4"
    assert names.evaluation_batch_id("r", 4, 0) == "train/r/eval-4/batch-0"
    assert names.regrade_id("r", "judge") == "train/r/regrade-judge"
    assert names.planned_rollout_id("r", 12, 3, 5) == "r-s0012-g03-i5"
    assert names.planned_rollout_id("r", 12, 3, 5, evaluation=True) == "r-e0012-g03-i5"
    assert names.rollout_workflow_id("x") == "rollout/x"
    assert names.rollout_workflow_id("x.inspect-2") == "rollout/x/inspect-2"
    assert names.rollout_of_workflow("rollout/x/inspect-2") == "x.inspect-2"
    assert names.rollout_of_workflow("rollout/x") == "x"
    assert names.runner_queue("relight-runner", "calculator") == "relight-runner.calculator"
