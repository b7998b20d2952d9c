"""`relight config`: every setting, its value and its source."""

from __future__ import annotations

from typing import Any

from relight.cli import output
from relight.settings import SECRETS, Resolved, environment_name, resolve
from relight.store.database import redact_url

EPILOG = """\b
Examples:
  relight config
  RELIGHT_STORE_URL=http://10.0.0.5:4747 relight config --json"""


def config() -> None:
    """Show every setting, its value and its source: flag, environment, Temporal profile, stack file or default.

    Temporal's TLS and API keys are read from TEMPORAL_* and temporal.toml by Temporal's own rules. The Temporal server
    of the embedded stack needs none.
    """
    resolved = resolve(output.current.flags)
    rows = setting_rows(resolved)
    if not output.emitted({"settings": {row["name"]: row for row in rows}}):
        _print_table(rows)


def setting_rows(resolved: Resolved) -> list[dict[str, Any]]:
    """One row for each setting; secrets are redacted."""
    values = resolved.settings.model_dump(mode="json")
    return [
        {
            "name": name,
            "value": redacted(name, values[name]),
            "source": resolved.sources[name],
            "environment": environment_name(name),
        }
        for name in type(resolved.settings).model_fields
    ]


def redacted(name: str, value: Any) -> Any:
    """The value, or asterisks in place of a secret."""
    if value is None or name not in SECRETS:
        return value
    return redact_url(str(value)) if name.endswith("_url") else "***"


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("setting", "value", "from", "environment variable", box=None, header_style="bold")
    for row in rows:
        shown = "" if row["value"] is None else str(row["value"])
        table.add_row(row["name"], shown, row["source"], row["environment"])
    Console(soft_wrap=True).print(table)
