"""The environment of agents: a short list of names, and those that the user passes on. No secret of the runner's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

ALLOWED: Final = frozenset(
    {"PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "USER", "LOGNAME", "VIRTUAL_ENV", "LD_LIBRARY_PATH"}
    | {"SSL_CERT_FILE", "SSL_CERT_DIR"}
)
ALLOWED_PREFIXES: Final = ("PYTHON", "LC_")
SINGLE_THREADED: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
"""Many attempts share a machine, and the process that they are forked from must have one thread only."""
MARKER: Final = "RELIGHT_TEMPLATE"
"""Carries the template's id, by which its descendants are found when it died before them."""


def agent_environment(own: Mapping[str, str], passed: Iterable[str], template_id: str) -> dict[str, str]:
    """What the template process, and so every agent, starts with. `passed` names variables of ours to hand on."""
    chosen = {*passed, *ALLOWED}
    kept = {name: value for name, value in own.items() if name in chosen or name.startswith(ALLOWED_PREFIXES)}
    return SINGLE_THREADED | kept | {MARKER: template_id}
