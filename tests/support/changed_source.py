"""Functions of the code with one part of their source changed, to show that a test notices the change."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable
from typing import Any


def with_changed_source(function: Callable[..., Any], part: str, changed: str) -> Callable[..., Any]:
    """A function whose source has another text in place of this part, which must occur in it once."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(part) == 1, f"{function.__qualname__} has {part!r} {source.count(part)} times"
    code = compile(source.replace(part, changed), function.__qualname__, "exec", annotations.compiler_flag)
    found: dict[str, Any] = {}
    exec(code, vars(module_of(function)), found)
    return found[function.__name__]


def module_of(function: Callable[..., Any]) -> Any:
    return sys.modules[function.__module__]
