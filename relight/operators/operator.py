"""Executes commands to runs, for the command line and for commands that came over HTTP.

A live run gets an update of its workflow, which answers after its audit row. A run that no workflow drives is started
again from Postgres (`resume`). `fork` and `replay` start a new run with a parent.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from relight.errors import ConfigError, ConflictError, NotFoundError, TemporalError
from relight.operators.derived_runs import derive
from relight.operators.run_workflows import is_driven
from relight.operators.starting import start_run
from relight.temporal.connection import as_temporal_error
from relight.types import commands, names
from relight.types.payloads import ChangeResult, RegradeInput
from relight.types.views import RunSummary, RunView, StepView, VersionView

ANSWER_SECONDS = 30
ENDED = ("finished", "failed", "cancelled")
CLOSING_TRIES = 50
CLOSING_SECONDS = 0.2


class Reader(Protocol):
    """Reads runs: from the store over HTTP, or from Postgres itself."""

    async def run(self, run: str) -> RunView: ...

    async def runs(self, limit: int = 100) -> list[RunSummary]: ...

    async def steps(self, run: str, *, after: int = 0, recorded: bool | None = None) -> list[StepView]: ...

    async def versions(self, run: str) -> list[VersionView]: ...


async def send_command(
    client: Client, run: str, action: str, value: dict[str, Any], key: str | None = None
) -> ChangeResult:
    """Send an update to a run's workflow; the same key twice is one command.

    Raises:
        NotFoundError: no workflow drives such a run.
        ConflictError: the run refused, with its reason.
        TemporalError: no orchestrator answers.
    """
    handle = client.get_workflow_handle(names.train_id(run))
    try:
        return await handle.execute_update(
            action, value, id=key, result_type=ChangeResult, rpc_timeout=timedelta(seconds=ANSWER_SECONDS)
        )
    except WorkflowUpdateFailedError as error:
        raise ConflictError(f"run {run} refused: {getattr(error.cause, 'message', error.cause)}") from error
    except WorkflowUpdateRPCTimeoutOrCancelledError as error:
        raise TemporalError(
            f"run {run} did not answer within {ANSWER_SECONDS} s; `relight status` shows whether an orchestrator polls"
        ) from error
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            raise NotFoundError(f"no run {run!r} is under way; `relight runs` lists them") from error
        raise TemporalError(f"the Temporal server did not pass {action} on to run {run}: {error.message}") from error


@dataclass(frozen=True)
class Operator:
    """Sends commands to runs."""

    client: Client
    reader: Reader
    queue: str
    """Task queue of the orchestrators."""

    async def do(self, run: str, action: str, value: dict[str, Any], key: str | None = None) -> ChangeResult:
        """Execute any command by its name; `value` has the fields of its model.

        Raises:
            RelightError: why it can't be executed.
        """
        spec = commands.COMMANDS[action]
        if spec.live and spec.model is not commands.Resume:
            return await send_command(self.client, run, action, value, key)
        command = spec.model.model_validate(value)
        if isinstance(command, commands.Resume):
            return await self.resume(run, command, key)
        if isinstance(command, commands.Regrade):
            return await self.regrade(run, command)
        assert isinstance(command, commands.Fork | commands.Replay)
        return await self.start_derived(run, command)

    async def resume(self, run: str, command: commands.Resume, key: str | None = None) -> ChangeResult:
        """Lift a pause, or start a new workflow for a run that none drives (rule 19).

        Raises:
            ConfigError: the run is finished.
            ConflictError: it is being cancelled.
        """
        value = command.model_dump()
        if await self._is_driven(run):
            return await send_command(self.client, run, names.RESUME, value, key)
        view = await self.reader.run(run)
        if view.cancel_requested and view.status not in ENDED:
            raise ConflictError(
                f"run {run} is being cancelled; `relight resume {run}` drives it again once it has ended"
            )
        if view.status == "finished":
            raise ConfigError(
                f"run {run} is finished: there is nothing to resume; `relight fork {run}` goes on from it"
            )
        extra = {"actor": command.actor, "lifts": view.cancel_requested}
        with suppress(WorkflowAlreadyStartedError):  # another resume, or the reconciler, was faster
            await start_run(self.client, self.queue, run, view.run_file, extra)
        if view.paused:
            await send_command(self.client, run, names.RESUME, value, key)
        after = {"status": "running", "epoch": view.epoch + 1}
        return ChangeResult(accepted=True, before=view.status, after=after, effective_step=view.step + 1)

    async def _is_driven(self, run: str) -> bool:
        """Whether a workflow drives a run. A workflow closes shortly after it has recorded the run's end."""
        for _ in range(CLOSING_TRIES):
            if not await is_driven(self.client, run):
                return False
            try:
                ended = (await self.reader.run(run)).status in ENDED
            except NotFoundError:
                return True  # it has just begun
            if not ended:
                return True
            await asyncio.sleep(CLOSING_SECONDS)
        return True

    async def start_derived(self, run: str, command: commands.Fork | commands.Replay) -> ChangeResult:
        """Start a fork or a replay of a run.

        Raises:
            ConfigError: a key can't be changed, or the step has no checkpoint.
        """
        parent = await self.reader.run(run)
        first = parent.parent_step or 0 if command.from_step is None else command.from_step
        steps = await self.reader.steps(run, after=first - 1) if first else []
        plan = next((step.plan for step in steps if step.step == first), None)
        derived = derive(parent, plan, await self.reader.versions(run), command)
        name = command.name or await self.free_name(run, command)
        extra = {"actor": command.actor, "parent": derived.parent.model_dump()}
        try:
            await start_run(self.client, self.queue, name, derived.file, extra, new=True)
        except WorkflowAlreadyStartedError:
            await self._check_same_parent(name, run, first)
        return ChangeResult(
            accepted=True, before={"run": run, "step": first}, after={"run": name}, effective_step=first + 1
        )

    async def _check_same_parent(self, name: str, parent: str, first: int) -> None:
        try:
            known = await self.reader.run(name)
        except NotFoundError:
            return  # started a moment ago, it has no row yet
        if (known.parent_run, known.parent_step) != (parent, first):
            raise ConfigError(f"run {name} exists already; choose another name with --name")

    async def free_name(self, run: str, command: commands.Fork | commands.Replay) -> str:
        """`<run>-fork-<n>` with the next number that no run has."""
        stem = f"{run[:50]}-{type(command).__name__.lower()}"
        taken = {known.run for known in await self.reader.runs(1000)}
        number = 1
        while f"{stem}-{number}" in taken:
            number += 1
        return f"{stem}-{number}"

    async def regrade(self, run: str, command: commands.Regrade) -> ChangeResult:
        """Start a grader's pass over a run, or find that it is under way."""
        file = (await self.reader.run(run)).run_file
        asked = RegradeInput.taken_from(command, run=run, runner_queue=file.runner_queue)
        workflow_id = names.regrade_id(run, command.grader)
        # Asked for twice, it is the same pass.
        with suppress(WorkflowAlreadyStartedError), as_temporal_error(f"start {workflow_id}"):
            await self.client.start_workflow(
                names.REGRADE_WORKFLOW, asked, id=workflow_id, task_queue=self.queue, result_type=dict
            )
        return ChangeResult(accepted=True, after={"workflow": workflow_id, "grader": command.grader})
