"""Which keys of two run files differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
