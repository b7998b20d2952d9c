"""`relight schema`: the JSON Schema of run files, or their keys as a page, which is `docs/run-file.md`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

EPILOG = """\b
Examples:
  relight schema > run.schema.json
  relight schema --markdown > run-file.md
  relight schema | jq '.properties | keys'"""

HEAD = """# The run file

What a run does, as JSON: `relight train run.json`, or the input of `TrainingWorkflow`. `agent`, `model` and `data` are needed; every other key has a default. An unknown key is an error that names the nearest known one. `relight schema` prints all of this as a JSON Schema, by which editors complete and check.

```json
{
  "agent": "capital",
  "model": "./my-model",
  "data": {"train": "train.jsonl", "evaluation": "heldout.jsonl"},
  "group_size": 8,
  "batch_size": 16,
  "epochs": 2,
  "algorithm": {"name": "grpo", "learning_rate": 1e-6},
  "evaluation": {"every": 10}
}
```

`relight train run.json --set algorithm.learning_rate=3e-6` changes a key for one run. [Learning](learning.md) says how updates are made, [evaluations](evaluations.md), [failures](failures.md), [checkpoints](checkpoints.md), [graders](graders.md) and [the gateway](gateway.md) what their sections mean.
"""  # noqa: E501 - lines of the page
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
TYPES = {"string": "text", "boolean": "true or false"}
INT64 = 2**63


def schema(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print it as a page of tables instead.")] = False,
) -> None:
    """Print the JSON Schema of a run file.

    Editors can use it to complete and check run files.
    """
    from relight.types.run_file_schema import json_schema  # pydantic's models are built on import; --help needs none

    print(run_file_page(json_schema()) if markdown else json.dumps(json_schema(), indent=2) + "\n", end="")


def run_file_page(whole: Mapping[str, Any]) -> str:
    """The page's text."""
    parts = {"": whole} | _by_path(whole, whole.get("$defs", {}))
    return "\n".join([HEAD, *(_section(path, part) for path, part in parts.items())])


def _by_path(part: Mapping[str, Any], models: Mapping[str, Any], start: str = "") -> dict[str, Any]:
    """The sections below a part, by their dotted keys."""
    found: dict[str, Any] = {}
    for key, value in part.get("properties", {}).items():
        for reference, end in _references(value):
            model = models[reference.rpartition("/")[2]]
            if "properties" in model:
                found[f"{start}{key}{end}"] = model
                found |= _by_path(model, models, f"{start}{key}{end}.")
    return found


def _references(value: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a value may be of the schema's models, and what is added to its key: `[]` for one of several."""
    if "$ref" in value:
        return [(value["$ref"], "")]
    if "items" in value:
        return [(reference, f"[]{end}") for reference, end in _references(value["items"])]
    return [found for choice in value.get("anyOf", ()) for found in _references(choice)]


def _section(path: str, part: Mapping[str, Any]) -> str:
    needed = part.get("required", ())
    rows: list[str] = []
    for key, value in part["properties"].items():
        default = "needed" if key in needed else _default(value)
        rows.append(f"| `{key}` | {_type(value)} | {default} | {_cell(value['description'])} |")
    title = f"## `{path}`" if path else "## Keys"
    text = " ".join(part.get("description", "").split("\n\n")[0].split())
    return "\n".join([title, "", text, "", "| key | value | default | meaning |", "|---|---|---|---|", *rows, ""])


def _type(value: Mapping[str, Any]) -> str:
    if "anyOf" in value:
        return " or ".join(dict.fromkeys(_type(choice) for choice in value["anyOf"]))
    if "$ref" in value:
        return "section"
    if "enum" in value:
        return _cell(", ".join(f"`{choice}`" for choice in value["enum"]))
    if "const" in value:
        return f"`{value['const']}`"
    if value.get("type") == "array":
        return f"list of {_type(value.get('items', {}))}"
    if value.get("type") == "object":
        return "object"
    bounds = [f"{sign} {value[name]}" for name, sign in BOUNDS.items() if abs(value.get(name, INT64)) < INT64]
    kind = str(value.get("type", "any"))
    return " ".join([TYPES.get(kind, kind), *bounds])


def _default(value: Mapping[str, Any]) -> str:
    empty = {"array": "[]", "object": "{}"}.get(value.get("type", ""))
    if "default" in value or empty:
        return f"`{_cell(json.dumps(value['default'])) if 'default' in value else empty}`"
    return "those of its keys"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
