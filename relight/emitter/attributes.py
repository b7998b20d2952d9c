"""Converts nested values to flat span attributes.

An attribute is a string, a boolean, a number or a list of one of these types. Every other value becomes text, long text
is cut, and no value raises an error, since tracing must not make an agent fail.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import orjson

from relight.emitter.names import LINK, TAG

MAX_TEXT_CHARACTERS: Final = 256 * 1024
MAX_ATTRIBUTES: Final = 2048
_INTEGERS: Final = range(-(2**63), 2**63)


def clean_text(text: str, limit: int = MAX_TEXT_CHARACTERS) -> str:
    """Text that JSON and Postgres can store: without lone surrogates and NUL, at most `limit` characters."""
    if len(text) > limit:
        text = f"{text[:limit]}... [{len(text) - limit} characters cut]"
    return text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\ufffd")


def flatten(value: Mapping[str, Any] | Sequence[Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1, "c": [{}, 2]}}` to `{"a.b": 1, ...}`; a list of plain values of one kind stays a list."""
    flat: dict[str, Any] = {}
    for key, leaf in _leaves(value, prefix, depth=0):
        if len(flat) >= MAX_ATTRIBUTES:
            break
        flat[key] = leaf
    return flat


def _leaves(value: Any, prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and depth < 32:
        for key, item in cast("Mapping[Any, Any]", value).items():
            yield from _leaves(item, _join(prefix, key), depth + 1)
    elif isinstance(value, list | tuple) and depth < 32 and not _is_plain_list(cast("Sequence[Any]", value)):
        for index, item in enumerate(cast("Sequence[Any]", value)):
            yield from _leaves(item, _join(prefix, index), depth + 1)
    elif value is not None:
        yield prefix, _leaf(value)


def _join(prefix: str, key: object) -> str:
    name = clean_text(str(key), 256)
    return f"{prefix}.{name}" if prefix else name


def _is_plain_list(items: Sequence[Any]) -> bool:
    kinds = {type(item) for item in items}
    return len(kinds) == 1 and kinds <= {str, bool, int, float}


def _leaf(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if value in _INTEGERS else str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return [_leaf(item) for item in cast("Sequence[Any]", value)]
    return clean_text(as_json(value) or safe_repr(value))


def as_json(value: Any) -> str | None:
    """JSON text, or None if the value can't be represented in JSON."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError, RecursionError):
        return None


_short = reprlib.Repr()
_short.maxstring = _short.maxother = 1000
_short.maxdict = _short.maxlist = _short.maxtuple = _short.maxset = 20


def safe_repr(value: Any, limit: int = 1000) -> str:
    """A `repr` that never raises, has a limited length, and does not traverse large values."""
    try:
        return clean_text(_short.repr(value), limit)
    except Exception:  # a user's __repr__ may raise anything
        return f"<{type(value).__name__}>"


def make_tag_attributes(tags: Sequence[str]) -> dict[str, Any]:
    """Attributes that tag a span. Source: Agent Lightning 0.3's `make_tag_attributes`."""
    return {f"{TAG}.{index}": tag for index, tag in enumerate(tags)}


def make_link_attributes(links: Mapping[str, str]) -> dict[str, Any]:
    """Attributes that link a span to the spans that have these attributes, such as `{"gen_ai.response.id": "x"}`."""
    attributes: dict[str, Any] = {}
    for index, (key, value) in enumerate(links.items()):
        attributes[f"{LINK}.{index}.key_match"] = key
        attributes[f"{LINK}.{index}.value_match"] = value
    return attributes
