"""Updates and signals of TrainingWorkflow: the commands that operators give to a live run.

An update is validated, refused with a reason, and answers after its audit row. The signal of the same name takes raw
JSON; one that is wrong changes nothing and is recorded as refused.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.exceptions import ApplicationError

from relight.types import names
from relight.types.commands import LIVE_COMMANDS
from relight.types.payloads import ChangeInput, ChangeResult
from relight.types.run_file_errors import describe


def check(action: str, value: Any) -> None:
    """Refuse what doesn't validate, before it enters the history."""
    try:
        LIVE_COMMANDS[action].model.model_validate(value or {})
    except ValidationError as error:
        raise ApplicationError(f"{action}: {describe(error)}", type="Refused", non_retryable=True) from error


class CommandHandlers:
    """Has an update and a signal for each live command; `record_change` is the workflow's own."""

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
        if result.accepted and action in (names.PAUSE, names.RESUME):
            self.paused = action == names.PAUSE
        if result.accepted and action == names.SET_CONCURRENCY:
            self.concurrency = int(result.after)
        return result


def add_handlers(action: str) -> None:
    """Give CommandHandlers the update of this name, its validator, and the signal."""

    @workflow.update(name=action)
    async def update(self: CommandHandlers, value: Any = None) -> ChangeResult:
        info = workflow.current_update_info()
        result = await self.change(action, value, f"update/{info.id}" if info else workflow.uuid4().hex)
        if not result.accepted:
            raise ApplicationError(f"{action}: {result.reason}", type="Refused", non_retryable=True)
        return result

    @update.validator
    def validate(self: CommandHandlers, value: Any = None) -> None:
        check(action, value)

    @workflow.signal(name=action)
    async def signal(self: CommandHandlers, value: Any = None) -> None:
        await self.change(action, value, f"signal/{workflow.uuid4().hex}")

    for kind, handler in (("update", update), ("validate", validate), ("signal", signal)):
        setattr(CommandHandlers, f"{kind}_{action}", handler)


for name in LIVE_COMMANDS:  # the SDK collects a class's handlers when its workflow is defined, so before that
    add_handlers(name)
