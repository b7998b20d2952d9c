"""The JSON Schema of run files, with a description of each key: the text that stands below its attribute."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from operator import or_
from typing import Any

from pydantic import BaseModel, TypeAdapter

from relight.types.run_file import KINDS
from relight.types.run_file_errors import models_in


def json_schema(kinds: Sequence[type[BaseModel]] = KINDS) -> dict[str, Any]:
    """The JSON Schema of run files of all kinds."""
    schema = TypeAdapter[Any](reduce(or_, kinds)).json_schema()
    described = {model.__name__: descriptions(model) for model in sections(kinds)}
    for part in (schema, *schema.get("$defs", {}).values()):
        for key, value in part.get("properties", {}).items():
            if text := described.get(part["title"], {}).get(key):
                value["description"] = text
    return schema


def sections(kinds: Sequence[type[BaseModel]]) -> list[type[BaseModel]]:
    """The models of run files and, after each, those of its sections."""
    found: list[type[BaseModel]] = []
    ahead: list[type[BaseModel]] = [*reversed(kinds)]
    while ahead:
        model = ahead.pop()
        if model not in found:
            found.append(model)
            fields = reversed(model.model_fields.values())
            ahead += [nested for field in fields for nested in reversed(models_in(field.annotation))]
    return found


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """The texts below a model's attributes, by attribute, as one line each."""
    found: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if issubclass(owner, BaseModel) and owner is not BaseModel:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
            found |= _texts(tree)
    return found


def _texts(tree: ast.AST) -> dict[str, str]:
    assert isinstance(tree, ast.ClassDef)
    return {
        attribute.target.id: " ".join(text.value.value.split())
        for attribute, text in pairwise(tree.body)
        if isinstance(attribute, ast.AnnAssign) and isinstance(attribute.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }
