"""The rollout store: its methods, its SQL, its clients, and one in memory.

Importing this package loads no database driver; a store is imported when its name is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relight.exports import getter

if TYPE_CHECKING:
    from relight.store.base import LightningStore
    from relight.store.client import LightningStoreClient
    from relight.store.memory.lightning import InMemoryLightningStore
    from relight.store.threading import LightningStoreThreaded
    from relight.types.store import LightningStoreCapabilities, LightningStoreStatistics

__all__ = [
    "InMemoryLightningStore",
    "LightningStore",
    "LightningStoreCapabilities",
    "LightningStoreClient",
    "LightningStoreStatistics",
    "LightningStoreThreaded",
]

__getattr__ = getter(__name__, dict.fromkeys([*__all__, "LightningStoreServer"], "relight"))
