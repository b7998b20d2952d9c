"""What README and docs show works as it stands there."""

from __future__ import annotations

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from relight.cli.main import COMMANDS
from relight.cli.schema import run_file_page
from relight.litagent import load_agents
from relight.settings import Settings, environment_name
from relight.types.run_file import parse_run_file
from relight.types.run_file_schema import json_schema

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    fences = re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return [content for name, content in fences if name == language]


def test_the_agent_in_the_readme_loads_under_its_name(tmp_path: Path) -> None:
    file = tmp_path / "readme_agents.py"
    file.write_text(blocks(README, "python")[0])
    assert list(load_agents(f"{file}:capital")) == ["capital"]


def test_the_run_file_in_the_readme_validates_and_names_that_agent() -> None:
    assert parse_run_file(json.loads(blocks(README, "json")[0])).agent == "capital"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_is_shown_exists(page: Path) -> None:
    lines = [line for code in code_of(page.read_text()) for line in code.splitlines()]
    named = {found[1] for line in lines if (found := re.match(r"(?:\$ )?relight ([a-z][a-z-]+)", line))}
    assert named <= {*COMMANDS}, named - {*COMMANDS}


def code_of(text: str) -> list[str]:
    """Shell blocks and inline code."""
    return [*blocks(text, "sh"), *re.findall(r"`([^`\n]+)`", text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_setting_that_is_shown_exists(page: Path) -> None:
    known = {environment_name(field) for field in Settings.model_fields}
    assert set(re.findall(r"\bRELIGHT_[A-Z_]+\b", page.read_text())) <= known


def test_every_make_verb_that_is_shown_exists() -> None:
    verbs = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    shown = {shlex.split(line)[1] for page in PAGES for line in code_of(page.read_text()) if line.startswith("make ")}
    assert shown <= verbs


def test_the_file_tree_in_the_readme_names_every_package() -> None:
    tree = blocks(README, "")[-1]
    packages = {path.name for path in (ROOT / "relight").iterdir() if (path / "__init__.py").exists()}
    assert {name for name in packages if f"  {name}/" not in tree} == set()


def test_the_page_of_the_run_file_is_what_its_schema_says() -> None:
    assert (ROOT / "docs" / "run-file.md").read_text() == run_file_page(json_schema()), (
        "write it: relight schema --markdown"
    )
    example = blocks(run_file_page(json_schema()), "json")[0]
    assert parse_run_file(json.loads(example)).data.evaluation == "heldout.jsonl"


def test_every_key_of_a_run_file_is_described() -> None:
    schema = json_schema()
    parts = [schema, *schema["$defs"].values()]
    keys = [(part["title"], key, value) for part in parts for key, value in part.get("properties", {}).items()]
    assert [(title, key) for title, key, value in keys if not value.get("description")] == []
    assert len(keys) > 80


def test_every_link_to_a_file_has_a_target() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_is_named_exists(page: Path) -> None:
    named = [path for code in code_of(page.read_text()) for path in re.findall(r"\btests/[\w/.]+", code)]
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_command_of_a_promise_selects_tests() -> None:
    commands = re.findall(r"-m pytest ([^`]+)`", (ROOT / "docs" / "guarantees.md").read_text())
    assert [command for command in commands if not selects_tests(shlex.split(command))] == []


def selects_tests(arguments: list[str]) -> bool:
    """Whether each alternative of `-k` is in the name of a test in these files, and a test has the mark of `-m`."""
    options = dict(pairwise(arguments))
    paths = [ROOT / argument for argument in arguments if argument.startswith("tests/")]
    files = [file for path in paths for file in (path.rglob("test_*.py") if path.is_dir() else [path])]
    text = "\n".join(file.read_text() for file in files)
    names = [*re.findall(r"def (test_\w+)", text), *(file.stem for file in files)]
    known = all(any(word in name for name in names) for word in options.get("-k", "test_").split(" or "))
    return known and ("-m" not in options or f"pytest.mark.{options['-m']}" in text)
