"""No rule is without a test, and every test that docs name exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
RULES = (ROOT / "docs" / "rules.md").read_text()
PAGES = sorted((ROOT / "docs").glob("*.md"))
NODE = re.compile(r"(tests/[\w/]+\.py)::(\w+)")


def functions_of(path: str) -> set[str]:
    """Names of the tests of a file, those of classes too."""
    file = ROOT / path
    tree = ast.parse(file.read_text()) if file.exists() else ast.Module([], [])
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_rule_has_its_sentences_and_each_sentence_a_test() -> None:
    parts = re.split(r"^### (\d+)\. ", RULES, flags=re.MULTILINE)[1:]
    rules = zip(parts[::2], parts[1::2], strict=True)
    sentences = {int(number): re.findall(r"^- .*$", text, re.MULTILINE) for number, text in rules}
    assert sorted(sentences) == list(range(1, 25))
    assert [number for number, lines in sentences.items() if not lines] == []
    assert [line for lines in sentences.values() for line in lines if not NODE.search(line)] == []


def test_every_rule_has_a_test_file_with_its_number() -> None:
    found = {int(path.name[10:12]) for path in (ROOT / "tests" / "rules").glob("test_rule_*.py")}
    assert found == set(range(1, 25))


def test_every_test_of_a_rule_is_in_the_index() -> None:
    written = {
        (f"tests/rules/{path.name}", name)
        for path in (ROOT / "tests" / "rules").glob("test_rule_*.py")
        for name in functions_of(f"tests/rules/{path.name}")
        if name.startswith("test_")
    }
    assert written - set(NODE.findall(RULES)) == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    assert [node for node in NODE.findall(page.read_text()) if node[1] not in functions_of(node[0])] == []
