"""Checks values from callers by a model: each fault names the field, the value and what is valid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, TypeVar, get_args

from annotated_types import Le, Lt
from pydantic import AfterValidator, BaseModel, Field, ValidationError, ValidationInfo, field_validator

from relight.errors import InvalidRequestError

M = TypeVar("M", bound=BaseModel)
MOST_FAULTS = 10
MOST_SHOWN = 100
"""Characters of a value in an error."""
MOST_LEVELS = 128
"""Of lists and objects in each other, in JSON that the store takes. Parsers of JSON end at about 200, those of what
surrounds a value included."""
PLAIN_WORDS = {
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
}
"""What is wrong, by pydantic's type of fault, where its own words are Python's."""


def _storable(text: str) -> str:
    if "\0" in text or (not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)):
        raise ValueError("holds U+0000 or a lone surrogate, which no stored text has: leave it out")
    return text


Text = Annotated[str, AfterValidator(_storable)]
"""Text that Postgres can compare."""
Int32 = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
UnixSeconds = Annotated[float, Field(ge=0, lt=253_402_300_800, allow_inf_nan=False)]
"""A time from 1970 to the end of the year 9999."""


class Numbers(BaseModel):
    """Base of what users configure: true and false are no numbers, and an integer without an upper bound of its own has
    32 bits, as Postgres' columns do."""

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_booleans(cls, value: Any, info: ValidationInfo) -> Any:
        items: Any = value.values() if isinstance(value, dict) else value if isinstance(value, list) else (value,)
        if any(isinstance(item, bool) for item in items) and _takes_numbers_alone(cls, str(info.field_name)):
            raise ValueError("must be a number, and true and false are none")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _bound_integers(cls, value: Any, info: ValidationInfo) -> Any:
        if type(value) is int and not -(2**31) <= value < 2**31 and not _is_bounded(cls, str(info.field_name)):
            raise ValueError(f"must be an integer of 32 bits, {2**31 - 1} at most")
        return value


@cache
def _takes_numbers_alone(kind: type[BaseModel], field: str) -> bool:
    types = set(_types(kind.model_fields[field].annotation))
    return bool(types & {int, float}) and not types & {bool, Any}


@cache
def _is_bounded(kind: type[BaseModel], field: str) -> bool:
    return any(isinstance(limit, Lt | Le) for limit in kind.model_fields[field].metadata)


def _types(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        if isinstance(part, type) or get_args(part) or part is Any:
            yield from _types(part)


def what_is_wrong(fault: Mapping[str, Any]) -> str:
    """The words for one fault of a ValidationError."""
    return PLAIN_WORDS.get(fault["type"]) or fault["msg"].removeprefix("Value error, ")


def shown(value: Any) -> str:
    """An invalid value in an error; true, false and null as in JSON."""
    text = {"None": "null", "True": "true", "False": "false"}.get(repr(value), repr(value))
    return f" (given: {text:.{MOST_SHOWN}})"


def checked(kind: type[M], values: Mapping[str, Any]) -> M:
    """The values as a model of this kind.

    Raises:
        InvalidRequestError: names each field that is wrong, its value, and what is valid.
    """
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        raise invalid(error) from error


def invalid(error: ValidationError) -> InvalidRequestError:
    """The error of a request that pydantic refuses: it names each field that is wrong, its value, and what is valid."""
    faults = error.errors(include_url=False)[:MOST_FAULTS]
    clauses = [f"{'.'.join(map(str, at['loc']))}: {what_is_wrong(at)}{shown(at['input'])}" for at in faults]
    return InvalidRequestError("; ".join(clauses))


def depth_of(value: Any) -> int:
    """How many lists and objects of a JSON value lie in each other at most."""
    depth = 0
    level: list[Any] = [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [part for item in level for part in (item.values() if isinstance(item, dict) else item)]
    return depth
