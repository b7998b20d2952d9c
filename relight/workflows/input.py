"""Validates the inputs of workflows. TrainingWorkflow takes a run file, with a cursor after a continue-as-new."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.exceptions import ApplicationError

from relight.errors import ConfigError
from relight.types import names
from relight.types.payloads import TrainingInput
from relight.types.run_file import KINDS
from relight.types.run_file_errors import describe

Model = TypeVar("Model", bound=BaseModel)


def bad_input(message: str) -> ApplicationError:
    """An error that fails the workflow at once. Any other would fail its task, which Temporal retries without limit."""
    return ApplicationError(message, type=ConfigError.__name__, non_retryable=True)


class InputConverter(PydanticPayloadConverter):
    """Temporal's converter for Pydantic, with which a workflow fails at once if its input can't be decoded."""

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """The values of payloads. Inputs of workflows have no type hints; results of activities and children have.

        Raises:
            ApplicationError: an input can't be decoded.
        """
        try:
            return super().from_payloads(payloads, type_hints)
        except Exception as error:
            if type_hints is not None:
                raise
            reason = describe(error) if isinstance(error, ValidationError) else str(error)
            raise bad_input(f"the workflow's input can't be decoded: {reason}; give one JSON object") from error


def validated_input(model: type[Model], inputs: tuple[Any, ...]) -> Model:
    """The one input of a workflow, validated. Workflows accept any input, so that a wrong one fails at once."""
    kind = workflow.info().workflow_type
    if len(inputs) != 1:
        raise bad_input(f"{kind} takes one input, a {model.__name__} as JSON, and got {len(inputs)}")
    try:
        return model.model_validate(inputs[0])
    except ValidationError as error:
        raise bad_input(f"{kind}: {describe(error)}") from error


def parse_input(inputs: tuple[Any, ...]) -> TrainingInput:
    """Validate the input of TrainingWorkflow, with the messages of `relight train`."""
    if len(inputs) != 1:
        raise bad_input(
            f"TrainingWorkflow takes one input, the run file as JSON, and got {len(inputs)}: "
            "give it with --input-file, or start the run with `relight train`"
        )
    try:
        parsed = TrainingInput.model_validate(inputs[0])
    except ValidationError as error:
        raise bad_input(f"run file: {describe(error, KINDS)}") from error
    if parsed.cursor and not workflow.info().continued_run_id:
        raise bad_input("run file: cursor: unknown key; `relight schema` lists the known ones")
    return parsed


def run_name() -> str:
    """The run's name, from the workflow's id `train/<name>`."""
    workflow_id = workflow.info().workflow_id
    name = workflow_id.removeprefix("train/")
    if name == workflow_id or not names.RUN_NAME.fullmatch(name):
        raise bad_input(
            f"workflow id {workflow_id!r}: use train/NAME as the id, where NAME matches {names.RUN_NAME.pattern}"
        )
    return name
