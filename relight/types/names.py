"""Names that are stored in databases and histories and used in users' scripts.

They are data: a test pins them, and a rename of a class or function never changes one.
"""

from __future__ import annotations

import re
from typing import Final, Literal

POLICY: Final = "policy"
"""The policy that a run trains, and the model that its agents call. Keys of tables have it beside the run's name."""

Isolation = Literal["sandbox", "process", "shared"]
"""What attempts have of their own: namespaces and a process, a process, or nothing."""
Network = Literal["internet", "gateway"]
"""What agents may connect to: any address, or the runner's relays alone."""

# Prefixes of the store service's routes: its own, and those of the rollout store
RELIGHT_API: Final = "/v1/relight"
AGL_API: Final = "/v1/agl"

# Task queues
ORCHESTRATOR_QUEUE: Final = "relight"
RUNNER_QUEUE: Final = "relight-runner"
GPU_QUEUE: Final = "relight-gpu"

# Workflow types
TRAINING_WORKFLOW: Final = "TrainingWorkflow"
BATCH_WORKFLOW: Final = "RolloutBatchWorkflow"
ROLLOUT_WORKFLOW: Final = "RolloutWorkflow"
EVALUATION_WORKFLOW: Final = "EvaluationWorkflow"
REGRADE_WORKFLOW: Final = "RegradeWorkflow"

# Activity types
BEGIN_RUN: Final = "begin_run"
CHECK_RUNNERS: Final = "check_runners"
CLAIM_GPU: Final = "claim_gpu"
PREPARE_ENGINES: Final = "prepare_engines"
PLAN_STEP: Final = "plan_step"
PLAN_EVALUATION: Final = "plan_evaluation"
RUN_ATTEMPT: Final = "run_attempt"
GRADE_ATTEMPT: Final = "grade_attempt"
CLOSE_ROLLOUT: Final = "close_rollout"
ADVANCE_BATCH: Final = "advance_batch"
ADVANCE_PREFLIGHT: Final = "advance_preflight"
BATCH_STATUS: Final = "batch_status"
UPDATE_POLICY: Final = "update_policy"
RECORD_EVALUATION: Final = "record_evaluation"
CHANGE_RUN: Final = "change_run"
FINISH_RUN: Final = "finish_run"
RELEASE_GPU: Final = "release_gpu"
BEGIN_REGRADE: Final = "begin_regrade"
LIST_UNGRADED: Final = "list_ungraded"
REGRADE_ATTEMPT: Final = "regrade_attempt"
RECORD_REGRADES: Final = "record_regrades"

# Signals, updates and queries of TrainingWorkflow
START: Final = "start"
"""A command that starts a workflow and is sent to none."""
PAUSE: Final = "pause"
RESUME: Final = "resume"
STOP_AFTER_STEP: Final = "stop_after_step"
SET_HYPERPARAMETERS: Final = "set_hyperparameters"
UPDATE_RESOURCES: Final = "update_resources"
RETRY_ROLLOUT: Final = "retry_rollout"
RETRY_FAILED: Final = "retry_failed"
CANCEL_ROLLOUT: Final = "cancel_rollout"
SET_CONCURRENCY: Final = "set_concurrency"
BATCH_DONE: Final = "batch_done"
NOTICE: Final = "notice"
PROGRESS: Final = "progress"
# of TrainingWorkflow and RolloutWorkflow
CANCEL: Final = "cancel"
# of RolloutBatchWorkflow, beside `set_concurrency`
ADD_ROLLOUTS: Final = "add_rollouts"

# Search attributes, all Keyword but the step
SEARCH_RUN: Final = "RelightRun"
SEARCH_STEP: Final = "RelightStep"
SEARCH_STATUS: Final = "RelightStatus"
SEARCH_ALGORITHM: Final = "RelightAlgorithm"
SEARCH_TASK: Final = "RelightTask"
SEARCH_WAITING: Final = "RelightWaiting"

CANCELLED_WORKFLOW: Final = "its workflow was cancelled"
"""Failure of rollouts that ended with their run; they are started again when the run is resumed."""
RUN_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_INSPECTION = re.compile(r"\.(inspect-\d+)$")
_INSPECTION_WORKFLOW = re.compile(r"/(inspect-\d+)$")


def runner_queue(prefix: str, agent: str) -> str:
    """The task queue on which runners that serve `agent`, or a grader of that name, poll."""
    return f"{prefix}.{agent}"


def train_id(run: str) -> str:
    """Workflow id of a run."""
    return f"train/{run}"


def batch_id(run: str, step: int, batch: int) -> str:
    """Workflow id of one batch of a step."""
    return f"train/{run}/step-{step}/batch-{batch}"


def evaluation_id(run: str, version: int) -> str:
    """Workflow id of the evaluation of a policy version."""
    return f"train/{run}/eval-{version}"


def evaluation_batch_id(run: str, version: int, batch: int) -> str:
    """Workflow id of one batch of an evaluation."""
    return f"train/{run}/eval-{version}/batch-{batch}"


def regrade_id(run: str, grader: str) -> str:
    """Workflow id of a grader's pass over a run."""
    return f"train/{run}/regrade-{grader}"


def preflight_rollout_id(run: str, mode: str, number: int) -> str:
    """Id of a preflight rollout: `<run>-preflight-train`, then `...-train-2`."""
    return f"{run}-preflight-{mode}" + (f"-{number}" if number > 1 else "")


def rollout_workflow_id(rollout_id: str) -> str:
    """Workflow id of a rollout: `rollout/<id>`, and `rollout/<id>/inspect-<k>` of its inspections."""
    return "rollout/" + _INSPECTION.sub(r"/\1", rollout_id)


def rollout_of_workflow(workflow_id: str) -> str:
    """The id of the rollout that a workflow runs."""
    return _INSPECTION_WORKFLOW.sub(r".\1", workflow_id.removeprefix("rollout/"))


def task_name(kind: str | None, position: int | None) -> str | None:
    """`train/17` or `eval/17`: the 17th, from 0, of that data set; by the kind or the mode of its rollout."""
    return None if position is None else f"{'train' if kind == 'train' else 'eval'}/{position}"


def planned_rollout_id(run: str, step: int, group: int, index: int, evaluation: bool = False) -> str:
    """Id of a rollout that a run plans: `<run>-s0012-g03-i5`, or `<run>-e0012-...` in an evaluation."""
    return f"{run}-{'e' if evaluation else 's'}{step:04d}-g{group:02d}-i{index}"
