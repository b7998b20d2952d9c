"""Every setting, run-file key and command-line option is used somewhere: one that is not does nothing.

What validators load does not count: a check of a value is no use of it. Nor does writing a whole model to JSON: its
keys must be read out of that by their names.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import BaseModel, create_model

import relight
from relight.cli.main import COMMANDS
from relight.llm_proxy.requests import set_sampling
from relight.settings import Settings
from relight.store.database import migrations, queries
from relight.types.hyperparameters import Hyperparameters
from relight.types.run_file import KINDS, Algorithm, EvaluationSampling, RunFile, Sampling
from relight.types.run_file_schema import sections

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
VALIDATORS = {"model_validator", "field_validator"}
SQL = "\n".join([text for _, _, text in migrations()] + [*queries().values()])
IN_JSON = r"\b{column}\s*(?:->>?\s*'{key}'|#>>?\s*'\{{{key}[,}}])"
"""A key that SQL reads of a column with JSON."""


def nodes_of(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those within validators."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, FUNCTIONS) and VALIDATORS & {last_name(each) for each in node.decorator_list}):
            yield node
            yield from nodes_of(node)


def last_name(node: ast.expr | None) -> str | None:
    """`data` for `data`, `file.data`, `file["data"]`, `file.data()` and `await file.data()`."""
    match node:
        case ast.Await(value=value):
            return last_name(value)
        case ast.Call(func=function):
            return last_name(function)
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
        case _:
            return None


def read_of(node: ast.AST) -> tuple[str | None, str] | None:
    """What `file.data`, `file["data"]` and `file.get("data")` read: `data` of `file`."""
    match node:
        case ast.Attribute(value=holder, attr=key, ctx=ast.Load()):
            return last_name(holder), key
        case ast.Subscript(value=holder, slice=ast.Constant(value=str(key)), ctx=ast.Load()):
            return last_name(holder), key
        case ast.Call(func=ast.Attribute(value=holder, attr="get"), args=[ast.Constant(value=str(key)), *_]):
            return last_name(holder), key
        case _:
            return None


class Code:
    """What all modules, or one class, load and annotate."""

    def __init__(self, *trees: ast.AST) -> None:
        nodes = [node for tree in trees for node in nodes_of(tree)]
        self.reads: Mapping[str | None, set[str]] = defaultdict(set)
        for holder, key in filter(None, map(read_of, nodes)):
            self.reads[holder].add(key)
        self.annotated = [
            (name, set(re.findall(r"\w+", ast.unparse(note)))) for name, note in map(typed, nodes) if note
        ]
        assignments = [node for node in nodes if isinstance(node, ast.Assign)]
        self.assigned = {(last_name(target), last_name(value)) for node in assignments for target, value in pairs(node)}
        self.classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}

    def names_of(self, model: str) -> set[str | None]:
        """The model and what is annotated with it, also after an assignment from one name to another."""
        found = {model} | {name for name, words in self.annotated if model in words}
        while more := {target for target, value in self.assigned if value in found} - found - {None}:
            found |= more
        return found - {None}


def typed(node: ast.AST) -> tuple[str | None, ast.expr | None]:
    """An argument, variable, attribute or function, with its annotation."""
    match node:
        case ast.arg(arg=name, annotation=note):
            return name, note
        case ast.AnnAssign(target=target, annotation=note):
            return last_name(target), note
        case ast.FunctionDef(name=name, returns=note) | ast.AsyncFunctionDef(name=name, returns=note):
            return name, note
        case _:
            return None, None


def pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Targets of an assignment, each with its value."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


@cache
def code() -> Code:
    return Code(*(ast.parse(file.read_text()) for file in Path(relight.__file__).parent.rglob("*.py")))


@cache
def keys_read(model: type[BaseModel]) -> frozenset[str]:
    """What code loads from what it calls this model, and what the model's own methods load."""
    owners = [owner.__name__ for owner in model.__mro__ if issubclass(owner, BaseModel) and owner.model_fields]
    found = {key for owner in owners for name in code().names_of(owner) for key in code().reads.get(name, ())}
    own = [code().classes[owner] for owner in owners if owner in code().classes]
    return frozenset(found | Code(*own).reads["self"])


def changes_the_request(key: str, annotation: Any) -> bool:
    """Whether a sampling parameter changes what the gateway asks of an engine."""
    value = ["x"] if "list" in str(annotation) else 7
    return set_sampling({}, {key: value}, agent_chooses=False) != set_sampling({}, {}, agent_chooses=False)


def is_read(model: type[BaseModel], key: str) -> bool:
    if key in keys_read(model):
        return True
    if issubclass(model, Sampling | EvaluationSampling):
        return changes_the_request(key, model.model_fields[key].annotation)
    if issubclass(model, Algorithm):  # dumped into the trainer's
        return key in keys_read(Hyperparameters)
    column, path = ("file", key) if issubclass(model, RunFile) else ("file", f"{model.__name__.lower()},{key}")
    return re.search(IN_JSON.format(column=column, key=path), SQL) is not None


def options() -> list[tuple[type[BaseModel], str]]:
    models = [Settings, *sections(KINDS)]
    return [(model, key) for model in models for key in model.model_fields]


@pytest.mark.parametrize(("model", "key"), options())
def test_a_key_of_the_settings_and_of_the_run_file_is_read(model: type[BaseModel], key: str) -> None:
    assert is_read(model, key)


@pytest.mark.parametrize("model", [Settings, *sections(KINDS)])
@pytest.mark.parametrize("key", ["folder", "priority", "created_at", "retries"])
def test_a_new_key_that_no_code_reads_is_noticed(model: type[BaseModel], key: str) -> None:
    """Also where other code has a key or a column of that name."""
    fields: Any = {key: (int | None, None)}
    changed = create_model(model.__name__, __base__=model, **fields)
    assert not is_read(changed, key)


def commands() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The function of each command, with the path of its words."""
    for name, command in COMMANDS.items():
        module, _, attribute = command.target.partition(":")
        target = getattr(importlib.import_module(module), attribute)
        if not isinstance(target, typer.Typer):
            yield name, target
            continue
        for info in target.registered_commands:
            assert info.callback is not None
            yield f"{name} {info.name or info.callback.__name__}", info.callback


@pytest.mark.parametrize("function", [pytest.param(function, id=name) for name, function in commands()])
def test_an_option_of_a_command_is_read(function: Callable[..., Any]) -> None:
    body = ast.parse(textwrap.dedent(inspect.getsource(function)))
    read = {node.id for node in ast.walk(body) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    assert set(inspect.signature(function).parameters) <= read
