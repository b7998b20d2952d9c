"""Agent references."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from relight.errors import AgentLoadError
from relight.litagent import LitAgent, load_agents

MODULE = """
from relight.litagent import LitAgent, rollout
from relight.litagent.decorator import rollout as unused
from json import dumps

def plain(task, llm): return 1

@rollout
def decorated(task): return 2

@rollout(name="other-name")
async def renamed(task): return 3

class Kind(LitAgent):
    def rollout(self, task, resources, rollout): return 4

class Picky(LitAgent):
    def __init__(self, size): ...

instance = Kind()
named = Kind()
named.name = "by-hand"
number = 5
class Holder:
    inner = plain
def wrong(llm): return 1
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "some_agents.py").write_text(MODULE)
    (tmp_path / "odd_names.py").write_text(
        "from relight.litagent import rollout\n@rollout(name='a b')\ndef x(task): ..."
    )
    (tmp_path / "empty_one.py").write_text("")
    (tmp_path / "needs_more.py").write_text("import no_such_package_at_all")
    (tmp_path / "breaks.py").write_text("\n\n1 / 0\n")
    (tmp_path / "typo.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("some_agents", "odd_names", "empty_one", "needs_more", "breaks", "typo"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "some_agents"


@pytest.mark.parametrize(
    ("attribute", "name", "asynchronous"),
    [
        ("plain", "plain", False),
        ("decorated", "decorated", False),
        ("renamed", "other-name", True),
        ("Kind", "Kind", False),
        ("instance", "instance", False),
        ("named", "by-hand", False),
        ("Holder.inner", "plain", False),
    ],
)
def test_a_reference_names_a_function_or_an_agent(module: str, attribute: str, name: str, asynchronous: bool) -> None:
    loaded = load_agents(f"{module}:{attribute}")
    assert list(loaded) == [name]
    assert isinstance(loaded[name].agent, LitAgent)
    assert loaded[name].agent.is_async() is asynchronous
    assert loaded[name].reference == f"{module}:{attribute}"


def test_a_module_alone_gives_all_agents_made_in_it(module: str) -> None:
    assert set(load_agents(module)) == {"decorated", "other-name", "instance", "by-hand"}


def test_a_file_is_as_good_as_a_module(module: str, tmp_path: Path) -> None:
    assert list(load_agents(str(tmp_path / "some_agents.py") + ":plain")) == ["plain"]
    assert list(load_agents("./some_agents.py:plain", "some_agents.py:decorated")) == ["plain", "decorated"]


def test_the_same_agent_twice_is_one(module: str) -> None:
    assert list(load_agents(f"{module}:decorated", module)) == ["decorated", "other-name", "instance", "by-hand"]


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("no_such_module:f", "there is no module 'no_such_module'; run where it can be imported"),
        ("some_agents.sub:f", "there is no module 'some_agents.sub'"),
        ("needs_more:f", "importing it raised ModuleNotFoundError: No module named 'no_such_package_at_all'"),
        ("some_agents:plane", "some_agents has no attribute 'plane'; did you mean 'plain'"),
        ("some_agents:zzz", "has no attribute 'zzz'; define 'zzz' there"),
        ("some_agents:number", "it is a int; name a function"),
        ("some_agents:Holder", "it is a type; name a function"),
        ("some_agents:Picky", r"Picky\(\) raised TypeError"),
        ("some_agents:wrong", "the first parameter of wrong must be called 'task'; write def agent"),
        ("odd_names", "'a b' is no valid agent name"),
        ("empty_one", "no agent is decorated in it; decorate one"),
        ("no/such/file.py:f", "there is no file /"),
        ("breaks:f", r"importing it raised ZeroDivisionError: division by zero \(.*breaks.py, line 3\)"),
        ("typo:f", "importing it raised SyntaxError"),
        (":f", "that is not a module name; write pkg.module:attr"),
        (".relative:f", "that is not a module name; write pkg.module:attr"),
    ],
)
def test_what_cannot_be_loaded_is_explained(module: str, reference: str, says: str) -> None:
    with pytest.raises(AgentLoadError, match=says) as caught:
        load_agents(reference)
    assert caught.value.message.startswith(f"agent {reference!r}: ")
    assert "\n" not in caught.value.message


def test_two_agents_of_one_name_are_refused(module: str, tmp_path: Path) -> None:
    (tmp_path / "more_agents.py").write_text("def plain(task): ...")
    with pytest.raises(AgentLoadError, match="its name 'plain' is taken by 'some_agents:plain'"):
        load_agents("some_agents:plain", "more_agents.py:plain")
