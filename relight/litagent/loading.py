"""Loads agents by their references.

    pkg.module:attr        a function, a decorated one, a LitAgent or a class of these
    path/to/file.py:attr   the same from a file that is not a module
    pkg.module             every agent that is decorated or instantiated in it

An AgentLoadError names the reference, the problem and the remedy.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from relight.errors import AgentLoadError
from relight.litagent.litagent import FunctionalLitAgent, LitAgent
from relight.types.hooks import Hook

AGENT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")

_STANDARD_LIBRARY = sysconfig.get_path("stdlib")


@dataclass(frozen=True, slots=True)
class LoadedAgent:
    """An agent and the name by which run files refer to it."""

    name: str
    reference: str
    agent: LitAgent[Any]


def load_agents(*references: str) -> dict[str, LoadedAgent]:
    """Import agents; returns them by name.

    Args:
        references: `pkg.module:attr`, `path/to/file.py:attr`, or `pkg.module` for all agents in it.

    Raises:
        AgentLoadError: a reference can't be imported, is no agent, or two agents have one name.
    """
    loaded: dict[str, LoadedAgent] = {}
    for reference in references:
        for found in _load(reference):
            if found.name in loaded and loaded[found.name].agent is not found.agent:
                other = loaded[found.name].reference
                raise _error(reference, f"its name {found.name!r} is taken by {other!r}", "give one another name=")
            loaded[found.name] = found
    return loaded


def _error(reference: str, wrong: str, remedy: str) -> AgentLoadError:
    return AgentLoadError(f"agent {reference!r}: {wrong}; {remedy}")


def _load(reference: str) -> Iterable[LoadedAgent]:
    name, _, attribute = reference.partition(":")
    module = _import(reference, name)
    if not attribute:
        return _agents_of(reference, module)
    value: Any = module
    for part in attribute.split("."):
        value = _attribute(reference, value, part)
    return [_as_agent(reference, attribute.rsplit(".", 1)[-1], value)]


def _import(reference: str, name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return _import_file(reference, name) if name.endswith(".py") else importlib.import_module(name)
    except AgentLoadError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            remedy = f"run where it can be imported (now {here}), set PYTHONPATH, or give the path of its .py file"
            raise _error(reference, f"there is no module {error.name!r}", remedy) from None
        raise _error(reference, _where(error), "install what it imports") from error
    except BaseException as error:  # importing runs the user's code, which may raise or exit in any way
        if isinstance(error, ValueError | TypeError) and (not name or name.startswith(".")):
            remedy = "write pkg.module:attr or path/to/file.py:attr"
            raise _error(reference, "that is not a module name", remedy) from None
        raise _error(reference, _where(error), "fix the module") from error


def _import_file(reference: str, file: str) -> ModuleType:
    path = Path(file).resolve()
    if not path.is_file():
        raise _error(reference, f"there is no file {path}", "check the path")
    name = path.stem if path.stem not in sys.modules else f"relight_agent_{path.stem}"
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise _error(reference, f"{path} is not a Python file", "check the path")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _where(error: BaseException) -> str:
    """`importing it raised KeyError: 'X' (file.py, line 3)`."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_machinery(frame.filename)]
    line = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    last = traceback.format_exception_only(error)[-1].strip()
    return f"importing it raised {last}{line}"


def _is_machinery(filename: str) -> bool:
    """Whether a file is Python's or this module: the error should name a line of the agent's author or of a package."""
    standard = filename.startswith(_STANDARD_LIBRARY) and "site-packages" not in filename
    return filename == __file__ or filename.startswith("<frozen") or standard


def _attribute(reference: str, owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        close = difflib.get_close_matches(name, [n for n in dir(owner) if not n.startswith("__")], n=3)
        remedy = f"did you mean {' or '.join(map(repr, close))}?" if close else f"define {name!r} there"
        where = owner.__name__ if isinstance(owner, ModuleType) else repr(owner)
        raise _error(reference, f"{where} has no attribute {name!r}", remedy) from None


def _as_agent(reference: str, attribute: str, value: Any) -> LoadedAgent:
    if isinstance(value, LitAgent):
        agent, name = value, value.name or attribute
    elif isinstance(value, type) and issubclass(value, LitAgent):
        agent, name = _make(reference, value), value.name or value.__name__
    elif callable(value) and not isinstance(value, type):
        agent = _wrap(reference, value)
        name = agent.name or attribute
    else:
        raise _error(reference, f"it is a {type(value).__name__}", "name a function or a LitAgent")
    given = cast("Sequence[object]", agent.hooks)
    if other := next((hook for hook in given if not isinstance(hook, Hook)), None):
        raise _error(reference, f"its hooks hold a {type(other).__name__}", "give instances of relight.Hook")
    if not AGENT_NAME.fullmatch(name):
        raise _error(reference, f"{name!r} is no valid agent name", "give name= of letters, digits, '.', '_' and '-'")
    return LoadedAgent(name, reference, agent)


def _make(reference: str, kind: type[LitAgent[Any]]) -> LitAgent[Any]:
    try:
        return kind()
    except BaseException as error:  # a constructor is the user's code
        raise _error(reference, f"{kind.__name__}() raised {error!r}", "name an instance of it instead") from error


def _wrap(reference: str, function: Any) -> FunctionalLitAgent[Any]:
    try:
        return FunctionalLitAgent(function)
    except (ValueError, TypeError) as error:
        raise _error(reference, str(error), "write def agent(task, llm)") from None


def _agents_of(reference: str, module: ModuleType) -> list[LoadedAgent]:
    found = [
        _as_agent(reference, attribute, value)
        for attribute, value in vars(module).items()
        if isinstance(value, LitAgent) and getattr(value, "__module__", None) == module.__name__
    ]
    if not found:
        remedy = "decorate one with @relight.rollout, or name it as module:attr"
        raise _error(reference, "no agent is decorated in it", remedy)
    return list({agent.name: agent for agent in found}.values())
