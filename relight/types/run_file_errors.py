"""The message about a run file, or another model that users write, that is not valid."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ValidationError

from relight.types.checking import PLAIN_WORDS, shown, what_is_wrong

if TYPE_CHECKING:
    from relight.types.run_file import AnyRunFile


def describe(error: ValidationError, kinds: Sequence[type[AnyRunFile]] = ()) -> str:
    """One line for each fault: key, what is wrong, what was given. `kinds` are those that the file could be of."""
    lines: list[str] = []
    for fault in error.errors(include_url=False):
        key = ".".join(str(part) for part in fault["loc"])
        given = "" if isinstance(fault["input"], dict) else shown(fault["input"])
        if fault["type"] in PLAIN_WORDS:
            where = f"{key}: " if key else ""
            lines.append(f"{where}{PLAIN_WORDS[fault['type']]}{given}, whose keys `relight schema` lists")
        elif fault["type"] == "extra_forbidden" and (owners := _algorithms_with(fault["loc"], kinds)):
            lines.append(f"{key}: only with `algorithm.name` {_listed(owners)}: leave it out, or name one of these")
        elif fault["type"] == "extra_forbidden":
            lines.append(f"{key}: unknown key; `relight schema` lists the known ones{_nearest(fault['loc'], kinds)}")
        elif fault["type"] == "missing":
            lines.append(f"{key}: missing")
        else:
            known = [name for kind in kinds for name in kind.algorithms()] if key == "algorithm.name" else []
            message = f"Input should be {_listed(known)}" if known else what_is_wrong(fault)
            lines.append(f"{key}: {message}{given}" if key else message)
    return "; ".join(lines)


def _nearest(key_path: tuple[int | str, ...], kinds: Sequence[type[AnyRunFile]]) -> str:
    """What the unknown key of a run file may have been meant to be."""
    models: list[type[BaseModel]] = [*kinds]
    for part in key_path[:-1]:
        fields = [model.model_fields[part] for model in models if isinstance(part, str) and part in model.model_fields]
        models = [nested for field in fields for nested in models_in(field.annotation)] or models
    known = [name for model in models for name in model.model_fields]
    near = difflib.get_close_matches(str(key_path[-1]), known, n=1)
    return f" (did you mean `{near[0]}`?)" if near else ""


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models of sections that an annotation names: `list[Upstream] | None` names one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in models_in(argument)]


def _algorithms_with(key_path: tuple[int | str, ...], kinds: Sequence[type[AnyRunFile]]) -> list[str]:
    """The algorithms whose run files have a key, by itself or in `algorithm`."""
    found: list[str] = []
    for kind in kinds:
        holder = kind if len(key_path) == 1 else kind.section() if key_path[:-1] == ("algorithm",) else None
        if holder and key_path[-1] in holder.model_fields:
            found += kind.algorithms()
    return found


def _listed(names: Sequence[str]) -> str:
    """Names as pydantic lists those that it expects."""
    *first, last = map(repr, names)
    return f"{', '.join(first)} or {last}" if first else last
