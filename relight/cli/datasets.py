"""`relight data`: data sets in the store, which run files name as `store:NAME`."""

from __future__ import annotations

from typing import Annotated

import typer

from relight.cli import output, shared_options
from relight.cli.render import print_table, shorten, when
from relight.datasets import read_pieces
from relight.store.datasets.client import DatasetClient
from relight.types.views import DatasetView

EPILOG = """\b
Examples:
  relight data put train.jsonl --name sums --required question
  relight train run.json --set data.train=store:sums
  relight data list
  relight data show sums
  relight data rm sums"""
PIECE_BYTES = 4 * 1024 * 1024
RETRY_SECONDS = 60.0
SAMPLE = 3
SHOWN_CHARACTERS = 200
app = shared_options.make_app(name="data", no_args_is_help=True, epilog=EPILOG)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name.")]


@app.callback()
def data() -> None:
    """Put data sets into the store; list, show and remove them. A run file names one as `store:NAME`."""


@app.command()
async def put(
    source: Annotated[str, typer.Argument(metavar="FILE", help="JSONL or Parquet, by path or URL.")],
    name: Annotated[str, typer.Option("--name", help="The NAME in `store:NAME`, by which run files refer to it.")],
    required: Annotated[
        list[str] | None, typer.Option("--required", metavar="FIELD", help="A field that each row must have.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the data set of this name.")] = False,
) -> None:
    """Upload a data set to the store under a name."""
    fields = required or []
    pieces = read_pieces(source, output.settings().data_root, fields, PIECE_BYTES)
    async with _client() as client:
        view = await client.put(name, pieces, fields, replace=replace)
    if not output.emitted(view):
        where = f"in run files: store:{view.name}"
        output.say(f"data set {view.name}: {view.rows} rows, hash {view.dataset_id[:12]}; {where}")


def _client() -> DatasetClient:
    settings = output.settings()
    return DatasetClient(settings.store_url, settings.token_value, retry_seconds=RETRY_SECONDS)


@app.command("list")
async def list_() -> None:
    """List the data sets in the store."""
    async with _client() as client:
        found = await client.list()
    if not output.emitted(*found):
        print_table(("name", "rows", "hash", "since", "runs"), [_row(view) for view in found])


def _row(view: DatasetView) -> list[str]:
    return [view.name, str(view.rows), view.dataset_id[:12], when(view.updated_at), ", ".join(view.runs)]


@app.command()
async def show(name: Name) -> None:
    """Show a data set and its first rows."""
    async with _client() as client:
        view = await client.show(name, SAMPLE)
    if output.emitted(view):
        return
    output.say(f"data set {view.name}: {view.rows} rows, since {when(view.updated_at)}")
    output.say(f"  hash    {view.dataset_id}")
    output.say(f"  runs    {', '.join(view.runs) or '-'}")
    for number, task in enumerate(view.sample, start=1):
        output.say(f"  row {number}   {shorten(str(task), SHOWN_CHARACTERS)}")


@app.command("rm")
async def remove(name: Name) -> None:
    """Remove a data set that no run uses."""
    async with _client() as client:
        await client.delete(name)
    if not output.emitted({"removed": name}):
        output.say(f"data set {name} removed")
