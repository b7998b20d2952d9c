"""Imports the modules that well-known clients import lazily on their first call.

With a process for each attempt every attempt pays for a lazy import: the official `openai` client takes 0.8 s of CPU
for `client.chat`. So if an agent's module has imported such a client, the fork server imports the rest, once.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

LAZY: Mapping[str, Sequence[str]] = {
    "openai": ("openai.resources.chat.completions", "openai.resources.completions", "openai.resources.responses"),
    "anthropic": ("anthropic.resources.messages",),
    "httpx": ("httpx._transports.default", "httpcore", "h11"),
    "httpcore": ("httpcore._backends.auto", "anyio._backends._asyncio"),
}


def import_lazy_parts() -> list[str]:
    """Import what the loaded clients will import later; returns the names."""
    imported: list[str] = []
    for client, modules in LAZY.items():
        if client not in sys.modules:
            continue
        for name in modules:
            # Another version of the client may lack it: then its first call imports what that version has.
            with suppress(ImportError):
                importlib.import_module(name)
                imported.append(name)
    return imported
