"""The fork server with parts of its confinement taken away, so that each can be tried alone.

Stands for the interpreter of a fork server: `without.py LAYER,... -m relight.runner.fork_server_process ...`.
"""

from __future__ import annotations

import runpy
import sys

from relight.confinement import landlock, privileges, seccomp

ABOVE_ALL = 1000
LAYERS = ("files", "ports", "signals", "system_calls", "privileges")
ALL = ("landlock", "system_calls", "privileges")
"""All of layer 1."""


def _nothing(*_: object, **__: object) -> bool:
    return False


def take_away(layer: str) -> None:
    """Have this process, and what it forks, confined without this layer."""
    if layer == "files":
        landlock.FILES_BY_ABI = (0,)  # type: ignore[misc, assignment]
        landlock.Ruleset.allow = _nothing  # type: ignore[method-assign, assignment]
    elif layer == "ports":
        landlock.NETWORK_ABI = ABOVE_ALL  # type: ignore[misc]
    elif layer == "signals":
        landlock.SCOPE_ABI = ABOVE_ALL  # type: ignore[misc]
    elif layer == "landlock":
        landlock.abi = lambda: 0  # type: ignore[assignment]
    elif layer == "system_calls":
        seccomp.install = _nothing
    elif layer == "privileges":
        privileges.give_up_new_privileges = _nothing  # type: ignore[assignment]
        privileges.drop_capabilities = _nothing  # type: ignore[assignment]
    else:
        raise ValueError(f"there is no layer {layer}")


if __name__ == "__main__":
    _, layers, _, module, *arguments = sys.argv
    for layer in layers.split(","):
        take_away(layer)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
