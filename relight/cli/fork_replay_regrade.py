"""`relight fork | replay | regrade`: derive another run, or another grader's rewards, from a run."""

from __future__ import annotations

import getpass
from typing import Annotated, Any

import typer
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ActivityError

from relight.cli import output
from relight.cli.render import command_line
from relight.cli.run_check import check_run_name, parse_pair
from relight.cli.run_control import operator
from relight.cli.shared_options import Detach, Set
from relight.cli.store_reader import StoreReader
from relight.cli.train import watch
from relight.errors import ConfigError
from relight.types.commands import Fork, Regrade, Replay
from relight.types.payloads import ChangeResult, RegradeResult

EPILOG = {
    "fork": """\b
Examples:
  relight fork calculator-1 --from-step 40 --set algorithm.learning_rate=1e-6
  relight fork calculator-1 --from-step 40 --set steps=200 --name calculator-long""",
    "replay": """\b
Examples:
  relight replay calculator-1 --set algorithm.loss_mode=gspo
  relight replay calculator-1 --set grader=strict --set algorithm.learning_rate=1e-5""",
    "regrade": """\b
Examples:
  relight regrade calculator-1 --grader strict
  relight regrade calculator-1 --grader strict --step 12""",
}
Name = Annotated[str | None, typer.Option(help="Name of the new run.")]
Run = Annotated[str, typer.Argument(help="The run that it comes from.")]


async def fork(
    run: Run,
    from_step: Annotated[int, typer.Option(min=0, help="Start from this step's checkpoint; 0: the given model.")],
    name: Name = None,
    set_: Set = None,
    detach: Detach = False,
) -> None:
    """Start a new run from a checkpoint of another. It goes on with the next step's number and the next tasks."""
    await _start_derived(run, Fork(from_step=from_step, **_given(name, set_)), detach)


async def replay(
    run: Run,
    from_step: Annotated[
        int | None, typer.Option(min=0, help="Start from this step's checkpoint. Default: its start.")
    ] = None,
    name: Name = None,
    set_: Set = None,
    detach: Detach = False,
) -> None:
    """Train on the rollouts of another run without sampling: another loss, learning rate, or grader's rewards."""
    await _start_derived(run, Replay(from_step=from_step, **_given(name, set_)), detach)


async def regrade(
    run: Run,
    grader: Annotated[str, typer.Option(help="Name of a grader that runners serve.")],
    step: Annotated[int | None, typer.Option(min=0, help="Only this step's rollouts.")] = None,
    detach: Detach = False,
) -> None:
    """Grade a run's attempts with another grader. Its rewards are kept beside those that were trained on."""
    async with operator() as op:
        result = await op.regrade(run, Regrade(grader=grader, step=step, actor=getpass.getuser()))
        if detach:
            _say(run, result, f"grader {grader} begins to grade run {run}")
            return
        regraded = await _result_of(op.client, str(result.after["workflow"]))
    if not output.emitted(regraded):
        failed = f", {regraded.failed} could not be graded" if regraded.failed else ""
        output.say(f"grader {grader} gave {regraded.graded} rewards{failed}")


def _given(name: str | None, pairs: list[str] | None) -> dict[str, Any]:
    changes = dict(map(parse_pair, pairs or []))
    return {"name": check_run_name(name) if name else None, "set": changes, "actor": getpass.getuser()}


async def _start_derived(run: str, command: Fork | Replay, detach: bool) -> None:
    async with operator() as op:
        result = await op.start_derived(run, command)
        new = str(result.after["run"])
        _say(new, result, f"run {new} started from step {result.before['step']} of {run}")
        if detach:
            output.say(f"  watch it with: {command_line('status', '--watch', new)}")
            return
        assert isinstance(op.reader, StoreReader)
        await watch(new, op.reader, op.client, output.settings())


async def _result_of(client: Client, workflow_id: str) -> RegradeResult:
    handle = client.get_workflow_handle(workflow_id, result_type=RegradeResult)
    try:
        return await handle.result()
    except WorkflowFailureError as error:
        cause: Any = error.cause
        if isinstance(cause, ActivityError):
            cause = cause.cause
        raise ConfigError(str(getattr(cause, "message", cause))) from error


def _say(run: str, result: ChangeResult, text: str) -> None:
    if not output.emitted({"run": run, **result.model_dump(mode="json")}):
        output.say(text)
