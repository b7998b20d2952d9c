"""Replaces secrets in data from agents before it is stored.

Secrets are keys and tokens of the usual shapes, authorization headers, passwords in URLs, values with names such as
`password`, Relight's own tokens, and matches of patterns from the settings. RE2 matches in linear time for every
pattern. One scan recognizes JSON without secrets; only other JSON is parsed. Numbers are replaced only under a secret
name, so token ids and logprobs are never changed. A secret that looks like an ordinary word is not found.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, cast

import orjson
import re2

from relight.errors import ConfigError

MASK = "[redacted]"
SHAPES = (
    r"sk-[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic, OpenRouter, DeepSeek
    r"(?:sk|rk|pk|whsec)_(?:live_|test_)?[A-Za-z0-9]{24,}",
    r"gh[pousr]_[A-Za-z0-9]{30,}",
    r"github_pat_[A-Za-z0-9_]{30,}",
    r"gl(?:pat|rt|dt|ptt)-[A-Za-z0-9_-]{16,}",
    r"(?:hf|gsk|r8|npm|fw|dckr_pat|tskey|lsv2_pt|lsv2_sk)_[A-Za-z0-9_]{20,}",
    r"(?:xai|nvapi|pplx|tvly|pypi|csk|dapi)-[A-Za-z0-9_-]{20,}",
    r"(?:AKIA|ASIA|AROA|ABIA)[0-9A-Z]{16}",
    r"AIza[0-9A-Za-z_-]{30,}",
    r"ya29\.[0-9A-Za-z_-]{20,}",
    r"(?:xox[abeoprs]|xapp)-[A-Za-z0-9-]{10,}",
    r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",
    r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?",  # JSON web tokens
    r"rl-[A-Za-z0-9_-]{32,}",  # ours
)
NAMES = (
    r"(?:authorization|cookie|pass(?:word|wd|phrase)|pwd|secret|credential|connection[-_.]?string"
    r"|(?:api|access|private|secret|signing|encryption|master|account)[-_.]?key"
    r"|(?:access|refresh|id|auth|bearer|session|security|api|csrf|oauth)[-_.]?token)s?"
)
TOKEN = r"[A-Za-z0-9._~+/=-]"
PEM = r"(?s:-----BEGIN [A-Z0-9 ]*PRIVATE KEY.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----|\z))"
SCHEME = rf"(?i:\b(?:bearer|basic)\s+){TOKEN}{{12,}}"
HEADER = rf"(?i:(authorization\W{{0,4}}\s*[:=]\s*\W{{0,4}}(?:bearer|basic|token|digest|negotiate)?\s*))({TOKEN}{{4,}})"
QUOTED = rf"(?i:({NAMES}\\*[\"']\s*[:=]\s*\\*[\"']))((?:[^\"'\\]|\\+[^\"'\\])+)"
ASSIGNED = rf"(?i:({NAMES}=))([^\s\"'&;,]{{4,}})"
IN_URL = r"([A-Za-z][A-Za-z0-9+.-]*://[^/\s:@\"'\\]*:)([^/\s@\"'\\]+)(@)"
MAYBE_IN_JSON = (
    *SHAPES,
    r"PRIVATE KEY",
    rf"(?i:(?:bearer|basic)(?:\s|\\[nrtbf])+{TOKEN}{{12,}})",
    rf"(?i:{NAMES}(?:[\"'\\=]|\W{{0,5}}\s*[:=]))",
    r"://[^/\s:@]*:[^/\s@]+@",
)
"""Substrings of which text or JSON has at least one wherever one of the patterns above, or a name, matches."""
SHORTEST = 4
"""Shorter strings do not count as secrets by themselves."""
SHORTEST_EXACT = 12
"""Shorter exact secrets are ignored, since they would match in any text."""


def _compile(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise ConfigError(f"redact_patterns: {pattern!r} is not a regular expression of RE2: {error}") from error


def _plausible(match: Any) -> str:
    """Replace the word after an authorization scheme if it looks like a token; in `basic understanding` it does not."""
    found = str(match.group())
    scheme, token = found.split(None, 1)
    return f"{scheme} {MASK}" if len(token) >= 24 or any(char.isdigit() for char in token) else found


def _checked(patterns: Iterable[str]) -> list[str]:
    found = list(patterns)
    for pattern in found:
        if _compile(pattern).search(""):
            raise ConfigError(f"redact_patterns: {pattern!r} matches the empty string")
    return found


class Redactor:
    """Replaces secrets by `[redacted]`. Immutable, so threads may share one."""

    def __init__(self, patterns: Iterable[str] = (), secrets: Iterable[str] = ()) -> None:
        """Patterns are RE2's, each a secret as a whole; secrets are exact values, such as the admin token.

        Raises:
            ConfigError: a pattern that can't be used.
        """
        exact = [value for value in secrets if len(value) >= SHORTEST_EXACT]
        own = _checked(patterns)
        in_json = {form for value in exact for form in (value, orjson.dumps(value)[1:-1].decode())}
        self._has_own = bool(own)
        self._maybe = _compile_bytes([*MAYBE_IN_JSON, *map(re2.escape, in_json)])
        self._name = _compile(f"(?i:{NAMES})$")
        shapes = _compile(f"(^|[^A-Za-z0-9])(?:{'|'.join(SHAPES)})")
        whole = [PEM, *map(re2.escape, exact), *own]
        self._steps = [
            partial(_compile("|".join(f"(?:{pattern})" for pattern in whole)).sub, MASK),
            partial(_compile(QUOTED).sub, rf"\1{MASK}"),
            partial(_compile(HEADER).sub, rf"\1{MASK}"),
            partial(_compile(SCHEME).sub, _plausible),
            partial(_compile(ASSIGNED).sub, rf"\1{MASK}"),
            partial(_compile(IN_URL).sub, rf"\1{MASK}\3"),
            partial(shapes.sub, rf"\1{MASK}"),
        ]

    def is_clean(self, data: bytes) -> bool:
        """Whether one scan shows that JSON has no secret."""
        return not self._has_own and self._maybe.search(data) is None

    def text(self, text: str) -> str:
        """Text without secrets. Lone surrogates, which can't be stored either, become question marks."""
        if len(text) < SHORTEST:
            return text
        data = text.encode("utf-8", "replace")
        if self.is_clean(data):
            return text
        found = data.decode()
        for step in self._steps:
            found = step(found)
        return found

    def value(self, value: Any) -> Any:
        """A JSON value without secrets, names in it included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self._key(key): self._named(key, item) for key, item in cast("dict[Any, Any]", value).items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in cast("list[Any]", value)]
        return value

    def json(self, data: bytes) -> bytes:
        """JSON without secrets; the same bytes if there are none."""
        return data if self.is_clean(data) else orjson.dumps(self.value(orjson.loads(data)))

    def _key(self, key: Any) -> Any:
        return self.text(key) if isinstance(key, str) else key

    def _named(self, name: Any, value: Any) -> Any:
        secret = isinstance(name, str) and self._name.search(name.encode("utf-8", "replace").decode()) is not None
        return _masked(value) if secret else self.value(value)


def _compile_bytes(patterns: Iterable[str]) -> Any:
    return re2.compile("|".join(f"(?:{pattern})" for pattern in patterns).encode())


def _masked(value: Any) -> Any:
    """A value with all strings and numbers replaced; empty values, true and false stay."""
    if isinstance(value, dict):
        return {key: _masked(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_masked(item) for item in cast("list[Any]", value)]
    return value if value is None or isinstance(value, bool) or value == "" else MASK
