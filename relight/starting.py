"""Starting the workflow of a run, and asking whether Temporal drives it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.service import RPCError, RPCStatusCode

from relight.errors import TemporalError
from relight.types.names import SEARCH_ALGORITHM, SEARCH_RUN, TRAINING_WORKFLOW, train_id
from relight.types.run_file import RunFile


async def start_run(
    client: Client, queue: str, run: str, file: RunFile, extra: Mapping[str, Any] | None = None, *, new: bool = False
) -> None:
    """Start `train/<run>`.

    Args:
        extra: keys of the input beside the run file's own.
        new: no workflow of this id may have ended well before.

    Raises:
        WorkflowAlreadyStartedError: it is under way, or was there before.
        TemporalError: the server refused.
    """
    reuse = WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY if new else WorkflowIDReusePolicy.ALLOW_DUPLICATE
    try:
        await client.start_workflow(
            TRAINING_WORKFLOW,
            {**file.model_dump(mode="json", exclude_unset=True), **(extra or {})},
            id=train_id(run),
            task_queue=queue,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            id_reuse_policy=reuse,
            search_attributes=_search_attributes(run, file),
            static_summary=f"train {file.agent} with {file.algorithm.name}",
            static_details=_details(file),
        )
    except RPCError as error:
        raise TemporalError(f"the Temporal server did not start {train_id(run)}: {error.message}") from error


async def is_under_way(client: Client, run: str) -> bool:
    """Whether Temporal drives the run."""
    try:
        description = await client.get_workflow_handle(train_id(run)).describe()
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return False
        raise TemporalError(f"the Temporal server does not tell about {train_id(run)}: {error.message}") from error
    return description.status == WorkflowExecutionStatus.RUNNING


def _search_attributes(run: str, file: RunFile) -> TypedSearchAttributes:
    values = {SEARCH_RUN: run, SEARCH_ALGORITHM: file.algorithm.name}
    return TypedSearchAttributes(
        [SearchAttributePair(SearchAttributeKey.for_keyword(name), value) for name, value in values.items()]
    )


def _details(file: RunFile) -> str:
    """What the Web UI says of the run for good."""
    rows = [
        ("agent", file.agent),
        ("model", file.model),
        ("training tasks", file.data.train),
        ("held-out tasks", file.data.evaluation or "-"),
        ("length", f"{file.steps} steps" if file.steps is not None else f"{file.epochs or 1} epochs"),
        ("a step", f"{file.batch_size} tasks x {file.group_size} samples"),
        ("algorithm", f"{file.algorithm.name}, learning rate {file.algorithm.learning_rate:g}"),
    ]
    return "| | |\n|---|---|\n" + "\n".join(f"| {name} | {value} |" for name, value in rows)
