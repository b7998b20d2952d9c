"""How workflows call activities: timeouts and retries in one place.

There are two layers of retries. Here is the first: the process or the platform failed, so the activity is tried again
without limit. RolloutWorkflow has the second: the agent failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import TypeVar

from pydantic import BaseModel
from temporalio import workflow
from temporalio.common import Priority, RetryPolicy
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    FailureError,
    TerminatedError,
    TimeoutType,
)
from temporalio.exceptions import TimeoutError as TemporalTimeout
from temporalio.workflow import ActivityCancellationType

Out = TypeVar("Out", bound=BaseModel)
Result = TypeVar("Result")

ATTEMPT_TIMEOUT = timedelta(days=30)
"""From scheduling to end, independent of `timeout_seconds`: the runner applies an attempt's deadlines, which exclude
time in the queue and time paused (rule 5). When it is exceeded, the batch starts the attempt again."""
STORE_TIMEOUT = timedelta(minutes=10)
STORE_HEARTBEAT = timedelta(seconds=10)
RUNNER_HEARTBEAT = timedelta(seconds=10)
GPU_HEARTBEAT = timedelta(seconds=10)
GPU_TIMEOUT = timedelta(days=1)
START_TIMEOUT = timedelta(seconds=30)
"""How long a GPU host may take to start an activity; after that the run claims a GPU host again."""
LONGEST_RETRY = timedelta(seconds=5)
"""Between two tries, however long an outage lasts: a run goes on within seconds of its end. Retries add no events."""
FINAL_ERRORS = [
    "CancelRequestedError",
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
    maximum_interval=LONGEST_RETRY,
    non_retryable_error_types=FINAL_ERRORS,
)
ATTEMPT_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=500),
    maximum_interval=LONGEST_RETRY,
    non_retryable_error_types=FINAL_ERRORS,
)
UPDATE_RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=2),
    maximum_interval=LONGEST_RETRY,
    non_retryable_error_types=[*FINAL_ERRORS, "TrainerError", "CheckpointError", "HostChangedError"],
)


async def store_call(name: str, argument: BaseModel, result: type[Out], summary: str | None = None) -> Out:
    """An activity that reads or writes Postgres: short, and safe to run twice."""
    return await workflow.execute_activity(
        name,
        argument,
        result_type=result,
        start_to_close_timeout=STORE_TIMEOUT,
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
    timeout: timedelta | None = None,
    start_timeout: timedelta | None = None,
) -> Out:
    """An activity on a GPU host: long, with heartbeats, and cleaned up before a cancel is answered.

    With `start_timeout` it fails if no host starts it in time, also after a missed heartbeat: see `is_host_lost`.
    """
    call = workflow.execute_activity(
        name,
        argument,
        result_type=result,
        task_queue=queue,
        start_to_close_timeout=GPU_TIMEOUT,
        schedule_to_close_timeout=timeout,
        schedule_to_start_timeout=start_timeout,
        heartbeat_timeout=GPU_HEARTBEAT,
        retry_policy=UPDATE_RETRY,
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        summary=summary,
    )
    return await await_then_check_cancel(call)


async def runner_call(name: str, argument: BaseModel, result: type[Out], queue: str, fairness: str | None) -> Out:
    """An activity on a runner: a short heartbeat timeout detects that its process has died."""
    return await workflow.execute_activity(
        name,
        argument,
        result_type=result,
        task_queue=queue,
        schedule_to_close_timeout=ATTEMPT_TIMEOUT,
        heartbeat_timeout=RUNNER_HEARTBEAT,
        retry_policy=ATTEMPT_RETRY,
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        priority=Priority(fairness_key=fairness[:64]) if fairness else Priority.default,
    )


def is_cancel_requested() -> bool:
    """Whether Temporal was asked to cancel this workflow."""
    return workflow.cancellation_reason() is not None


def raise_if_cancelled() -> None:
    """Stop here if a cancel was requested: a call that failed meanwhile is not tried again.

    Raises:
        asyncio.CancelledError: a cancel was requested.
    """
    if is_cancel_requested():
        raise asyncio.CancelledError


def may_restart_child(error: ChildWorkflowError) -> bool:
    """Whether to start a child again: it was terminated, cancelled or timed out, and this workflow is not cancelled."""
    task = asyncio.current_task()
    if is_cancel_requested() or (task is not None and task.cancelling()):
        return False
    return isinstance(error.cause, (TerminatedError, CancelledError, TemporalTimeout))


async def await_then_check_cancel(call: Awaitable[Result]) -> Result:
    """Await a call that may complete although a cancel was requested meanwhile; the cancel still takes effect.

    Raises:
        asyncio.CancelledError: a cancel was requested during the call.
    """
    was_requested = is_cancel_requested()
    answer = await call
    if not was_requested:
        raise_if_cancelled()
    return answer


def is_host_lost(error: ActivityError) -> bool:
    """Whether a call failed because its GPU host does not answer, or serves another run."""
    cause = error.cause
    if isinstance(cause, TemporalTimeout):
        return cause.type == TimeoutType.SCHEDULE_TO_START
    return cause_of(error)[0] == "HostChangedError"


def cause_of(error: BaseException) -> tuple[str, str]:
    """Type and message of the error that made an activity or a child workflow fail."""
    cause = error
    while isinstance(cause, (ActivityError, ChildWorkflowError)) and cause.cause:
        cause = cause.cause
    kind = cause.type if isinstance(cause, ApplicationError) and cause.type else type(cause).__name__
    message = cause.message if isinstance(cause, FailureError) else str(cause)
    return kind, message.split("\n")[0]
