"""Updates and signals of TrainingWorkflow: what operators say to a live run.

An update is validated, refused with a reason, and answers after its audit row. The signal of the same name takes raw
JSON; one that is wrong changes nothing and is recorded as refused.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.exceptions import ApplicationError

from relight.types import names
from relight.types.commands import COMMANDS
from relight.types.payloads import ChangeInput, ChangeResult
from relight.types.run_file import describe


def check(action: str, value: Any) -> None:
    """Refuse what doesn't validate, before it enters the history."""
    try:
        COMMANDS[action].model_validate(value or {})
    except ValidationError as error:
        raise ApplicationError(f"{action}: {describe(error)}", type="Refused", non_retryable=True) from error


class CommandHandlers:
    """The handlers; `record_change` is the workflow's own."""

    def __init__(self) -> None:
        self.paused = False
        self.refused = 0
        self.concurrency: int | None = None
        """As set since the run began."""

    async def record_change(self, change: ChangeInput) -> ChangeResult:
        """Write the change and its audit row."""
        raise NotImplementedError

    async def change(self, action: str, value: Any, key: str) -> ChangeResult:
        """Do one command; the result says whether it was accepted."""
        actor = value.get("actor", "operator") if isinstance(value, dict) else "operator"
        change = ChangeInput(run="", action=action, actor=str(actor), request_key=key, value=value)
        result = await self.record_change(change)
        self.refused += not result.accepted
        if result.accepted and action in ("pause", "resume"):
            self.paused = action == "pause"
        if result.accepted and action == names.SET_CONCURRENCY:
            self.concurrency = int(result.after)
        return result

    async def _update(self, action: str, value: Any) -> ChangeResult:
        info = workflow.current_update_info()
        result = await self.change(action, value, f"update/{info.id}" if info else workflow.uuid4().hex)
        if not result.accepted:
            raise ApplicationError(f"{action}: {result.reason}", type="Refused", non_retryable=True)
        return result

    async def _signal(self, action: str, value: Any) -> None:
        await self.change(action, value, f"signal/{workflow.uuid4().hex}")

    @workflow.update(name=names.PAUSE)
    async def pause(self, value: Any = None) -> ChangeResult:
        """Begin nothing new; what is under way ends and counts."""
        return await self._update(names.PAUSE, value)

    @pause.validator
    def _check_pause(self, value: Any = None) -> None:
        check(names.PAUSE, value)

    @workflow.signal(name=names.PAUSE)
    async def pause_signal(self, value: Any = None) -> None:
        """The same, as a signal."""
        await self._signal(names.PAUSE, value)

    @workflow.update(name=names.RESUME)
    async def resume(self, value: Any = None) -> ChangeResult:
        """Lift a pause."""
        return await self._update(names.RESUME, value)

    @resume.validator
    def _check_resume(self, value: Any = None) -> None:
        check(names.RESUME, value)

    @workflow.signal(name=names.RESUME)
    async def resume_signal(self, value: Any = None) -> None:
        """The same, as a signal."""
        await self._signal(names.RESUME, value)

    @workflow.update(name=names.STOP_AFTER_STEP)
    async def stop_after_step(self, value: Any = None) -> ChangeResult:
        """Finish the run after a step."""
        return await self._update(names.STOP_AFTER_STEP, value)

    @stop_after_step.validator
    def _check_stop(self, value: Any = None) -> None:
        check(names.STOP_AFTER_STEP, value)

    @workflow.signal(name=names.STOP_AFTER_STEP)
    async def stop_after_step_signal(self, value: Any = None) -> None:
        """The same, as a signal."""
        await self._signal(names.STOP_AFTER_STEP, value)

    @workflow.update(name=names.SET_HYPERPARAMETERS)
    async def set_hyperparameters(self, value: Any) -> ChangeResult:
        """Change values from the first step on that is not planned."""
        return await self._update(names.SET_HYPERPARAMETERS, value)

    @set_hyperparameters.validator
    def _check_hyperparameters(self, value: Any) -> None:
        check(names.SET_HYPERPARAMETERS, value)

    @workflow.signal(name=names.SET_HYPERPARAMETERS)
    async def set_hyperparameters_signal(self, value: Any = None) -> None:
        """The same, as a signal."""
        await self._signal(names.SET_HYPERPARAMETERS, value)

    @workflow.update(name=names.UPDATE_RESOURCES)
    async def update_resources(self, value: Any) -> ChangeResult:
        """Give the run other resources from the first step on that is not planned."""
        return await self._update(names.UPDATE_RESOURCES, value)

    @update_resources.validator
    def _check_resources(self, value: Any) -> None:
        check(names.UPDATE_RESOURCES, value)

    @workflow.signal(name=names.UPDATE_RESOURCES)
    async def update_resources_signal(self, value: Any = None) -> None:
        """The same, as a signal."""
        await self._signal(names.UPDATE_RESOURCES, value)

    @workflow.update(name=names.RETRY_ROLLOUT)
    async def retry_rollout(self, value: Any) -> ChangeResult:
        """Try a failed rollout of an open batch again."""
        return await self._update(names.RETRY_ROLLOUT, value)

    @retry_rollout.validator
    def _check_retry(self, value: Any) -> None:
        check(names.RETRY_ROLLOUT, value)

    @workflow.signal(name=names.RETRY_ROLLOUT)
    async def retry_rollout_signal(self, value: Any = None) -> None:
        """The same, as a signal."""
        await self._signal(names.RETRY_ROLLOUT, value)

    @workflow.update(name=names.RETRY_FAILED)
    async def retry_failed(self, value: Any = None) -> ChangeResult:
        """Try all failed rollouts of the open batches again."""
        return await self._update(names.RETRY_FAILED, value)

    @retry_failed.validator
    def _check_retry_failed(self, value: Any = None) -> None:
        check(names.RETRY_FAILED, value)

    @workflow.signal(name=names.RETRY_FAILED)
    async def retry_failed_signal(self, value: Any = None) -> None:
        """The same, as a signal."""
        await self._signal(names.RETRY_FAILED, value)

    @workflow.update(name=names.CANCEL_ROLLOUT)
    async def cancel_rollout(self, value: Any) -> ChangeResult:
        """Stop one rollout and close it as cancelled."""
        return await self._update(names.CANCEL_ROLLOUT, value)

    @cancel_rollout.validator
    def _check_cancel_rollout(self, value: Any) -> None:
        check(names.CANCEL_ROLLOUT, value)

    @workflow.signal(name=names.CANCEL_ROLLOUT)
    async def cancel_rollout_signal(self, value: Any = None) -> None:
        """The same, as a signal."""
        await self._signal(names.CANCEL_ROLLOUT, value)

    @workflow.update(name=names.SET_CONCURRENCY)
    async def set_concurrency(self, value: Any) -> ChangeResult:
        """Change at once how many rollouts are under way."""
        return await self._update(names.SET_CONCURRENCY, value)

    @set_concurrency.validator
    def _check_concurrency(self, value: Any) -> None:
        check(names.SET_CONCURRENCY, value)

    @workflow.signal(name=names.SET_CONCURRENCY)
    async def set_concurrency_signal(self, value: Any = None) -> None:
        """The same, as a signal."""
        await self._signal(names.SET_CONCURRENCY, value)

    @workflow.update(name=names.CANCEL)
    async def cancel(self, value: Any = None) -> ChangeResult:
        """End the run; the cancel itself comes from Temporal, asked for once the audit row is written."""
        return await self._update(names.CANCEL, value)

    @cancel.validator
    def _check_cancel(self, value: Any = None) -> None:
        check(names.CANCEL, value)

    @workflow.signal(name=names.CANCEL)
    async def cancel_signal(self, value: Any = None) -> None:
        """The same, as a signal."""
        await self._signal(names.CANCEL, value)
