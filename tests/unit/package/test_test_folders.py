"""tests/README.md says where a test goes: every folder of tests and every package is in its table."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TABLE = [line for line in (ROOT / "tests" / "README.md").read_text().splitlines() if line.startswith("| ")]
NAMED = set(re.findall(r"`((?:tests|relight)/[\w./]+?)/?`", "\n".join(TABLE)))


def folders_of(folder: Path) -> set[str]:
    """The folder's subfolders that hold more than caches."""
    return {
        str(path.relative_to(ROOT))
        for path in folder.rglob("*")
        if path.is_dir() and path.name != "__pycache__" and any(child.is_file() for child in path.iterdir())
    }


def test_every_path_in_the_table_exists() -> None:
    assert [path for path in sorted(NAMED) if not (ROOT / path).exists()] == []


def test_every_folder_of_tests_is_in_the_table() -> None:
    assert folders_of(ROOT / "tests") - NAMED == set()


def test_every_package_and_module_is_in_the_table() -> None:
    top = {path for path in (ROOT / "relight").iterdir() if path.name not in ("__init__.py", "__pycache__", "py.typed")}
    held = {path for path in top if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert {str(path.relative_to(ROOT)) for path in held} - NAMED == set()
