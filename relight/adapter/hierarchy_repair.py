"""Finds the parents of spans that lost theirs, by their times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from relight.adapter.trace_tree import TraceTree


@dataclass(frozen=True, slots=True)
class SpanProblem:
    """What is wrong with a span, and what was done about it."""

    span_id: str
    reason: str


class HierarchyRepair:
    """Finds the parents of spans by their times, among the spans below a node."""

    def __init__(self, top: TraceTree) -> None:
        nodes = top.traverse()
        self.parents = {id(child): node for node in nodes for child in node.children}
        self._enclosing = dict(_enclosing(nodes[1:], {id(child) for child in top.children}))

    def parent_of(self, node: TraceTree) -> TraceTree | SpanProblem | None:
        """The shortest span around a node; None if there is none. Agents stay: they may run side by side."""
        if node.agent_name() is not None:
            return None
        around = [other for other in self._enclosing.get(id(node), []) if not self._is_below(other, node)]
        if not around:
            return None
        closest = min(around, key=_duration)
        line = {id(other) for other in self._line(closest)}
        rival = next((other for other in around if id(other) not in line and other.agent_name() is not None), None)
        if rival is None:
            return closest
        both = f"{closest.agent_name() or closest.span.name} and {rival.agent_name()}"
        return SpanProblem(node.id, f"stays below the root: it ran within {both} at once")

    def _is_below(self, node: TraceTree, other: TraceTree) -> bool:
        return any(above is other for above in self._line(node))

    def _line(self, node: TraceTree) -> Iterator[TraceTree]:
        """A node and those above it."""
        above: TraceTree | None = node
        while above is not None:
            yield above
            above = self.parents.get(id(above))


def _enclosing(nodes: list[TraceTree], wanted: set[int]) -> Iterator[tuple[int, list[TraceTree]]]:
    """For each wanted node (by `id()`) those that lasted longer, around it.

    They are passed in the order of their starts, with those that have not ended yet in `open_`: of a program's spans
    these are few.
    """
    timed = [
        (node.start_time, -node.end_time, node)
        for node in nodes
        if node.start_time is not None and node.end_time is not None
    ]
    open_: list[tuple[float, float, TraceTree]] = []
    for start, minus_end, node in sorted(timed, key=lambda item: item[:2]):
        open_ = [item for item in open_ if -item[1] >= start]
        if id(node) in wanted:
            yield (
                id(node),
                [other for from_, minus, other in open_ if minus <= minus_end and (from_, minus) != (start, minus_end)],
            )
        open_.append((start, minus_end, node))


def _duration(node: TraceTree) -> float:
    return cast("float", node.end_time) - cast("float", node.start_time)
