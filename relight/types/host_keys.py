"""Which keys of a run file could reach code, files or addresses of a GPU host, and how they are refused.

A user who may start runs is not trusted with the GPU host. So a run file may set only what is listed, with plain
values; the rest is for the settings of the GPU worker.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from relight.errors import ConfigError

REASONS = {
    "code": "it can make the GPU host run other code",
    "files": "it reaches files or devices of the GPU host",
    "network": "it reaches addresses, or opens one",
}
"""Why a run file may not set a key, by class."""
_WORD = re.compile(r"\w[\w+:,-]*(\.\d\w*)*", re.ASCII)
"""A name or a number: no path, no dotted name of Python's, no option of a command line."""


def refused(key: str, reason: str, setting: str) -> ConfigError:
    """The error for a key that a run file may not set."""
    return ConfigError(f"{key}: not to be set in a run file: {reason}; the GPU worker's own {setting} may set it")


def check_plain(key: str, value: Any, setting: str, *, lists: bool = True) -> None:
    """Refuse a value that is not a number, a truth value, a word, nothing, or with `lists` a list of these.

    Raises:
        ConfigError: naming the key.
    """
    items = cast("list[Any]", value) if lists and isinstance(value, list) else [value]
    for item in items:
        is_word = isinstance(item, str) and _WORD.fullmatch(item)
        if not is_word and not isinstance(item, int | float | None):
            raise refused(key, f"{item!r} is not a plain name or number", setting)


def check_fields(key: str, value: Any, allowed: Sequence[str], setting: str) -> None:
    """Refuse an object with other fields than these, or with a value that is not plain.

    Raises:
        ConfigError: naming the field.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key}: {value!r} is not an object, with {', '.join(allowed)}")
    for name, item in cast("Mapping[str, Any]", value).items():
        if name not in allowed:
            raise refused(f"{key}.{name}", f"of `{key}` it may set {', '.join(allowed)}", setting)
        check_plain(f"{key}.{name}", item, setting)
