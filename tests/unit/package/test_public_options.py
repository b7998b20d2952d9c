"""Every setting, run-file key and command-line option is used somewhere: one that is not does nothing."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from pydantic import BaseModel

import relight
from relight.cli.main import COMMANDS
from relight.settings import Settings
from relight.store.database import migrations, queries
from relight.types.run_file import RunFile

TREES = [ast.parse(file.read_text()) for file in Path(relight.__file__).parent.rglob("*.py")]
NODES = [node for tree in TREES for node in ast.walk(tree)]
DUMPED = {
    "Sampling",
    "EvaluationSampling",
    "Algorithm",
    "Evaluation.sampling",
    "RunFile.upstreams",
    "RunFile.network",
    "RunFile.models",
}
"""Sections and keys that code reads out of a dumped model or its JSON, by the key as a text."""


def last_name(node: ast.expr | None) -> str | None:
    """`data` for `data`, `file.data`, `file.data()` and `await file.data()`."""
    if isinstance(node, ast.Await):
        node = node.value
    if isinstance(node, ast.Call):
        node = node.func
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def mentions(annotation: ast.expr | None, model: str) -> bool:
    return annotation is not None and re.search(rf"\b{model}\b", ast.unparse(annotation)) is not None


def typed_names(model: str) -> set[str | None]:
    """The model and all arguments, variables, attributes and functions that are annotated with it."""
    found: set[str | None] = {model}
    for node in NODES:
        if isinstance(node, ast.arg) and mentions(node.annotation, model):
            found.add(node.arg)
        elif isinstance(node, ast.AnnAssign) and mentions(node.annotation, model):
            found.add(last_name(node.target))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and mentions(node.returns, model):
            found.add(node.name)
    return found - {None}


def names_of(model: str) -> set[str | None]:
    """What code calls the model, also after an assignment from one name to another."""
    found, assigned = (
        typed_names(model),
        [pair for node in NODES if isinstance(node, ast.Assign) for pair in pairs(node)],
    )
    while more := {last_name(target) for target, value in assigned if last_name(value) in found} - found - {None}:
        found |= more
    return found


def pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Targets of an assignment, each with its value."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


@cache
def keys_read(model: str) -> frozenset[str]:
    """Attributes that code loads from what it calls this model, and those that the model's own methods load."""
    names = names_of(model)
    own = [n for node in NODES if isinstance(node, ast.ClassDef) and node.name == model for n in ast.walk(node)]
    loads = [(node, names) for node in NODES] + [(node, {"self"}) for node in own]
    return frozenset(
        node.attr
        for node, holders in loads
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and last_name(node.value) in holders
    )


@cache
def texts() -> frozenset[str]:
    """The texts in the code, by which keys of dictionaries and columns are read, and the words of the SQL."""
    constants = {node.value for node in NODES if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    schema = [text for _, _, text in migrations()]
    return frozenset(constants | {*re.findall(r"\w+", "\n".join([*schema, *queries().values()]))})


def keys_of(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """The keys of a model and of all sections in it, each with the name of its section."""
    for name, field in model.model_fields.items():
        yield model.__name__, name
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from keys_of(kind)


def is_read(model: str, key: str) -> bool:
    return key in (texts() if DUMPED & {model, f"{model}.{key}"} else keys_read(model))


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


@pytest.mark.parametrize(("model", "key"), sorted({*keys_of(Settings), *keys_of(RunFile)}))
def test_a_key_of_the_settings_and_of_the_run_file_is_read(model: str, key: str) -> None:
    assert is_read(model, key)


@pytest.mark.parametrize("model", ["Settings", "Evaluation", "Data", "Failures", "Checkpoints"])
def test_a_key_with_a_common_name_that_is_read_elsewhere_alone_is_not_taken_for_read(model: str) -> None:
    assert not is_read(model, "folder")


@pytest.mark.parametrize("function", [pytest.param(function, id=name) for name, function in commands()])
def test_an_option_of_a_command_is_read(function: Callable[..., Any]) -> None:
    body = ast.parse(textwrap.dedent(inspect.getsource(function)))
    read = {node.id for node in ast.walk(body) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    assert set(inspect.signature(function).parameters) <= read
