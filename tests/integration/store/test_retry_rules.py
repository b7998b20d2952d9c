"""The rules of retries, which Python and SQL both apply."""

from __future__ import annotations

import pytest

from relight.store.database import Database
from relight.types.rollout import RolloutConfig, backoff_seconds


@pytest.mark.parametrize("first", [0.0, 0.001, 1.0, 45.0, 1e308])
async def test_sql_waits_as_long_as_python_after_any_try(database: Database, first: float) -> None:
    config = RolloutConfig(backoff_seconds=first)
    numbers = [*range(1, 30), 1025, 5000]
    asked = "select extract(epoch from backoff_v1($1::jsonb, number))::float8 from unnest($2::int[]) as number"
    rows = await database.pool.fetch(asked, config.model_dump(mode="json"), numbers)
    assert [row[0] for row in rows] == pytest.approx([backoff_seconds(config, number) for number in numbers])
