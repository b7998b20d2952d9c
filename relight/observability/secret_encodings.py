"""Texts within a text: base64, percent-encoding, escapes of JSON and HTML; what each decodes to is searched."""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import re2

from relight.observability.secret_shapes import Span

DEPTH = 3
"""How many encodings may lie in each other."""
_FIRST = "CDI-Za-f"
_SECOND = "".join(
    char
    for number, char in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
    if not number & 8
)
_THIRD = "".join(
    char
    for number, char in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
    if number & 3 < 2
)
_TEXT = rf"(?:[{_FIRST}][{_SECOND}][{_THIRD}][A-Za-z0-9+/_-]){{4,}}"
BASE64 = rf"(?:^|[^A-Za-z0-9+_-]|\\[nrt])({_TEXT}[A-Za-z0-9+/_-]*={{0,2}}(?:\s{{1,8}}[A-Za-z0-9+/]{{16,}}={{0,2}})*)"
"""Base64 of text: its first characters show that the bytes begin as ASCII does, three at a time."""
ESCAPED = (
    r"\\+u00[0-7][0-9a-fA-F]|\\+x[0-7][0-9a-fA-F]|%[2-7][0-9A-Fa-f]|&(?:quot|amp|lt|gt|#39|#34|#x27|#x22|#61|#58);"
)
_ENTITIES = {b"&quot;": b'"', b"&amp;": b"&", b"&lt;": b"<", b"&gt;": b">"}
MAYBE = (
    rf"(?:^|[^A-Za-z0-9+_-]|\\[nrt]){_TEXT}",
    r"\\+u00(?:2[dD]|5[fF]|3[0-9]|[46][1-9a-fA-F]|[57][0-9aA])|(?:\\+x[2-7][0-9a-fA-F]){3}",
    r"%(?:6[1-9A-Fa-f]|7[0-9Aa])[A-Za-z0-9%_-]{3}",
)
"""Of these one matches JSON wherever a secret is encoded and not found as it stands."""
_BASE64: Any = re2.compile(BASE64.encode())
_ESCAPED: Any = re2.compile(ESCAPED.encode())
Find = Callable[[bytes, int], Iterable[Span]]


def encoded(data: bytes, depth: int, find: Find) -> Iterator[Span]:
    """Where secrets are that only decoding shows; `find` searches what is decoded, at a depth."""
    if depth >= DEPTH:
        return
    for match in _BASE64.finditer(data):
        text = _from_base64(match.group(1))
        if text is not None and any(True for _ in find(text, depth + 1)):
            yield match.span(1)
    yield from _unescaped(data, depth, find)


def _from_base64(data: bytes) -> bytes | None:
    """The text that base64 holds, or None where it holds none."""
    whole = b"".join(data.split()).rstrip(b"=").replace(b"-", b"+").replace(b"_", b"/")
    try:
        text = base64.b64decode(whole[: len(whole) - (len(whole) % 4 == 1)] + b"==")
    except binascii.Error:
        return None
    head = text[:256]
    return text if sum(32 <= code < 127 or code in b"\t\r\n" for code in head) >= 0.9 * len(head) else None


def _unescaped(data: bytes, depth: int, find: Find) -> Iterator[Span]:
    parts: list[bytes] = []
    starts, origins = [0], [0]
    last = size = 0
    for match in _ESCAPED.finditer(data):
        start, end = match.span()
        char = _decoded(match.group())
        parts += (data[last:start], char)
        size += start - last
        starts += (size, size + 1)
        origins += (start, end)
        size += 1
        last = end
    if not parts:
        return
    text = b"".join((*parts, data[last:]))
    for start, end in find(text, depth + 1):
        yield _origin(starts, origins, start), _origin(starts, origins, end)


def _decoded(escape: bytes) -> bytes:
    if escape.startswith(b"&"):
        code = escape.strip(b"&#;")
        return _ENTITIES.get(escape) or bytes([int(code[1:], 16) if code[:1] == b"x" else int(code)])
    return bytes([int(escape[-2:], 16)])


def _origin(starts: list[int], origins: list[int], at: int) -> int:
    """The place in the encoded text of a place in the decoded one."""
    index = bisect_right(starts, at) - 1
    return origins[index] + at - starts[index]
