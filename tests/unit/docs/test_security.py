"""docs/security.md and `make abuse`: each boundary of the services is in both, with tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.attacks.services import ATTACKS
from tests.attacks.without import BOUNDARIES

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "security.md").read_text()
TABLE = PAGE.partition("\n## Services\n")[2].partition("\n## ")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.splitlines() if line.startswith("| ")]


def test_the_page_names_each_boundary_and_the_files_of_its_tests() -> None:
    files: set[str] = set()
    named: dict[str, set[str]] = {}
    for boundary, _, tests in ROWS[1:]:
        files = set(re.findall(r"`([^`]+)`", tests)) or files  # else "the same"
        named[boundary] = files
    assert named == {
        one.boundary: {other.file for other in ATTACKS if other.boundary == one.boundary} for one in ATTACKS
    }
    assert set(BOUNDARIES) <= set(named)


def test_each_attack_is_a_test_of_its_own() -> None:
    for attack in ATTACKS:
        functions = ast.walk(ast.parse((ROOT / attack.file).read_text()))
        assert attack.test in {getattr(node, "name", None) for node in functions}, attack
    assert len({attack.node for attack in ATTACKS}) == len(ATTACKS)
