"""`relight pause | resume | stop | cancel | retry | set`: commands to live runs and their rollouts.

Each answers after its audit row is written.
"""

from __future__ import annotations

import getpass
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import typer

from relight.cli import output
from relight.cli.run_check import parse_pair
from relight.cli.store_reader import StoreReader
from relight.errors import ConfigError, NotFoundError, OverloadedError, StoreError
from relight.operators.operator import Operator, send_command
from relight.temporal.connection import connect_temporal
from relight.types import names
from relight.types.commands import COMMANDS, Resume
from relight.types.payloads import ChangeResult
from relight.types.rollout import FailureClass

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
    "cancel": """\b
Examples:
  relight cancel calculator-1 --reason 'wrong data set'
  relight cancel calculator-1-s0003-g01-i5""",
    "retry": """\b
Examples:
  relight retry calculator-1-s0003-g01-i5
  relight retry calculator-1 --failed
  relight retry calculator-1 --failed --class timeout""",
    "set_": """\b
Examples:
  relight set calculator-1 learning_rate=3e-5 temperature=0.8
  relight set calculator-1 group_size=16 concurrency=64
  relight set calculator-1 resources=@prompts.json""",
}
SETTING = (names.SET_HYPERPARAMETERS, names.UPDATE_RESOURCES, names.SET_CONCURRENCY)
SETTABLE = {key: action for action in SETTING for key in sorted(COMMANDS[action].model.model_fields) if key != "actor"}
"""Keys of `relight set`, and the command that sets each."""
Run = Annotated[str, typer.Argument(help="Name of the run.")]
Reason = Annotated[str, typer.Option(help="Shown wherever the run is shown.", show_default=False)]


async def pause(run: Run, reason: Reason = "") -> None:
    """Begin no attempt, batch, update or evaluation; what is under way ends and counts."""
    await give_and_show(run, names.PAUSE, {"reason": reason}, "paused")


async def resume(run: Run) -> None:
    """Lift a pause, or drive a run again that no workflow drives: its recorded steps and finished rollouts count."""
    async with operator() as op:
        result = await op.resume(run, Resume(actor=getpass.getuser()))
    driven = isinstance(result.after, dict)
    show(run, "driven again" if driven else "resumed", result)


async def stop(
    run: Run,
    after_step: Annotated[
        int | None, typer.Option(min=0, help="Finish after this step; default: the step under way.")
    ] = None,
) -> None:
    """Finish a run early: after the step under way, or after a later one."""
    await give_and_show(run, names.STOP_AFTER_STEP, {"step": after_step}, "stopping")


async def cancel(
    target: Annotated[str, typer.Argument(metavar="RUN|ROLLOUT", help="A run, or the id of one rollout.")],
    reason: Reason = "",
) -> None:
    """End a run, or one rollout of it, which then trains nothing. A run can be driven again with `relight resume`."""
    run, rollout_id = await find(target)
    if rollout_id is None:
        await give_and_show(run, names.CANCEL, {"reason": reason}, "being cancelled")
        return
    value = {"rollout_id": rollout_id, "reason": reason}
    await give_and_show(run, names.CANCEL_ROLLOUT, value, f"cancelling {rollout_id}")


async def retry(
    target: Annotated[str, typer.Argument(metavar="ROLLOUT|RUN", help="A failed rollout; a run with --failed.")],
    failed: Annotated[bool, typer.Option("--failed", help="All that failed in open batches of the run.")] = False,
    failure_class: Annotated[
        FailureClass | None, typer.Option("--class", help="With --failed: only this class.")
    ] = None,
) -> None:
    """Try failed or cancelled rollouts again, while their batch is open.

    Once it is closed, a retry is an inspection: the rollout runs again for you to look at, and no result changes.
    """
    run, rollout_id = await find(target)
    if rollout_id is not None:
        result = await give(run, names.RETRY_ROLLOUT, {"rollout_id": rollout_id})
        made = result.after.get("inspection") if isinstance(result.after, dict) else None
        what = f"inspecting {rollout_id}: relight rollouts show {made}" if made else f"trying {rollout_id} again"
        show(run, what, result)
        return
    if not failed:
        raise ConfigError(f"{run} is a run: give --failed to try all its failed rollouts again, or name one rollout")
    value = {"failure_class": failure_class.value if failure_class else None}
    await give_and_show(run, names.RETRY_FAILED, value, "trying failed rollouts again")


async def set_(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    settings: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", help=f"Keys: {', '.join(SETTABLE)}. @FILE reads a JSON file.")
    ],
) -> None:
    """Change a live run. Concurrency acts at once, all else from the first step on that is not planned."""
    for action, value in commands_for(dict(map(parse_pair, settings))):
        await give_and_show(run, action, value, f"changed ({', '.join(sorted(value))})")


async def give_and_show(run: str, action: str, value: dict[str, Any], done: str) -> None:
    """Give a live run a command, and show its answer."""
    show(run, done, await give(run, action, value))


async def give(run: str, action: str, value: dict[str, Any]) -> ChangeResult:
    """Give a live run a command; its answer."""
    value, key = {**value, "actor": getpass.getuser()}, uuid.uuid4().hex
    if COMMANDS[action].by_store and (written := await write(run, action, value, key)):
        return written
    client = await connect_temporal(output.settings())
    return await send_command(client, run, action, value, key)


async def write(run: str, action: str, value: dict[str, Any], key: str) -> ChangeResult | None:
    """Have the store do a command, whether or not Temporal answers; None where it can't, and Temporal may."""
    try:
        async with StoreReader.from_settings(output.settings()) as store:
            done = await store.give_command(run, action, value, key)
    except (StoreError, OverloadedError, NotFoundError):
        return None
    return ChangeResult.model_validate(done.result) if done.result else None


@asynccontextmanager
async def operator() -> AsyncGenerator[Operator]:
    """What gives commands for the user of this command line."""
    settings = output.settings()
    client = await connect_temporal(settings)
    async with StoreReader.from_settings(settings) as reader:
        yield Operator(client, reader, settings.orchestrator_queue)


def show(run: str, done: str, result: ChangeResult) -> None:
    """Show the result of a command."""
    if not output.emitted({"run": run, **result.model_dump(mode="json")}):
        where = f", effective at step {result.effective_step}" if result.effective_step is not None else ""
        output.say(f"run {run}: {done}{where}")


async def find(target: str) -> tuple[str, str | None]:
    """The run that a name means, and the rollout where it means one.

    Raises:
        NotFoundError: there is neither.
    """
    async with StoreReader.from_settings(output.settings()) as reader:
        try:
            return (await reader.run(target)).run, None
        except NotFoundError:
            pass
        try:
            rollout = await reader.rollout(target)
        except NotFoundError:
            raise NotFoundError(f"there is neither a run nor a rollout {target!r}; `relight runs` lists runs") from None
    if rollout.run is None:
        raise ConfigError(f"rollout {target} belongs to no run")
    return rollout.run, rollout.rollout_id


def commands_for(values: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The commands that set these values; all are checked before the first is given.

    Raises:
        ConfigError: a key that can't be set.
    """
    if unknown := [key for key in values if key not in SETTABLE]:
        raise ConfigError(f"{', '.join(unknown)}: can't be set on a live run; it takes {', '.join(SETTABLE)}")
    found = [(action, {key: values[key] for key in values if SETTABLE[key] == action}) for action in SETTING]
    return [(action, value) for action, value in found if value]
