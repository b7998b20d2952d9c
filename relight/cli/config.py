"""`relight config`: every setting, its value and its source."""

from __future__ import annotations

from typing import Any

from relight.cli import output
from relight.cli.render import print_table
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
        cells = [[str("" if cell is None else cell) for cell in row.values()] for row in rows]
        print_table(("setting", "value", "from", "environment variable"), cells)


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
