"""`relight runs`: the list of runs."""

from __future__ import annotations

from typing import Annotated

import typer

from relight.cli import output
from relight.cli.progress import number_text, size_text
from relight.cli.render import print_table, shorten, when
from relight.cli.store_reader import StoreReader
from relight.types.views import RunSummary

EPILOG = """\b
Examples:
  relight runs
  relight runs --json | jq -r 'select(.status == "failed") | .run'"""
COLUMNS = ("run", "status", "step", "reward", "held-out", "agent", "algorithm", "files", "started", "")


async def runs(limit: Annotated[int, typer.Option(min=1, max=1000, help="Show this many of the newest.")] = 50) -> None:
    """List runs, newest first."""
    async with StoreReader.from_settings(output.settings()) as reader:
        found = await reader.runs(limit)
    if not output.emitted(*found):
        show_runs(found)


def show_runs(found: list[RunSummary]) -> None:
    """Print a table of runs."""
    if not found:
        output.say("no runs yet; start one with `relight train FILE`")
        return
    print_table(COLUMNS, [run_row(run) for run in found])


def why(run: RunSummary) -> str:
    """Why a run failed, is paused or waits, or else its warnings."""
    if run.error:
        return run.error
    if run.paused and run.pause_reason:
        return shorten(run.pause_reason, 200)
    if run.waiting_for:
        return f"waiting: {run.waiting_for}"
    return shorten("; ".join(f"warning: {text}" for _, text in sorted(run.warnings.items())), 200)


def run_row(run: RunSummary) -> list[str]:
    """A line of the table."""
    status = f"{run.status}: {run.phase}" if run.status == "running" and run.phase else run.status
    return [
        run.run,
        "paused" if run.paused and not run.cancel_requested else status,
        f"{run.step}/{run.total_steps}",
        number_text(run.reward),
        number_text(run.held_out),
        run.agent,
        run.algorithm,
        size_text(run.stored_bytes) if run.stored_bytes else "",
        when(run.created_at),
        why(run),
    ]
