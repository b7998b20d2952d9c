"""`relight cancel | retry | set`: what operators do to live runs and their rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from relight.cli import output
from relight.cli.changes import ask, order, show
from relight.cli.reader import StoreReader
from relight.cli.run_check import parse_value
from relight.errors import ConfigError, NotFoundError
from relight.types import names
from relight.types.commands import SetHyperparameters
from relight.types.rollout import FailureClass

EPILOG = {
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
HYPERPARAMETERS = frozenset(SetHyperparameters.model_fields) - {"actor"}
SETTABLE = (*sorted(HYPERPARAMETERS), "concurrency", "resources", "resources_id")


async def cancel(
    target: Annotated[str, typer.Argument(metavar="RUN|ROLLOUT", help="A run, or the id of one rollout.")],
    reason: Annotated[str, typer.Option(help="Shown wherever it is shown.", show_default=False)] = "",
) -> None:
    """End a run, or one rollout of it, which then trains nothing. A run can be driven again with `relight resume`."""
    run, rollout_id = await find(target)
    if rollout_id is None:
        await order(run, names.CANCEL, {"reason": reason}, "told to end")
        return
    await order(run, names.CANCEL_ROLLOUT, {"rollout_id": rollout_id, "reason": reason}, f"without {rollout_id} now")


async def retry(
    target: Annotated[str, typer.Argument(metavar="ROLLOUT|RUN", help="A failed rollout; a run with --failed.")],
    failed: Annotated[bool, typer.Option("--failed", help="All that failed in open batches of the run.")] = False,
    failure_class: Annotated[
        FailureClass | None, typer.Option("--class", help="With --failed: only this class.", show_default=False)
    ] = None,
) -> None:
    """Try failed or cancelled rollouts again, while their batch is open.

    Once it is closed, a retry is an inspection: the rollout is played again for you to look at, and nothing changes.
    """
    run, rollout_id = await find(target)
    if rollout_id is not None:
        result = await ask(run, names.RETRY_ROLLOUT, {"rollout_id": rollout_id})
        made = result.after.get("inspection") if isinstance(result.after, dict) else None
        what = f"inspecting {rollout_id}: relight rollouts show {made}" if made else f"trying {rollout_id} again"
        show(run, what, result)
        return
    if not failed:
        raise ConfigError(f"{run} is a run: give --failed to try all its failed rollouts again, or name one rollout")
    value = {"failure_class": failure_class.value if failure_class else None}
    await order(run, names.RETRY_FAILED, value, "trying failed rollouts again")


async def set_(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    settings: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", help=f"Keys: {', '.join(SETTABLE)}. @FILE reads a JSON file.")
    ],
) -> None:
    """Change a live run. Concurrency acts at once, all else from the first step on that is not planned."""
    for action, value in orders(parse_pairs(settings)):
        await order(run, action, value, f"changed ({', '.join(sorted(value))})")


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


def parse_pairs(pairs: list[str]) -> dict[str, Any]:
    """`key=value` each; a value is JSON where it parses as such, `@file` reads one.

    Raises:
        ConfigError: one that is not like that.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator or not key:
            raise ConfigError(f"{pair}: give it as key=value, such as learning_rate=3e-5")
        found[key] = _read(Path(text[1:])) if text.startswith("@") else parse_value(text)
    return found


def orders(values: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The commands that set these values; all are known before the first is given.

    Raises:
        ConfigError: a key that can't be set.
    """
    if unknown := [key for key in values if key not in SETTABLE]:
        raise ConfigError(f"{', '.join(unknown)}: can't be set on a live run; it takes {', '.join(SETTABLE)}")
    kinds = {
        names.SET_HYPERPARAMETERS: {key: value for key, value in values.items() if key in HYPERPARAMETERS},
        names.UPDATE_RESOURCES: {key: value for key, value in values.items() if key.startswith("resources")},
        names.SET_CONCURRENCY: {key: value for key, value in values.items() if key == "concurrency"},
    }
    return [(action, value) for action, value in kinds.items() if value]


def _read(path: Path) -> Any:
    try:
        return orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise ConfigError(f"{path}: can't be read as JSON: {error}") from error
