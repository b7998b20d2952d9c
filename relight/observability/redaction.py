"""Replaces secrets in data from agents before it is stored.

Secrets are recognized by their shape (`secret_shapes.py`), by the name before them (`secret_names.py`), by patterns of
the settings, or are Relight's own; also in what base64, percent-encoding and escapes hide (`secret_encodings.py`). RE2
matches in linear time for every pattern. Scans recognize JSON without secrets; only other JSON is parsed. Numbers
are replaced only under a secret name, so token ids and logprobs are never changed. A secret that looks like an ordinary
word is not found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import orjson
import re2

from relight.errors import ConfigError
from relight.observability import secret_encodings, secret_names, secret_shapes, secret_values
from relight.observability.secret_shapes import Span

MASK = "[redacted]"
SHORTEST = 4
"""Shorter strings do not count as secrets by themselves."""
SHORTEST_EXACT = 12
"""Shorter exact secrets are ignored, since they would match in any text."""
ROUNDS = 6
"""What is left after a replacement is searched again, as often as this; text that still changes is replaced whole."""
MEMORY = 32 << 20
"""Bytes that the automaton of one scan may take."""
SCHEMA_TYPES = {"string", "number", "integer", "boolean", "object", "array", "null"}
_NAMES, _VALUES = ("name", "key", "header"), ("value", "val", "stringValue")


def _compile(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise ConfigError(f"redact_patterns: {pattern!r} is not a regular expression of RE2: {error}") from error


def _checked(patterns: Iterable[str]) -> list[Any]:
    found = [_compile(pattern) for pattern in patterns]
    for pattern in found:
        if pattern.search(""):
            raise ConfigError(f"redact_patterns: {pattern.pattern!r} matches the empty string")
    return found


def _scans(exact: list[str]) -> list[Any]:
    """Patterns of which one matches all JSON and text with a secret in it."""
    options = re2.Options()
    options.max_mem, options.never_capture, options.log_errors = MEMORY, True, False
    options.encoding = re2.Options.Encoding.LATIN1
    forms = {form for value in exact for form in (value, orjson.dumps(value)[1:-1].decode())}
    encodings = [*map(str.encode, secret_encodings.MAYBE), *(re2.escape(form.encode()) for form in forms)]
    tokens, signs, commands = map(str.encode, secret_shapes.maybe())
    telling, hinting = map(str.encode, secret_names.MAYBE)
    # few passes over the text, of which none has so many states that they don't fit
    scans = ([tokens], [commands, telling], [signs, hinting, *encodings])
    return [re2.compile(b"|".join(b"(?:%b)" % part for part in parts), options) for parts in scans]


class Redactor:
    """Replaces secrets by `[redacted]`. Immutable, so threads may share one."""

    def __init__(self, patterns: Iterable[str] = (), secrets: Iterable[str] = ()) -> None:
        """Patterns are RE2's, each a secret as a whole; secrets are exact values, such as the admin token.

        Raises:
            ConfigError: a pattern that can't be used.
        """
        exact = [value for value in secrets if len(value) >= SHORTEST_EXACT]
        own = _checked(patterns)
        self._has_own = bool(own)
        self._own = [*own, *(_compile(re2.escape(value)) for value in exact)]
        self._scans = _scans(exact)

    def is_clean(self, data: bytes) -> bool:
        """Whether scans show that JSON has no secret."""
        return not self._has_own and all(scan.search(data) is None for scan in self._scans)

    def text(self, text: str) -> str:
        """Text without secrets. Lone surrogates, which can't be stored either, become question marks."""
        if len(text) < SHORTEST:
            return text
        data = text.encode("utf-8", "replace")
        if self.is_clean(data):
            return text
        for _ in range(ROUNDS):
            spans = _merged(data, self._find(data, 0))
            if not spans:
                return data.decode()
            data = _replaced(data, spans)
        return MASK

    def value(self, value: Any) -> Any:
        """A JSON value without secrets, names in it included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            fields = cast("dict[Any, Any]", value)
            paired = _paired(fields)
            return {
                self._key(key): _masked(item) if key in paired else self._named(key, item)
                for key, item in fields.items()
            }
        if isinstance(value, list | tuple):
            items = cast("list[Any]", value)
            if _is_field(items):
                return [self.value(items[0]), MASK]
            flagged = [False, *(_is_flag(item) for item in items)]
            return [
                MASK if after and _is_argument(item) else self.value(item)
                for item, after in zip(items, flagged, strict=False)
            ]
        return value

    def json(self, data: bytes) -> bytes:
        """JSON without secrets; the same bytes if there are none."""
        return data if self.is_clean(data) else orjson.dumps(self.value(orjson.loads(data)))

    def _find(self, data: bytes, depth: int) -> Iterator[Span]:
        for pattern in self._own:
            yield from (match.span() for match in pattern.finditer(data))
        yield from secret_shapes.shaped(data)
        yield from secret_names.assigned(data)
        yield from secret_encodings.encoded(data, depth, self._find)

    def _key(self, key: Any) -> Any:
        return self.text(key) if isinstance(key, str) else key

    def _named(self, name: Any, value: Any) -> Any:
        if not isinstance(name, str):
            return self.value(value)
        if secret_names.is_telling(name):
            return self._telling(name, value)
        found = self.value(value)
        if isinstance(value, dict) and secret_names.is_hinting(name):
            return {key: MASK if _is_token(item) else item for key, item in cast("dict[Any, Any]", found).items()}
        if isinstance(value, str) and (secret_names.is_secret(name, value) or secret_names.is_secret(name, found)):
            return MASK
        return found

    def _telling(self, name: str, value: Any) -> Any:
        """What a telling name has as its value: all of it is secret but labels, counts and schemas."""
        if isinstance(value, str) and secret_names.is_label(value):
            return value if self.text(value) == value else MASK
        if isinstance(value, int | float) and secret_names.is_count(name):
            return value
        if isinstance(value, dict) and cast("dict[Any, Any]", value).get("type") in SCHEMA_TYPES:
            return self.value(value)
        return _masked(value)


def _paired(fields: dict[Any, Any]) -> tuple[str, ...]:
    """Which fields hold the value of a telling name in a field beside them."""
    for name in _NAMES:
        named = fields.get(name)
        if isinstance(named, str) and secret_names.is_telling(named):
            return _VALUES
    return ()


def _is_field(items: list[Any] | tuple[Any, ...]) -> bool:
    """Whether a list is a telling name and its value, as headers are given."""
    if len(items) != 2 or not all(isinstance(item, str) for item in items):
        return False
    name, value = items
    return secret_names.is_telling(name) and secret_values.is_mixed(value.encode("utf-8", "replace"), 6)


def _is_flag(item: Any) -> bool:
    """Whether an argument of a command names a secret, which is then the next one."""
    return isinstance(item, str) and item.startswith("-") and secret_names.is_telling(item)


def _is_argument(item: Any) -> bool:
    return isinstance(item, str) and secret_values.is_mixed(item.encode("utf-8", "replace"), 4)


def _is_token(item: Any) -> bool:
    return isinstance(item, str) and secret_values.is_random(item.encode("utf-8", "replace"), 20)


def _merged(data: bytes, spans: Iterable[Span]) -> list[Span]:
    """The spans in order, joined where they overlap, without those that hold nothing but the mask."""
    merged: list[Span] = []
    mask = MASK.encode()
    for start, end in sorted(set(spans)):
        if not data[start:end].replace(mask, b"").strip(b"[]"):
            continue
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _replaced(data: bytes, spans: list[Span]) -> bytes:
    parts: list[bytes] = []
    last = 0
    for start, end in spans:
        parts += (data[last:start], MASK.encode())
        last = end
    return b"".join((*parts, data[last:]))


def _masked(value: Any) -> Any:
    """A value with all strings and numbers replaced; empty values, true and false stay."""
    if isinstance(value, dict):
        return {key: _masked(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_masked(item) for item in cast("list[Any]", value)]
    return value if value is None or isinstance(value, bool) or value == "" else MASK
