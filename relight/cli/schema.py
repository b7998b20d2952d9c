"""`relight schema`: the JSON Schema of run files."""

from __future__ import annotations

import json

EPILOG = """\b
Examples:
  relight schema > run.schema.json
  relight schema | jq '.properties | keys'"""


def schema() -> None:
    """Print the JSON Schema of a run file.

    Editors can use it to complete and check run files.
    """
    from relight.types.run_file import RunFile  # pydantic's models are built on import; --help needs none

    print(json.dumps(RunFile.model_json_schema(), indent=2))
