"""Runs attempts: each agent in a process of its own, or in a process shared with others.

This package imports nothing by itself, since the process that forks attempts must stay small: its names are imported
when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relight.exports import getter

if TYPE_CHECKING:
    from relight.runner.agent import LitAgentRunner
    from relight.runner.base import Runner

__all__ = ["LitAgentRunner", "Runner"]
_HOMES = {"LitAgentRunner": "relight.runner.agent", "Runner": "relight.runner.base"}


__getattr__ = getter(__name__, _HOMES)
