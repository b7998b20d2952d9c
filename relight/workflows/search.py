"""Search attributes: what finds a run, a step or a failure in the Temporal Web UI."""

from __future__ import annotations

from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from relight.types import names

RUN = SearchAttributeKey.for_keyword(names.SEARCH_RUN)
STEP = SearchAttributeKey.for_int(names.SEARCH_STEP)
STATUS = SearchAttributeKey.for_keyword(names.SEARCH_STATUS)
ALGORITHM = SearchAttributeKey.for_keyword(names.SEARCH_ALGORITHM)
TASK = SearchAttributeKey.for_keyword(names.SEARCH_TASK)


def of_step(run: str, step: int) -> TypedSearchAttributes:
    """Marks what belongs to a step of a run."""
    return TypedSearchAttributes([SearchAttributePair(RUN, run), SearchAttributePair(STEP, step)])
