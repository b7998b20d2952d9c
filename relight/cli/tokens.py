"""`relight token`: access tokens of the store service, which are rows of its Postgres."""

from __future__ import annotations

from typing import Annotated

import typer

from relight.cli import output, shared_options
from relight.cli.render import print_table, when
from relight.store.access_tokens import Role, create_token, list_tokens, parse_lifetime, revoke_token
from relight.store.database import opened_database

EPILOG = """\b
Examples:
  relight token create ci --run calculator-1 --expires 7d
  relight token create host-7 --role runner --agent calculator --expires 4w
  relight token list
  relight token revoke ci"""
app = shared_options.make_app(name="token", no_args_is_help=True, epilog=EPILOG)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name.")]


@app.callback()
def token() -> None:
    """Create, list and revoke tokens of the store service, beside the admin token."""


@app.command()
async def create(
    name: Name,
    role: Annotated[
        Role,
        typer.Option(help="viewer: read; runner or gateway: also what these processes write; admin: everything."),
    ] = Role.VIEWER,
    run: Annotated[str | None, typer.Option(metavar="RUN", help="The run that it is good for. Default: all.")] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="An agent whose attempts a runner may open; repeatable. Default: all."),
    ] = None,
    expires: Annotated[str, typer.Option(metavar="TIME", help="When it ends: 90m, 12h, 7d, 4w or never.")] = "30d",
) -> None:
    """Create a token and print it. It is shown this once; the store keeps its hash."""
    seconds = parse_lifetime(expires)
    async with opened_database(output.settings(), max_size=1) as database:
        text = await create_token(database, name, role, run=run, agents=agent or (), seconds=seconds)
        made = next(token for token in await list_tokens(database) if token.name == name and token.state == "valid")
    if output.emitted({**made.model_dump(mode="json"), "token": text}):
        return
    end = f"until {when(made.expires_at)}" if made.expires_at else "without an end"
    of_agents = f", for {', '.join(agent)} alone" if agent else ""
    output.say(
        f"token {name}: {role} of {f'run {run}' if run else 'all runs'}{of_agents}, {end}; it is not shown again:"
    )
    output.say(text)


@app.command("list")
async def list_() -> None:
    """List tokens, those that have ended too."""
    async with opened_database(output.settings(), max_size=1) as database:
        found = await list_tokens(database)
    if output.emitted(*found):
        return
    rows = [
        [
            *(token.name, token.role, token.run or "all", ", ".join(token.agents or ["all"])),
            *(token.state, when(token.created_at), when(token.expires_at)),
        ]
        for token in found
    ]
    print_table(("name", "role", "run", "agents", "state", "created", "expires"), rows)


@app.command()
async def revoke(name: Name) -> None:
    """End a token; services refuse it within 2 s."""
    async with opened_database(output.settings(), max_size=1) as database:
        await revoke_token(database, name)
    if not output.emitted({"revoked": name}):
        output.say(f"token {name} is revoked")
