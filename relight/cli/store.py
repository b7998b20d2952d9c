"""`relight store`: serve the store; `relight store check` and `relight store retain` maintain its Postgres."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relight.cli import output, services, shared_options
from relight.cli.render import print_table
from relight.errors import ConfigError

if TYPE_CHECKING:
    from relight.store.maintenance.check import Violation
    from relight.store.maintenance.retention import Day

EPILOG = """\b
Examples:
  RELIGHT_POSTGRES_URL=postgresql://relight@db/relight?sslmode=verify-full relight store
  relight store --store-url http://0.0.0.0:4747
  RELIGHT_TOKEN=dev relight store --backend memory
  relight store check
  relight store retain --older-than 30d --max-size 50GB --dry-run"""
app = shared_options.make_app(name="store", invoke_without_command=True, epilog=EPILOG)


class BackendName(StrEnum):
    """Where the store keeps its rows."""

    POSTGRES = "postgres"
    MEMORY = "memory"


@app.callback()
def serve(
    context: typer.Context,
    backend: Annotated[
        BackendName, typer.Option(help="memory: without a Postgres, and without runs; nothing outlives the process.")
    ] = BackendName.POSTGRES,
    wait: services.Wait = 0.0,
    drain: services.Drain = None,
) -> None:
    """Serve the store over HTTP to runners, gateways and the command line. Any number of them may share a Postgres."""
    if context.invoked_subcommand is None:
        services.store(wait, drain, memory=backend is BackendName.MEMORY)


@app.command()
async def check() -> None:
    """Check the invariants of the store in Postgres; exit code 1 if one does not hold."""
    from relight.store.database import opened_database
    from relight.store.maintenance.check import check_store, invariants

    async with opened_database(output.settings(), migrate=False, max_size=1) as database:
        found = await check_store(database)
    _show_violations(found, len(invariants()))
    if found:
        raise SystemExit(1)


def _show_violations(found: list[Violation], checked: int) -> None:
    if output.emitted(*map(vars, found), {"checked": checked, "broken": len(found)}):
        return
    for violation in found:
        output.say(f"{violation.invariant}: {violation.says}")
        for row in violation.rows:
            output.say("  " + ", ".join(f"{name} {_text(value)}" for name, value in row.items()))
        if violation.more:
            output.say("  ... (more rows)")
    output.say(f"{checked} invariants checked, {len(found) or 'none'} broken")


def _text(value: Any) -> str:
    return "-" if value is None else str(value)


@app.command()
async def retain(
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Delete days older than this, such as 30d.")
    ] = None,
    max_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Delete oldest days above this, such as 50GB.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
) -> None:
    """Delete spans, model calls and their bodies by day. Rollouts, rewards, the ledger and what a run needs stay."""
    from relight.store.database import opened_database
    from relight.store.maintenance import retention

    settings = output.settings()
    days = retention.parse_days(older_than) if older_than else settings.retention_days
    size = retention.parse_size(max_size) if max_size else settings.retention_bytes
    if days is None and size is None:
        raise ConfigError("say what to keep: --older-than 30d, --max-size 50GB, or both")
    async with opened_database(settings, max_size=1) as database:
        found = await retention.retain(database, retention.RetentionPolicy(days, size), dry_run=dry_run)
    _show_days(found, dry_run)


def _show_days(days: list[Day], dry_run: bool) -> None:
    shown = ("day", "size_bytes", "action", "reason")
    if output.emitted(*({name: getattr(day, name) for name in shown} for day in days)):
        return
    words = {"dropped": "would be dropped" if dry_run else "dropped", "kept": "kept"}
    rows = [[str(day.day), f"{day.size_bytes / 1e6:.1f} MB", words[day.action], day.reason] for day in days]
    print_table(("day", "size", "", "why"), rows)
