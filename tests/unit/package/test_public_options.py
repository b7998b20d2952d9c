"""Every setting, run-file key and command-line option is read somewhere: one that is not does nothing."""

from __future__ import annotations

import ast
import importlib
import inspect
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
from relight.types.run_file import RunFile


@cache
def names_read() -> frozenset[str]:
    """Attributes that the code loads, and the texts in it, by which keys of dictionaries and columns are read."""
    found: set[str] = set()
    for file in Path(relight.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return frozenset(found)


def keys_of(model: type[BaseModel]) -> Iterator[str]:
    """The keys of a model and of all sections in it."""
    for name, field in model.model_fields.items():
        yield name
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from keys_of(kind)


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


@pytest.mark.parametrize("name", sorted(Settings.model_fields))
def test_a_setting_is_read(name: str) -> None:
    assert name in names_read()


@pytest.mark.parametrize("name", sorted(set(keys_of(RunFile))))
def test_a_key_of_the_run_file_is_read(name: str) -> None:
    assert name in names_read()


@pytest.mark.parametrize("function", [pytest.param(function, id=name) for name, function in commands()])
def test_an_option_of_a_command_is_read(function: Callable[..., Any]) -> None:
    body = ast.parse(textwrap.dedent(inspect.getsource(function)))
    read = {node.id for node in ast.walk(body) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    assert set(inspect.signature(function).parameters) <= read
