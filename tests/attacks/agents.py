"""Attacks of an agent's code, played with all of its confinement, without each part, and without any.

A machine without namespaces plays the rest, and says so.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tests.unit.confinement.attacks import NAMESPACES
from tests.unit.confinement.conftest import attack
from tests.unit.confinement.without import LAYERS

KINDS = ("sandbox", "confined", *LAYERS, "namespaces", "open")


def played(user: str) -> dict[str, dict[str, Any]]:
    """What came of the attacks, by what is left out."""
    found: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        with tempfile.TemporaryDirectory(prefix="relight-attacked-", ignore_cleanup_errors=True) as folder:
            Path(folder).chmod(0o755)
            own = Path(folder, kind)
            own.mkdir()
            found[kind] = attack(own, user, kind)
    return found


def rows(found: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each attack."""
    made: list[dict[str, Any]] = []
    in_namespaces = found["sandbox"]["held"]["namespaces"]
    for name, end in sorted(found["sandbox"]["ended"].items()):
        if not in_namespaces and name in NAMESPACES:
            made.append({"attack": name, "held": None, "error": "skipped"})
            continue
        before = found["confined"]["ended"][name]
        ends = {layer: found[layer]["ended"][name] for layer in LAYERS}
        refused_by = [layer for layer, other in ends.items() if other != before]
        succeeds = [layer for layer, other in ends.items() if other == "done"]
        if before == "done":
            refused_by = succeeds = ["namespaces"]
        alone = found["namespaces"]["ended"].get(name) if in_namespaces else None
        bare = found["open"]["ended"].get(name)
        row = {"attack": name, "held": end != "done", "error": end, "without_any": bare, "namespaces_alone": alone}
        made.append(row | {"refused_by": refused_by, "succeeds_without": succeeds})
    return made


def lines(made: list[dict[str, Any]]) -> list[str]:
    """The rows as text."""
    heading = f"{'attack of an agent':34} {'all parts':18} {'none':8} {'namespaces':13} {'refused by':22}"
    return [f"{heading} succeeds without", *map(line, made)]


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    if row["held"] is None:
        return f"{row['attack']:34} skipped: only namespaces refuse it, which this user can't make here"
    held = f"held {row['error']}" if row["held"] else "succeeds"
    refused, succeeds = ", ".join(row["refused_by"]) or "several", ", ".join(row["succeeds_without"]) or "-"
    bare, alone = row["without_any"] or "-", row["namespaces_alone"] or "-"
    return f"{row['attack']:34} {held:18} {bare:8} {alone:13} {refused:22} {succeeds}"
