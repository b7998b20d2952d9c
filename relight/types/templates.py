"""Filling in prompt templates. They may come from a model that rewrites prompts, so they get at values only.

In both engines an attribute whose name begins with an underscore is refused: `{x.__class__}` would lead to every object
of the process. Of methods, only those of texts, numbers and containers can be called.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from relight.errors import TemplateError

if TYPE_CHECKING:
    from jinja2.sandbox import SandboxedEnvironment


PLAIN = (str, bytes, int, float, list, tuple, dict, set)


def fill_in(template: str, engine: str, values: Mapping[str, Any]) -> str:
    """The template with these values.

    Raises:
        TemplateError: a placeholder has no value, or the template is malformed; the message names it.
        NotImplementedError: an engine other than `f-string` and `jinja`.
    """
    if engine == "f-string":
        return _fill_in_braces(template, values)
    if engine == "jinja":
        return _render(template, values)
    raise NotImplementedError(f"engine {engine!r} is not filled in here; render `template` with its own library")


def _fill_in_braces(template: str, values: Mapping[str, Any]) -> str:
    try:
        if all(_is_plain(name, spec) for _, name, spec, _ in string.Formatter().parse(template)):
            return template.format_map(values)
        return _with_attributes(template, values)
    except TemplateError:
        raise
    except KeyError as error:
        raise _without_value(error.args[0], values) from None
    except IndexError:
        raise TemplateError("the prompt template has a placeholder without a name: write {name}") from None
    except Exception as error:  # a format or a value of a user's type may raise anything
        raise TemplateError(f"the prompt template: {error}; write {{{{ and }}}} for braces") from error


def _is_plain(name: str | None, spec: str | None) -> bool:
    """Whether a placeholder is a name alone, which is nearly all: jinja2 takes long to import."""
    return name is None or (name.isidentifier() and "{" not in (spec or ""))


def _with_attributes(template: str, values: Mapping[str, Any]) -> str:
    from jinja2 import TemplateError as JinjaError
    from jinja2.sandbox import SandboxedFormatter

    try:
        return SandboxedFormatter(_sandbox()).vformat(template, (), values)
    except JinjaError as error:
        raise TemplateError(f"the prompt template: {error}") from error


def _render(template: str, values: Mapping[str, Any]) -> str:
    try:
        return _sandbox().from_string(template).render(values)
    except Exception as error:  # what a template computes may raise anything
        given = ", ".join(values) or "none"
        raise TemplateError(f"the prompt template: {error} (given: {given})") from error


def _sandbox() -> SandboxedEnvironment:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Sandbox(ImmutableSandboxedEnvironment):
        def is_safe_callable(self, obj: Any) -> bool:
            of_value = isinstance(getattr(obj, "__self__", None), PLAIN)
            return (of_value or obj in self.globals.values()) and super().is_safe_callable(obj)

    return Sandbox(undefined=StrictUndefined, keep_trailing_newline=True)


def _without_value(name: object, values: Mapping[str, Any]) -> TemplateError:
    given = ", ".join(values) or "none"
    return TemplateError(
        f"the prompt template has the placeholder {name!r}, and no such value was given (given: {given})"
    )
