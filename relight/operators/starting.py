"""Starting the workflow of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from temporalio.client import Client
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)

from relight.temporal.connection import refusals_as_temporal_error
from relight.types.names import SEARCH_ALGORITHM, SEARCH_RUN, TRAINING_WORKFLOW, train_id
from relight.types.run_file import RunFile


async def start_run(
    client: Client,
    queue: str,
    run: str,
    file: RunFile,
    extra: Mapping[str, Any] | None = None,
    *,
    new: bool = False,
    memo: Mapping[str, Any] | None = None,
) -> None:
    """Start `train/<run>`.

    Args:
        extra: further keys of the input, in addition to the run file's.
        new: fail if a workflow of this id has completed before.
        memo: of the workflow.

    Raises:
        WorkflowAlreadyStartedError: it is under way, or completed before.
        TemporalError: the server refused.
    """
    reuse = WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY if new else WorkflowIDReusePolicy.ALLOW_DUPLICATE
    with refusals_as_temporal_error(f"start {train_id(run)}"):
        await client.start_workflow(
            TRAINING_WORKFLOW,
            {**file.model_dump(mode="json", exclude_unset=True), **(extra or {})},
            id=train_id(run),
            task_queue=queue,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            id_reuse_policy=reuse,
            memo=memo,
            search_attributes=_search_attributes(run, file),
            static_summary=f"train {file.agent} with {file.algorithm.name}",
            static_details=_details(file),
        )


def _search_attributes(run: str, file: RunFile) -> TypedSearchAttributes:
    values = {SEARCH_RUN: run, SEARCH_ALGORITHM: file.algorithm.name}
    return TypedSearchAttributes(
        [SearchAttributePair(SearchAttributeKey.for_keyword(name), value) for name, value in values.items()]
    )


def _details(file: RunFile) -> str:
    """The static details of the run in the Web UI."""
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
