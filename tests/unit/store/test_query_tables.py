"""What the methods of the rollout store take by keyword is what its queries ask for."""

from __future__ import annotations

import inspect

import pytest

from relight.store.base import LightningStore
from relight.types.queries import EQUALS, AttemptQuery, Query, ResourcesQuery, RolloutQuery, SpanQuery, WorkerQuery


@pytest.mark.parametrize(
    ("method", "query", "besides"),
    [
        (LightningStore.query_rollouts, RolloutQuery, set()),
        (LightningStore.query_attempts, AttemptQuery, {"rollout_id"}),
        (LightningStore.query_resources, ResourcesQuery, set()),
        (LightningStore.query_spans, SpanQuery, set()),
        (LightningStore.query_workers, WorkerQuery, set()),
    ],
)
def test_keywords_and_their_defaults_are_those_of_the_query(
    method: object, query: type[Query], besides: set[str]
) -> None:
    parameters = dict(inspect.signature(method).parameters)  # type: ignore[arg-type]
    for name in {"self", *besides}:
        del parameters[name]
    assert set(parameters) == set(query.model_fields)
    for name, field in query.model_fields.items():
        assert field.is_required() or parameters[name].default == field.default, name


def test_a_filters_name_states_its_condition() -> None:
    query = RolloutQuery.model_validate(
        {"status_in": ["failed"], "rollout_id_contains": "", "reward_min": 0.5, "run": "demo", "filter_logic": "or"}
    )
    assert query.conditions(always=False) == [("status", "in", ["failed"]), ("rollout_id", "contains", "")]
    assert query.conditions(always=True) == [("run", EQUALS, "demo"), ("reward", "min", 0.5)]
