"""Whether a value looks like a secret: random, no ordinary word, no placeholder."""

from __future__ import annotations

import base64
import binascii
import itertools
import math
from collections import Counter
from typing import Any

import re2


def byte_pattern(pattern: bytes) -> Any:
    """The pattern over bytes."""
    return re2.compile(pattern)


PLACEHOLDER = (
    r"(?i:\$[{(]?[a-z_][\w.:-]*[)}]?|%[a-z_]+%|\{{1,2}[^{}]*\}{1,2}|<[^<>]*>?|\[[^\[\]]*\]?|\*{3,}|\.{3,}|x{4,}|-+"
    r"|<?your[-_ ]?(?:[a-z]+[-_ ]){0,4}[a-z]+>?|none|null|nil"
    r"|undefined|true|false|redacted|masked|hidden|removed|omitted|empty|unset|missing|required|optional|placeholder"
    r"|str(?:ing)?|int(?:eger)?|bytes|bool(?:ean)?|any|object|number|float|text|secretstr|list|dict|type"
    r"|(?:\{[^{}]*\}|%[-0-9.]*[a-z]|[\s:=,;/_-])+|\S{0,40}\[redacted\]\S{0,40})"
)
"""Stands where a secret would."""
HEX = byte_pattern(rb"(?i)[0-9a-f]+")
UUID = byte_pattern(rb"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CLASSES = bytes(
    1 if 48 <= code < 58 else 2 if 65 <= code < 91 else 3 if 97 <= code < 123 else 0 for code in range(256)
)


def entropy(data: bytes) -> float:
    """Shannon's entropy of the bytes, in bits a byte."""
    return -sum(count / len(data) * math.log2(count / len(data)) for count in Counter(data).values())


def is_random(data: bytes, shortest: int = 16) -> bool:
    """Whether text is a token rather than words: digits, capitals and small letters change places too often.

    Words, versions, dates, paths and UUIDs are not; a digest in hexadecimal is.
    """
    data = UUID.sub(b"", data)
    if not shortest <= len(data) <= 2048:
        return False
    if len(data) >= 24 and HEX.fullmatch(data):
        return len(set(data)) >= 8 and not data.isdigit()
    classes = data.translate(_CLASSES)
    digits, mixed = classes.count(1), min(classes.count(2), classes.count(3)) >= 6
    if digits > 0.8 * len(data) or (digits < 2 and not mixed and shortest >= 16):
        return False
    least = 0.4 if shortest < 16 else 0.2 if digits > 1 else 0.3 if digits == 0 else 0.22
    return _changes(classes) >= least * len(data) and len(set(data)) >= min(8, shortest - 2)


def _changes(classes: bytes) -> int:
    """How often digits, capitals and small letters change places."""
    return sum(1 for one, two in itertools.pairwise(classes) if one != two and one and two)


def is_placeholder(data: bytes) -> bool:
    """Whether text stands where a secret would, such as `<password>`, `$TOKEN` or `str`."""
    return len(data) <= 200 and _PLACEHOLDER.fullmatch(data) is not None


_PLACEHOLDER = byte_pattern(PLACEHOLDER.encode())


def is_given(secret: bytes) -> bool:
    """Whether a secret itself stands there, and no placeholder."""
    return not is_placeholder(secret)


WORD = byte_pattern(rb"[A-Za-z][a-zA-Z_]*(?:[.:/-][A-Za-z_]+)*[.,!?;:]*")
TECHNICAL = byte_pattern(
    rb"(?i)(?:base-?64|base32|sha-?[0-9]{1,3}|sha[0-9]-[0-9]{3}|md5|[hr]s256|es256|oauth-?[12](?:\.0)?|utf-?8|utf-?16"
    rb"|python[0-9.]*|argon2[a-z]*|pbkdf2|[0-9]+(?:st|nd|rd|th|s|ms|m|h|d|x|k|kb|mb|gb|px|bits?|chars?|characters)?"
    rb"|v?[0-9]+(?:\.[0-9]+)+[a-z0-9]*|\d{4}-\d\d-\d\d\S*|int(?:8|16|32|64)|float(?:16|32|64)|bf16|fp(?:8|16|32)"
    rb"|aes-?[0-9]+\S*|ed25519|x509|x25519|rsa-?[0-9]*|p256|https?://[^\s@?]*|s3://\S*|arn:\S*"
    rb"|[\w./-]+\.(?:py|js|ts|go|md|json|ya?ml|toml|txt|env|pem|key|crt)(?::[0-9]+)?|[~.]?/[\w./-]*)[.,!?;:]*"
)
SHORT = 512
"""Bytes to which a value is examined."""


def is_word(value: bytes) -> bool:
    """Whether text is of letters alone, perhaps joined as in names of code; not if capitals are strewn about it."""
    value = value[:SHORT]
    if WORD.fullmatch(value) is None:
        return False
    return len(value) < 10 or not value.isalpha() or _changes(value.translate(_CLASSES)) < 0.4 * len(value)


def is_mixed(value: bytes, shortest: int) -> bool:
    """Whether text without quotes is no ordinary word: it has letters beside digits or marks."""
    value = value[:SHORT].rstrip(b".,!?;:)]}")
    if len(value) < shortest or is_word(value) or TECHNICAL.fullmatch(value) or is_placeholder(value):
        return False
    if value.isalpha():
        return True  # no word
    letters = any(chr(code).isalpha() or code > 127 for code in value)
    others = any(48 <= code < 58 or code in b"!@#$%^*+~?" for code in value)
    return letters and others


def is_user_and_password(value: bytes) -> bool:
    """Whether text is base64 of a user's name and password, as in Docker's configuration."""
    try:
        decoded = base64.b64decode(value, validate=True)
    except binascii.Error:
        return False
    return len(decoded) >= 5 and b":" in decoded[1:-1] and decoded.isascii() and decoded.decode().isprintable()
