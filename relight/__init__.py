"""Durable reinforcement learning for AI agents: what agent authors import.

Importing this package loads no torch, no Temporal and no database driver. The module of each name is imported when the
name is first used, so that `relight --help` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relight.emitter import (
        emit_annotation,
        emit_exception,
        emit_message,
        emit_object,
        emit_reward,
        operation,
    )
    from relight.errors import RelightError
    from relight.litagent import LitAgent, llm_rollout, prompt_rollout, rollout
    from relight.store.base import LightningStore
    from relight.store.client import LightningStoreClient
    from relight.store.memory.lightning import InMemoryLightningStore
    from relight.store_api.lightning_server import LightningStoreServer
    from relight.types.resources import LLM, NamedResources, PromptTemplate
    from relight.types.rollout import Attempt, AttemptedRollout, FailureClass, Rollout, RolloutConfig
    from relight.types.run_file import RunFile

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "Attempt",
    "AttemptedRollout",
    "FailureClass",
    "InMemoryLightningStore",
    "LightningStore",
    "LightningStoreClient",
    "LightningStoreServer",
    "LitAgent",
    "NamedResources",
    "PromptTemplate",
    "RelightError",
    "Rollout",
    "RolloutConfig",
    "RunFile",
    "emit_annotation",
    "emit_exception",
    "emit_message",
    "emit_object",
    "emit_reward",
    "llm_rollout",
    "operation",
    "prompt_rollout",
    "rollout",
]

_HOMES = {
    "relight.emitter": (
        "emit_annotation",
        "emit_exception",
        "emit_message",
        "emit_object",
        "emit_reward",
        "operation",
    ),
    "relight.errors": ("RelightError",),
    "relight.litagent": ("LitAgent", "llm_rollout", "prompt_rollout", "rollout"),
    "relight.store.base": ("LightningStore",),
    "relight.store.client": ("LightningStoreClient",),
    "relight.store.memory.lightning": ("InMemoryLightningStore",),
    "relight.store_api.lightning_server": ("LightningStoreServer",),
    "relight.types.resources": ("LLM", "NamedResources", "PromptTemplate"),
    "relight.types.rollout": ("Attempt", "AttemptedRollout", "FailureClass", "Rollout", "RolloutConfig"),
    "relight.types.run_file": ("RunFile",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
