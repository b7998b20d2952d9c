"""Durable reinforcement learning for AI agents: what agent authors import, which `__init__.pyi` lists.

Importing this package loads no torch, no Temporal and no database driver. The module of each name is imported when the
name is first used, so that `relight --help` is fast.
"""

from __future__ import annotations

from relight.exports import getter, stub_names

__version__ = "0.1.0"

__getattr__ = getter(__name__, __file__)


def __dir__() -> list[str]:
    return sorted({*globals(), *stub_names(__file__)})
