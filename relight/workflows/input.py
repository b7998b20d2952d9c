"""What TrainingWorkflow is started with: a run file, or a run file with the cursor of a continue-as-new."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.exceptions import ApplicationError

from relight.errors import ConfigError
from relight.types import names
from relight.types.payloads import TrainingInput
from relight.types.run_file import describe


def bad_input(message: str) -> ApplicationError:
    """An error that fails the workflow at once instead of wedging its task."""
    return ApplicationError(message, type=ConfigError.__name__, non_retryable=True)


def parse_input(raw: Any) -> TrainingInput:
    """Validate the input; the message is that of `relight train`."""
    try:
        parsed = TrainingInput.model_validate(raw)
    except ValidationError as error:
        raise bad_input(f"run file: {describe(error)}") from error
    if parsed.cursor and not workflow.info().continued_run_id:
        raise bad_input("run file: cursor: unknown key; `relight schema` lists the known ones")
    return parsed


def run_name() -> str:
    """The run's name, out of the workflow's id `train/<name>`."""
    workflow_id = workflow.info().workflow_id
    name = workflow_id.removeprefix("train/")
    if name == workflow_id or not names.RUN_NAME.fullmatch(name):
        raise bad_input(
            f"workflow id {workflow_id!r}: start it as train/NAME, where NAME matches {names.RUN_NAME.pattern}"
        )
    return name
