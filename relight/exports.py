"""What packages export without importing it: names whose module is imported on first use, and names that are gone."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping

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


def getter(module: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """The `__getattr__` of a module that exports these names.

    Args:
        module: its name.
        homes: the module of each name.

    The function raises ReplacedNameError for the names in `REPLACED`, and warns of those in `RENAMED`.
    """

    def get(name: str) -> object:
        wanted = RENAMED.get(name, name)
        if wanted not in homes:
            raise _missing(module, name)
        if wanted != name:
            warnings.warn(f"{module}.{name} is {wanted} here", DeprecationWarning, stacklevel=2)
        value = getattr(importlib.import_module(homes[wanted]), wanted)
        setattr(sys.modules[module], name, value)  # so this function is called once for each name
        return value

    return get


def _missing(module: str, name: str) -> Exception:
    if name not in REPLACED:
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    from relight.errors import ReplacedNameError

    return ReplacedNameError(f"there is no {module}.{name}: {REPLACED[name]}")
