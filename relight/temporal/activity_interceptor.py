"""What surrounds every activity of a worker: heartbeats, its process's report, and errors that are retried soon."""

from __future__ import annotations

from typing import Any

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from relight.observability.process_reports import Doing
from relight.retrying import Every, in_background
from relight.temporal.draining import handed_back_if_ending
from relight.temporal.retry_later import waiting_retried_later


class ActivityInterceptor(Interceptor):
    """Heartbeats the activities of a worker, so that the death of its process is detected soon, and reports them."""

    def __init__(self, heartbeat_seconds: float, doing: Doing) -> None:
        self._heartbeat_seconds = heartbeat_seconds
        self._doing = doing

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Wrap the execution of activities."""
        return _Surrounding(next, self._heartbeat_seconds, self._doing)


class _Surrounding(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, heartbeat_seconds: float, doing: Doing) -> None:
        super().__init__(next)
        self._heartbeat_seconds = heartbeat_seconds
        self._doing = doing

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        subject = input.args[0] if input.args else None
        rollout_id = getattr(subject, "rollout_id", None)
        what = rollout_id or _described(activity.info().activity_type, subject)
        with self._doing.at(what, rollout_id), handed_back_if_ending(), waiting_retried_later():
            async with in_background(_heartbeat(self._heartbeat_seconds)):
                return await super().execute_activity(input)


def _described(kind: str, subject: Any) -> str:
    run, step = getattr(subject, "run", None), getattr(subject, "step", None)
    of_run = f" of run {run}" if run else ""
    return f"{kind}{of_run}{f', step {step}' if step is not None else ''}"


async def _heartbeat(every_seconds: float) -> None:
    """Show Temporal that the activity continues, which answers whether it was cancelled; its start counts as one."""
    async for _ in Every(every_seconds, at_once=False):
        activity.heartbeat()
