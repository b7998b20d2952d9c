"""`relight token`: access tokens of the store service, which are rows of its Postgres."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from relight.cli import output
from relight.cli.render import print_table, when
from relight.store.access_tokens import Role, create_token, list_tokens, parse_lifetime, revoke_token
from relight.store.database import Database, connect_database

EPILOG = """\b
Examples:
  relight token create ci --run calculator-1 --expires 7d
  relight token create host-7 --role runner --expires 4w
  relight token list
  relight token revoke ci"""
app = typer.Typer(
    name="token",
    no_args_is_help=True,
    epilog=EPILOG,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name.")]


@app.callback()
def token() -> None:
    """Create, list and revoke tokens of the store service, beside the admin token."""


@app.command()
async def create(
    name: Name,
    role: Annotated[
        Role, typer.Option(help="viewer: read; runner: also what runners and gateways write; admin: everything.")
    ] = Role.VIEWER,
    run: Annotated[
        str | None, typer.Option(metavar="RUN", help="The run that it is good for. Default: all.", show_default=False)
    ] = None,
    expires: Annotated[str, typer.Option(metavar="TIME", help="When it ends: 90m, 12h, 7d, 4w or never.")] = "30d",
) -> None:
    """Create a token and print it. It is shown this once; the store keeps its hash."""
    seconds = parse_lifetime(expires)
    async with _database() as database:
        text = await create_token(database, name, role, run=run, seconds=seconds)
        made = next(token for token in await list_tokens(database) if token.name == name and token.state == "valid")
    if output.wants_json():
        output.emit({**made.model_dump(mode="json"), "token": text})
        return
    end = f"until {when(made.expires_at)}" if made.expires_at else "without an end"
    output.say(f"token {name}: {role} of {f'run {run}' if run else 'all runs'}, {end}; it is not shown again:")
    output.say(text)


@app.command("list")
async def list_() -> None:
    """List tokens, those that have ended too."""
    async with _database() as database:
        found = await list_tokens(database)
    if output.wants_json():
        for token in found:
            output.emit(token.model_dump(mode="json"))
        return
    rows = [
        [token.name, token.role, token.run or "all", token.state, when(token.created_at), when(token.expires_at)]
        for token in found
    ]
    print_table(("name", "role", "run", "state", "created", "expires"), rows)


@app.command()
async def revoke(name: Name) -> None:
    """End a token; services refuse it within 2 s."""
    async with _database() as database:
        await revoke_token(database, name)
    if output.wants_json():
        output.emit({"revoked": name})
        return
    output.say(f"token {name} is revoked")


@asynccontextmanager
async def _database() -> AsyncGenerator[Database]:
    database = await connect_database(output.settings(), max_size=1)
    try:
        yield database
    finally:
        await database.close()
