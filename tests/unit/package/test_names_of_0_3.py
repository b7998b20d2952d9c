"""Each public name of Agent Lightning 0.3 is here, or an error says what replaces it, or docs/migrate.md lists it."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
import warnings
from pathlib import Path

import pytest

import relight
from relight.errors import ReplacedNameError
from relight.exports import RENAMED, REPLACED

ROOT = Path(__file__).resolve().parents[3]
NAMES: dict[str, list[str]] = json.loads((ROOT / "tests" / "compat" / "names_of_0_3.json").read_text())

PAGE = (ROOT / "docs" / "migrate.md").read_text()


def table(section: str) -> dict[str, str]:
    """The tables of a section of the page: first column, without its backticks, and second."""
    text = PAGE.split(f"## {section}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `([\w.]+)` \| (.*) \|$", text, flags=re.MULTILINE))


def listed(section: str) -> dict[str, set[str]]:
    """The names in the tables of a section, by module."""
    return {module: set(re.findall(r"`(\w+)`", names)) for module, names in table(section).items()}


ABSENT = listed("Names that are not here")
INTERNAL = listed("Names that 0.3's own modules share")


def ours(module: str) -> str:
    """The module of the same name here."""
    return module.replace("agentlightning", "relight", 1)


def has(module: str, name: str) -> bool:
    """Whether a module has this name, or says what replaces it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            getattr(importlib.import_module(module), name)
    except ReplacedNameError:
        return True
    except (AttributeError, ModuleNotFoundError):
        return module == "relight" and importlib.util.find_spec(f"relight.{name}") is not None
    return True


@pytest.mark.parametrize("module", NAMES)
def test_each_name_is_in_the_module_of_the_same_name_or_is_listed(module: str) -> None:
    missing = {name for name in NAMES[module] if not has(ours(module), name)}
    assert missing == ABSENT.get(ours(module), set()) | INTERNAL.get(ours(module), set())


def test_the_page_lists_no_module_or_name_that_agent_lightning_has_not() -> None:
    known = {ours(module): set(names) for module, names in NAMES.items()}
    for module, names in [*ABSENT.items(), *INTERNAL.items()]:
        assert names <= known[module], module


def test_the_page_has_what_replaces_each_name() -> None:
    aliases = {name: f"`{present}`" for name, present in RENAMED.items()}
    assert table("Names with a replacement") == REPLACED | aliases


def test_what_the_page_names_of_relight_is_there() -> None:
    imports = [name for names in re.findall(r"from relight import ([\w, ]+)", PAGE) for name in names.split(", ")]
    named = {*re.findall(r"\brelight\.((?:[a-z_]+\.)*\w+)", PAGE.split("## Names that are not here")[0]), *imports}
    assert {path for path in named if not has(*f"relight.{path}".rpartition(".")[::2])} <= ABSENT["relight"]


def test_the_package_has_137_public_names() -> None:
    assert len(NAMES["agentlightning"]) == 137


def test_a_name_of_a_module_is_the_same_thing_in_the_package() -> None:
    for module in (ours(module) for module in NAMES if module.count(".") == 1):
        for name in set(NAMES["agentlightning"]) & set(NAMES[module.replace("relight", "agentlightning", 1)]):
            if name not in {*REPLACED, *RENAMED, *ABSENT.get(module, ())}:
                assert getattr(importlib.import_module(module), name) is getattr(relight, name), (module, name)


@pytest.mark.parametrize("name", REPLACED)
def test_a_name_that_is_gone_raises_what_to_use_instead(name: str) -> None:
    with pytest.raises(ReplacedNameError, match=re.escape(REPLACED[name])):
        exec(f"from relight import {name}", {})
    for mentioned in re.findall(r"relight\.(\w+)", REPLACED[name]):
        assert has("relight", mentioned) or mentioned in ABSENT["relight"], mentioned


@pytest.mark.parametrize(("name", "present"), RENAMED.items())
def test_an_alias_is_the_present_name_and_warns_once(name: str, present: str) -> None:
    sys.modules["relight"].__dict__.pop(name, None)
    with pytest.warns(DeprecationWarning, match=f"relight.{name} is {present} here") as caught:
        exec(f"from relight import {name} as found", found := {})
    assert found["found"] is getattr(relight, present)
    assert len(caught) == 1


def test_importing_the_former_module_of_rewards_warns_once() -> None:
    sys.modules.pop("relight.reward", None)
    with pytest.warns(DeprecationWarning, match=r"import from relight\.emitter") as caught:
        importlib.import_module("relight.reward")
    assert len(caught) == 1
