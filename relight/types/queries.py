"""Queries of the rollout store, from which the conditions of every store and the bodies of `/v1/agl` are derived.

The name of a filter says what it asks of rows: `status_in` one of these values, `name_contains` a part of the text,
`reward_min` and `reward_max` bounds, any other name the value itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import BaseModel, ConfigDict

from relight.types.checking import Int32, Int64, Text, checked
from relight.types.rollout import FailureClass, RolloutMode, RolloutStatus
from relight.types.store import FilterLogic, SortOrder, WorkerStatus

TESTS = frozenset({"in", "contains", "min", "max"})
EQUALS = "is"
NO_FILTERS = frozenset(
    {"limit", "offset", "sort_by", "sort_order", "filter_logic", "cursor", "rollout_id", "attempt_id"}
)
"""How rows are joined, sorted and cut, and whose they are."""


class Condition(NamedTuple):
    """What is asked of a field of each row; `test` is one of TESTS, or EQUALS."""

    field: str
    test: str
    value: Any


MAX_PAGE = 1000
"""Rows of a page at most, and with a cursor if no limit is given."""


class Query(BaseModel):
    """Where a page starts, and how long it is."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)
    always: ClassVar[frozenset[str]] = frozenset()
    """Filters that are ANDed whatever the filter logic."""

    limit: Int64 = -1
    """-1: all."""
    offset: Int64 = 0
    sort_by: str | None = None
    sort_order: SortOrder = "asc"

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Self:
        """What a call asks for by its arguments.

        Raises:
            InvalidRequestError: names the argument, its value, and what is valid.
        """
        return checked(cls, {name: arguments[name] for name in cls.model_fields})

    @property
    def logic(self) -> FilterLogic:
        """How the conditions that are not `always` are joined."""
        return "and"

    @property
    def after(self) -> str | None:
        """The cursor that the page follows; None: it is a page by position."""
        return None

    def conditions(self, *, always: bool) -> list[Condition]:
        """Those that always hold, or those that the filter logic joins. None asks for nothing."""
        names = [name for name in type(self).model_fields if name not in NO_FILTERS]
        given = [(name, getattr(self, name)) for name in names if (name in self.always) is always]
        return [_condition(name, value) for name, value in given if value is not None]


def _condition(name: str, value: Any) -> Condition:
    field, _, test = name.rpartition("_")
    return Condition(field, test, value) if test in TESTS else Condition(name, EQUALS, value)


class Filtered(Query):
    """A query with filters."""

    filter_logic: FilterLogic = "and"

    @property
    def logic(self) -> FilterLogic:
        return self.filter_logic


class Cursored(Filtered):
    """A query that a `cursor`, empty at first, pages by what was read and not by position."""

    cursor: Text | None = None

    @property
    def after(self) -> str | None:
        return self.cursor


class RolloutQuery(Cursored):
    """Which rollouts."""

    always: ClassVar[frozenset[str]] = frozenset({"mode", "run", "step", "failure_class", "reward_min", "reward_max"})

    status_in: list[RolloutStatus] | None = None
    rollout_id_in: list[Text] | None = None
    rollout_id_contains: Text | None = None
    mode: RolloutMode | None = None
    run: Text | None = None
    step: Int32 | None = None
    failure_class: FailureClass | None = None
    reward_min: float | None = None
    reward_max: float | None = None


class AttemptQuery(Query):
    """Which attempts of a rollout."""

    sort_by: str | None = "sequence_id"


class WorkerQuery(Filtered):
    """Which workers."""

    status_in: list[WorkerStatus] | None = None
    worker_id_contains: Text | None = None


class ResourcesQuery(Filtered):
    """Which snapshots of resources."""

    resources_id: Text | None = None
    resources_id_contains: Text | None = None


class SpanQuery(Cursored):
    """Which spans of a rollout; `attempt_id` may be `latest`."""

    rollout_id: Text
    attempt_id: Text | None = None
    trace_id: Text | None = None
    trace_id_contains: Text | None = None
    span_id: Text | None = None
    span_id_contains: Text | None = None
    parent_id: Text | None = None
    parent_id_contains: Text | None = None
    name: Text | None = None
    name_contains: Text | None = None
    sort_by: str | None = "sequence_id"
