"""`relight pause | resume | stop`: what operators say to a live run; each answers after its audit row is written."""

from __future__ import annotations

import getpass
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import typer

from relight.cli import output
from relight.cli.reader import StoreReader
from relight.connections import connect_temporal
from relight.operations import Operator, tell
from relight.types import names
from relight.types.commands import Resume
from relight.types.payloads import ChangeResult

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
    await order(run, names.PAUSE, {"reason": reason}, "paused")


async def resume(run: Run) -> None:
    """Lift a pause, or drive a run again that nobody drives: its recorded steps and finished rollouts count."""
    async with operator() as op:
        result = await op.resume(run, Resume(actor=getpass.getuser()))
    driven = isinstance(result.after, dict)
    show(run, "driven again" if driven else "resumed", result)


async def stop(
    run: Run,
    after_step: Annotated[
        int | None, typer.Option(min=0, help="Finish after this step; default: the step under way.", show_default=False)
    ] = None,
) -> None:
    """Finish a run early: after the step under way, or after a later one."""
    await order(run, names.STOP_AFTER_STEP, {"step": after_step}, "told to stop")


async def order(run: str, action: str, value: dict[str, Any], done: str) -> None:
    """Tell a live run, and show what it answered."""
    show(run, done, await ask(run, action, value))


async def ask(run: str, action: str, value: dict[str, Any]) -> ChangeResult:
    """Tell a live run; what it answered."""
    client = await connect_temporal(output.settings())
    return await tell(client, run, action, {**value, "actor": getpass.getuser()})


@asynccontextmanager
async def operator() -> AsyncGenerator[Operator]:
    """Whoever sits at this command line."""
    settings = output.settings()
    client = await connect_temporal(settings)
    async with StoreReader.from_settings(settings) as reader:
        yield Operator(client, reader, settings.orchestrator_queue)


def show(run: str, done: str, result: ChangeResult) -> None:
    """What came of a command."""
    if output.wants_json():
        output.emit({"run": run, **result.model_dump(mode="json")})
        return
    where = f", effective at step {result.effective_step}" if result.effective_step is not None else ""
    output.say(f"run {run} is {done}{where}")
