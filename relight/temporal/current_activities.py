"""The activities of a Temporal worker, in the report of their process."""

from __future__ import annotations

from typing import Any

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from relight.observability.reporting import Doing


class Reported(Interceptor):
    """Puts the activities of a worker into the report of its process."""

    def __init__(self, doing: Doing) -> None:
        self._doing = doing

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Wrap the execution of activities."""
        return _Reporting(next, self._doing)


class _Reporting(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, doing: Doing) -> None:
        super().__init__(next)
        self._doing = doing

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        subject = input.args[0] if input.args else None
        rollout_id = getattr(subject, "rollout_id", None)
        with self._doing.at(rollout_id or _described(activity.info().activity_type, subject), rollout_id):
            return await super().execute_activity(input)


def _described(kind: str, subject: Any) -> str:
    run, step = getattr(subject, "run", None), getattr(subject, "step", None)
    of_run = f" of run {run}" if run else ""
    return f"{kind}{of_run}{f', step {step}' if step is not None else ''}"
