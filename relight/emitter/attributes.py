"""Converts nested values to flat span attributes.

An attribute is a string, a boolean, a number or a list of one of these types. Every other value becomes text, long text
is cut, and no value raises an error, since tracing must not make an agent fail.
"""

from __future__ import annotations

import math
import reprlib
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import orjson

from relight import semconv
from relight.semconv import LightningSpanAttributes as Attribute
from relight.semconv import LinkPydanticModel

MAX_TEXT_CHARACTERS: Final = 256 * 1024
MAX_ATTRIBUTES: Final = 2048
MAX_TRACEBACK_CHARACTERS: Final = 16 * 1024


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
        return int(value) if -(2**63) <= value < 2**63 else str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return [_leaf(item) for item in cast("Sequence[Any]", value)]
    return clean_text(as_json(value) or safe_repr(value))


MOST_PARTS = 64
"""Of a key, between dots; keys with more are left out of what is nested."""
MOST_DIGITS = 9
"""Of a part that is an index of a list."""


def unflatten(attributes: Mapping[str, Any], prefix: str) -> Any:
    """`{"p.a.0.b": 1}` with the prefix `p` becomes `{"a": [{"b": 1}]}`: the reverse of `flatten`.

    Keys that are all numbers make a list in their order. Where a key holds a value and others below it, these count.
    None if no key begins with the prefix.
    """
    start = f"{prefix}."
    nested: dict[str, Any] = {}
    for key, value in attributes.items():
        if key.startswith(start) and key.count(".") <= MOST_PARTS:
            *path, last = key[len(start) :].split(".")
            inner = nested
            for part in path:
                below = inner.get(part)
                if not isinstance(below, dict):
                    below = inner[part] = {}
                inner = cast("dict[str, Any]", below)
            if not isinstance(inner.get(last), dict):
                inner[last] = value
    return _with_lists(nested) if nested else None


def is_index(key: str) -> bool:
    """Whether a part of a key counts the items of a list."""
    return key.isascii() and key.isdigit() and len(key) <= MOST_DIGITS


def _with_lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    items = {key: _with_lists(item) for key, item in cast("dict[str, Any]", value).items()}
    if all(map(is_index, items)):
        return [items[key] for key in sorted(items, key=int)]
    return items


def as_json(value: Any) -> str | None:
    """JSON text, or None if the value can't be represented in JSON."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError, RecursionError):
        return None


_short = reprlib.Repr()
_short.maxstring = _short.maxother = 1000
_short.maxdict = _short.maxlist = _short.maxtuple = _short.maxset = 20


def safe_text(error: BaseException, limit: int = 1000) -> str:
    """An exception's message, whatever its `__str__` does."""
    try:
        return clean_text(str(error), limit)
    except Exception:  # a user's __str__ may raise anything
        return "<no message>"


def safe_repr(value: Any, limit: int = 1000) -> str:
    """A `repr` that never raises, has a limited length, and does not traverse large values."""
    try:
        return clean_text(_short.repr(value), limit)
    except Exception:  # a user's __repr__ may raise anything
        return f"<{type(value).__name__}>"


def exception_attributes(exception: BaseException) -> dict[str, Any]:
    """Attributes with the type, message and stack trace of an exception."""
    try:
        stack = "".join(traceback.format_exception(exception))
    except Exception:  # it asks the exception for its message
        stack = "<no stack trace>"
    return {
        semconv.EXCEPTION_TYPE: type(exception).__name__,
        semconv.EXCEPTION_MESSAGE: safe_text(exception, MAX_TRACEBACK_CHARACTERS),
        semconv.EXCEPTION_STACKTRACE: clean_text(stack[-MAX_TRACEBACK_CHARACTERS:]),
        semconv.EXCEPTION_ESCAPED: True,
    }


def make_tag_attributes(tags: Sequence[str]) -> dict[str, Any]:
    """Attributes that tag a span. Source: Agent Lightning 0.3's `make_tag_attributes`."""
    return {f"{Attribute.TAG}.{index}": tag for index, tag in enumerate(tags)}


def make_link_attributes(links: Mapping[str, str]) -> dict[str, Any]:
    """Attributes that link a span to the spans that have these attributes, such as `{"gen_ai.response.id": "x"}`."""
    attributes: dict[str, Any] = {}
    for index, (key, value) in enumerate(links.items()):
        attributes[f"{Attribute.LINK}.{index}.key_match"] = key
        attributes[f"{Attribute.LINK}.{index}.value_match"] = value
    return attributes


def extract_tags_from_attributes(attributes: Mapping[str, Any]) -> list[str]:
    """What `make_tag_attributes` wrote; what is not text is left out."""
    return [tag for tag in _items(attributes, Attribute.TAG) if isinstance(tag, str)]


def extract_links_from_attributes(attributes: Mapping[str, Any]) -> list[LinkPydanticModel]:
    """What `make_link_attributes` wrote; what is no link is left out."""
    found = (item for item in _items(attributes, Attribute.LINK) if isinstance(item, Mapping))
    pairs = [(item.get("key_match"), item.get("value_match")) for item in cast("Iterator[Mapping[str, Any]]", found)]
    texts = ((key, value) for key, value in pairs if isinstance(key, str) and isinstance(value, str))
    return [LinkPydanticModel(key_match=key, value_match=value) for key, value in texts]


def _items(attributes: Mapping[str, Any], prefix: str) -> list[Any]:
    listed = attributes.get(prefix) or unflatten(attributes, prefix)
    return list(cast("Sequence[Any]", listed)) if isinstance(listed, list | tuple) else []
