"""Search attributes, which find a run, a step or a failure in the Temporal Web UI."""

from __future__ import annotations

from typing import Any

from temporalio.common import SearchAttributeKey, SearchAttributePair, SearchAttributeUpdate, TypedSearchAttributes

from relight.types import names

RUN = SearchAttributeKey.for_keyword(names.SEARCH_RUN)
STEP = SearchAttributeKey.for_int(names.SEARCH_STEP)
STATUS = SearchAttributeKey.for_keyword(names.SEARCH_STATUS)
ALGORITHM = SearchAttributeKey.for_keyword(names.SEARCH_ALGORITHM)
TASK = SearchAttributeKey.for_keyword(names.SEARCH_TASK)

WAITING = SearchAttributeKey.for_keyword(names.SEARCH_WAITING)
LONGEST_REASON = 200


def waiting(reason: str | None) -> SearchAttributeUpdate[str]:
    """Set what a workflow waits for; None: it does not wait."""
    return WAITING.value_set(reason[:LONGEST_REASON]) if reason else WAITING.value_unset()


def of_run(run: str, algorithm: str) -> TypedSearchAttributes:
    """Marks a run."""
    return TypedSearchAttributes([SearchAttributePair(RUN, run), SearchAttributePair(ALGORITHM, algorithm)])


def of_step(run: str, step: int) -> TypedSearchAttributes:
    """Marks what belongs to a step of a run."""
    return TypedSearchAttributes([SearchAttributePair(RUN, run), SearchAttributePair(STEP, step)])


def of_rollout(run: str | None, step: int | None, task: str | None) -> TypedSearchAttributes:
    """Marks a rollout by what is known of it; its task is called as `names.task_name` does."""
    given = ((RUN, run), (STEP, step), (TASK, task))
    return TypedSearchAttributes([SearchAttributePair[Any](key, value) for key, value in given if value is not None])
