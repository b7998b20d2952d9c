"""`relight pause | resume | stop`: what operators say to a live run; each answers after its audit row is written."""

from __future__ import annotations

import getpass
from datetime import timedelta
from typing import Annotated, Any

import typer
from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError, RPCStatusCode

from relight.cli import output
from relight.cli.launch import is_under_way, launch
from relight.cli.reader import StoreReader
from relight.connections import connect_temporal
from relight.errors import ConflictError, NotFoundError, TemporalError
from relight.types import names
from relight.types.payloads import ChangeResult
from relight.types.run_file import parse_run_file

ANSWER_SECONDS = 30
EPILOG = {
    "pause": """\b
Examples:
  relight pause calculator-1 --reason 'the cluster is needed'""",
    "resume": """\b
Examples:
  relight resume calculator-1""",
    "stop": """\b
Examples:
  relight stop calculator-1
  relight stop calculator-1 --after-step 40""",
}
Run = Annotated[str, typer.Argument(help="Name of the run.")]


async def pause(
    run: Run, reason: Annotated[str, typer.Option(help="Shown wherever the run is shown.", show_default=False)] = ""
) -> None:
    """Begin no attempt, batch, update or evaluation; what is under way ends and counts."""
    await _tell(run, names.PAUSE, {"reason": reason}, "paused")


async def resume(run: Run) -> None:
    """Lift a pause, or drive a run again that nobody drives: its recorded steps and finished rollouts count."""
    settings = output.settings()
    client = await connect_temporal(settings)
    if await is_under_way(client, run):
        await _tell(run, names.RESUME, {}, "resumed")
        return
    async with StoreReader.from_settings(settings) as reader:
        view = await reader.run(run)
        await launch(client, reader, settings.orchestrator_queue, run, parse_run_file(view.file))
    _done(run, "driven again", ChangeResult(accepted=True))


async def stop(
    run: Run,
    after_step: Annotated[
        int | None, typer.Option(min=0, help="Finish after this step; default: the step under way.", show_default=False)
    ] = None,
) -> None:
    """Finish a run early: after the step under way, or after a later one."""
    await _tell(run, names.STOP_AFTER_STEP, {"step": after_step}, "told to stop")


async def _tell(run: str, action: str, value: dict[str, Any], done: str) -> None:
    client = await connect_temporal(output.settings())
    _done(run, done, await change(client, run, action, {**value, "actor": getpass.getuser()}))


async def change(client: Client, run: str, action: str, value: dict[str, Any]) -> ChangeResult:
    """Send an update to a run's workflow.

    Raises:
        NotFoundError: nobody drives such a run.
        ConflictError: the run refused, with its reason.
        TemporalError: no orchestrator answers.
    """
    handle = client.get_workflow_handle(names.train_id(run))
    try:
        return await handle.execute_update(
            action, value, result_type=ChangeResult, rpc_timeout=timedelta(seconds=ANSWER_SECONDS)
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


def _done(run: str, done: str, result: ChangeResult) -> None:
    if output.wants_json():
        output.emit({"run": run, **result.model_dump(mode="json")})
        return
    where = f", effective at step {result.effective_step}" if result.effective_step is not None else ""
    output.say(f"run {run} is {done}{where}")
