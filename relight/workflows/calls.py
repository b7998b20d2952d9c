"""How workflows call activities: timeouts and retries in one place.

Two layers of retries, each with one owner. Here is the first: the process or the platform failed, so the activity is
tried again without limit. The second, the agent failed, is RolloutWorkflow's.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TypeVar

from pydantic import BaseModel
from temporalio import workflow
from temporalio.common import Priority, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError, FailureError, TimeoutType
from temporalio.exceptions import TimeoutError as TemporalTimeout
from temporalio.workflow import ActivityCancellationType

Out = TypeVar("Out", bound=BaseModel)

ATTEMPT_CALL = timedelta(days=30)
"""From its scheduling to its end, whatever `timeout_seconds` says: the runner judges an attempt's deadlines, and queue
time and paused time count for none (semantics 5). A batch that sees one end so starts it anew."""
STORE_CALL = timedelta(minutes=10)
STORE_HEARTBEAT = timedelta(seconds=10)
RUNNER_HEARTBEAT = timedelta(seconds=10)
GPU_HEARTBEAT = timedelta(seconds=10)
LONG_CALL = timedelta(days=1)
HOST_PATIENCE = timedelta(seconds=30)
"""How long a GPU host may take to begin with what it is asked; then it is looked for again, here or elsewhere."""
FINAL_ERRORS = [
    "ConfigError",
    "ConflictError",
    "DatasetError",
    "InvalidRequestError",
    "ModelError",
    "NotFoundError",
    "PreflightError",
    "SupersededError",
]
"""Trying again would give the same answer."""
RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=1),
    maximum_interval=timedelta(seconds=30),
    non_retryable_error_types=FINAL_ERRORS,
)
ATTEMPT_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=500),
    maximum_interval=timedelta(seconds=15),
    non_retryable_error_types=FINAL_ERRORS,
)
UPDATE_RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=2),
    maximum_interval=timedelta(seconds=30),
    non_retryable_error_types=[*FINAL_ERRORS, "TrainerError", "CheckpointError", "HostChangedError"],
)


async def store_call(name: str, argument: BaseModel, result: type[Out], summary: str | None = None) -> Out:
    """An activity that reads or writes Postgres: short, and safe to run twice."""
    return await workflow.execute_activity(
        name,
        argument,
        result_type=result,
        start_to_close_timeout=STORE_CALL,
        heartbeat_timeout=STORE_HEARTBEAT,
        retry_policy=RETRY,
        summary=summary,
    )


async def gpu_call(
    name: str,
    argument: BaseModel,
    result: type[Out],
    queue: str,
    summary: str | None = None,
    patience: timedelta | None = None,
    host_patience: timedelta | None = None,
) -> Out:
    """An activity on a GPU host: long, with heartbeats, and cleaned up before a cancel is answered.

    With `host_patience` it fails where no host begins with it in time, also after it missed a heartbeat: `is_lost`.
    """
    return await workflow.execute_activity(
        name,
        argument,
        result_type=result,
        task_queue=queue,
        start_to_close_timeout=LONG_CALL,
        schedule_to_close_timeout=patience,
        schedule_to_start_timeout=host_patience,
        heartbeat_timeout=GPU_HEARTBEAT,
        retry_policy=UPDATE_RETRY,
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        summary=summary,
    )


async def runner_call(name: str, argument: BaseModel, result: type[Out], queue: str, fairness: str | None) -> Out:
    """An activity on a runner: a short heartbeat finds the death of its process."""
    return await workflow.execute_activity(
        name,
        argument,
        result_type=result,
        task_queue=queue,
        schedule_to_close_timeout=ATTEMPT_CALL,
        heartbeat_timeout=RUNNER_HEARTBEAT,
        retry_policy=ATTEMPT_RETRY,
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        priority=Priority(fairness_key=fairness[:64]) if fairness else Priority.default,
    )


def is_lost(error: ActivityError) -> bool:
    """Whether a call failed because its host is gone, or serves another run by now."""
    cause = error.cause
    if isinstance(cause, TemporalTimeout):
        return cause.type == TimeoutType.SCHEDULE_TO_START
    return cause_of(error)[0] == "HostChangedError"


def cause_of(error: BaseException) -> tuple[str, str]:
    """Type and message of what made an activity or a child fail."""
    cause = error
    while isinstance(cause, (ActivityError, ChildWorkflowError)) and cause.cause:
        cause = cause.cause
    kind = cause.type if isinstance(cause, ApplicationError) and cause.type else type(cause).__name__
    message = cause.message if isinstance(cause, FailureError) else str(cause)
    return kind, message.split("\n")[0]
