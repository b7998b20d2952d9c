"""Fails workflows of unknown types; without this they would stay open and show no error."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from temporalio import workflow
from temporalio.common import RawValue

from relight.types import names
from relight.workflows import build_versions
from relight.workflows.input import bad_input

KNOWN = (
    names.TRAINING_WORKFLOW,
    names.REGRADE_WORKFLOW,
    names.EVALUATION_WORKFLOW,
    names.BATCH_WORKFLOW,
    names.ROLLOUT_WORKFLOW,
)


@workflow.defn(dynamic=True, versioning_behavior=build_versions.PINNED)
class UnknownWorkflow:
    """Any workflow of a type that is unknown here."""

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> None:
        """Fail at once, and suggest the type that was probably meant."""
        kind = workflow.info().workflow_type
        near = difflib.get_close_matches(kind, KNOWN, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"a run is started as {names.TRAINING_WORKFLOW}"
        raise bad_input(f"there is no workflow type {kind!r}: {hint} (known: {', '.join(KNOWN)})")
