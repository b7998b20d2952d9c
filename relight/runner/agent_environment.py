"""The environment of agents: a short list of variables, and those that the user passes on; no secret of the runner."""

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
"""Limits of thread pools: many attempts share a machine, and the fork server must have only one thread."""
MARKER: Final = "RELIGHT_TEMPLATE"
"""Variable with the fork server's id, which identifies its descendants after it died."""


def agent_environment(own: Mapping[str, str], passed: Iterable[str], template_id: str) -> dict[str, str]:
    """The environment of the fork server and so of every agent. `passed` names variables of this process to pass on."""
    chosen = {*passed, *ALLOWED}
    kept = {name: value for name, value in own.items() if name in chosen or name.startswith(ALLOWED_PREFIXES)}
    return SINGLE_THREADED | kept | {MARKER: template_id}
