"""`relight schema`: the JSON Schema of run files."""

from __future__ import annotations

import json
from typing import Annotated

import typer

EPILOG = """\b
Examples:
  relight schema > run.schema.json
  relight schema --markdown > run-file.md
  relight schema | jq '.properties | keys'"""


def schema(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print it as a page of tables instead.")] = False,
) -> None:
    """Print the JSON Schema of a run file.

    Editors can use it to complete and check run files.
    """
    if markdown:
        from relight.cli.schema_page import page

        print(page(), end="")
        return
    from relight.types.run_file_schema import json_schema  # pydantic's models are built on import; --help needs none

    print(json.dumps(json_schema(), indent=2))
