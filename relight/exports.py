"""What packages export without importing it: names whose module is imported on first use, and names that are gone."""

from __future__ import annotations

import ast
import functools
import importlib
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

RENAMED = {
    "RolloutRawResultLegacy": "RolloutRawResult",
}
"""Names of Agent Lightning 0.3 that are another of its names here."""

_STORE = "the rollout store replaces it: enqueue by relight.LightningStoreClient, and `relight up` serves and runs"
_KINDS = (
    "`relight store --backend memory` and relight.InMemoryLightningStore hold rollouts in memory; else Postgres does"
)
REPLACED = {
    "AgentLightningClient": _STORE,
    "AgentLightningServer": _STORE,
    "CollectionBasedLightningStore": _KINDS,
    "DevTaskLoader": "enqueue the tasks in a relight.InMemoryLightningStore",
    "LegacyAgentRunner": "use relight.LitAgentRunner",
    "MongoLightningStore": _KINDS,
    "ServerDataStore": _STORE,
}
"""Names of Agent Lightning that are not here, and what to use instead."""


def getter(module: str, file: str | None = None) -> Callable[[str], object]:
    """The `__getattr__` of a module that exports names, and its `__all__`.

    Args:
        module: its name.
        file: its file, if a stub beside it imports the names that it exports.

    The function raises ReplacedNameError for the names in `REPLACED`, and warns of those in `RENAMED`.
    """

    def get(name: str) -> object:
        homes = stub_names(file) if file else {}
        if name == "__all__" and homes:
            return sorted(homes)
        wanted = RENAMED.get(name, name)
        if wanted not in homes:
            raise _missing(module, name)
        if wanted != name:
            warnings.warn(f"{module}.{name} is {wanted} here", DeprecationWarning, stacklevel=2)
        value = getattr(importlib.import_module(homes[wanted]), wanted)
        setattr(sys.modules[module], name, value)  # so this function is called once for each name
        return value

    return get


@functools.cache
def stub_names(file: str) -> dict[str, str]:
    """The names that the stub beside a module's file imports for type checkers, each with the module it is from."""
    body = ast.parse(Path(file).with_suffix(".pyi").read_text()).body
    return {alias.name: str(part.module) for part in body if isinstance(part, ast.ImportFrom) for alias in part.names}


def _missing(module: str, name: str) -> Exception:
    if name not in REPLACED:
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    from relight.errors import ReplacedNameError

    return ReplacedNameError(f"there is no {module}.{name}: {REPLACED[name]}")
