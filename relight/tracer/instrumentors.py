"""Finds the installed instrumentors of OpenTelemetry and OpenInference, and switches them on by name."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

log = logging.getLogger(__name__)
GROUP = "opentelemetry_instrumentor"
"""The entry points by which packages of instrumentors announce themselves."""


def installed() -> dict[str, EntryPoint]:
    """The installed instrumentors, by name and by package, such as `openai` and `opentelemetry-instrumentation-openai`.

    A name that several packages use is that of OpenTelemetry's, whose attributes adapters read best.
    """
    return _by_name() | {package_of(point): point for point in entry_points(group=GROUP)}


def _by_name() -> dict[str, EntryPoint]:
    found: dict[str, list[EntryPoint]] = defaultdict(list)
    for point in entry_points(group=GROUP):
        found[point.name].append(point)
    return {name: max(points, key=package_of) for name, points in found.items()}


def package_of(point: EntryPoint) -> str:
    """The package that has an instrumentor."""
    return point.dist.name if point.dist else point.value


def switch_on(names: Sequence[str] | Literal["all"], tracer_provider: Any) -> list[str]:
    """Instrument libraries; returns the names of those that are instrumented now.

    Of `all`, those that fail are left out with a warning: their library may not be installed, or be of another version.

    Raises:
        ValueError: a name is none of the installed ones, or the instrumentor failed.
    """
    if names == "all":
        return [name for name, point in _by_name().items() if _switched_on(point, tracer_provider, must=False)]
    if isinstance(names, str):
        raise ValueError(f"instrument: {names!r} is one name; give a list of names, or 'all'")
    found = installed()
    if unknown := sorted(set(names) - found.keys()):
        raise ValueError(f"instrument: {_quoted(unknown)} is not installed; {_known(found)}")
    return [name for name in names if _switched_on(found[name], tracer_provider, must=True)]


def switch_off(names: Iterable[str]) -> None:
    """End the instrumentation of these libraries."""
    found = installed()
    for name in names:
        found[name].load()().uninstrument()


def _switched_on(point: EntryPoint, tracer_provider: Any, *, must: bool) -> bool:
    try:
        instrumentor = point.load()()
        if not instrumentor.is_instrumented_by_opentelemetry:
            instrumentor.instrument(tracer_provider=tracer_provider, raise_exception_on_conflict=must)
        return bool(instrumentor.is_instrumented_by_opentelemetry)
    except Exception as error:  # an instrumentor may raise anything
        if must:
            raise ValueError(f"instrument: {point.name} ({package_of(point)}) failed: {error}") from error
        log.warning("the instrumentor %s (%s) failed: %s", point.name, package_of(point), error)
        return False


def _known(found: Mapping[str, EntryPoint]) -> str:
    known = _quoted(sorted(found))
    return f"installed are {known}" if known else "none is: pip install opentelemetry-instrumentation-openai, ..."


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
