"""Which keys of two run files differ, and that a run keeps its file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relight.errors import ConfigError, RelightError
from relight.types.run_file import AnyRunFile


def differing_keys(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted keys whose values differ between two run files."""
    found: list[str] = []
    for key in sorted({*old, *new}):
        a, b = old.get(key, ...), new.get(key, ...)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differing_keys(a, b, f"{prefix}{key}.")
        elif type(a) is not type(b) or a != b:  # True == 1
            found.append(f"{prefix}{key}")
    return found


def differences(before: AnyRunFile, now: AnyRunFile) -> str:
    """Dotted keys whose values differ, as a list in a sentence; empty where both say the same."""
    return ", ".join(differing_keys(before.model_dump(mode="json"), now.model_dump(mode="json")))


def require_same_file(run: str, before: AnyRunFile, now: AnyRunFile, error: type[RelightError] = ConfigError) -> None:
    """Check that the file that is given for a run, which exists or is requested, is its own (rule 17).

    Raises:
        ConfigError: keys differ; `error` may name another class.
    """
    if keys := differences(before, now):
        raise error(
            f"run {run} exists with another run file (differing: {keys}); "
            f"give the same file to go on with it, choose another name, or fork {run}"
        )
