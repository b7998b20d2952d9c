"""Rows of runs: typed, and read where the file is another release's."""

from __future__ import annotations

from pathlib import Path

import pytest

from relight.errors import ConfigError, NotFoundError
from relight.store.database import Database
from relight.store.runs.rows import RunRow, find_run, get_run
from tests.rules.kit import begin


async def test_a_runs_row_has_the_values_of_its_columns_and_its_file(database: Database, tmp_path: Path) -> None:
    run = await begin(database, tmp_path, "typed")
    await run.change("set_hyperparameters", {"learning_rate": 0.25})
    row = await get_run(database, "typed")
    stored = await database.pool.fetchrow("select * from runs")
    for name in RunRow.__annotations__:
        assert getattr(row, name) == stored["file" if name == "stored_file" else name], name
    assert row.file == run.file
    assert row.file is row.file, "it is parsed once"


async def test_a_run_that_is_not_there_is_none_or_an_error_with_its_name(database: Database) -> None:
    assert await find_run(database, "nowhere") is None
    with pytest.raises(NotFoundError, match="there is no run 'nowhere'"):
        await get_run(database, "nowhere")


async def test_a_run_with_another_releases_file_names_the_key_and_can_be_cancelled(
    database: Database, tmp_path: Path
) -> None:
    run = await begin(database, tmp_path, "newer")
    await database.pool.execute("""update runs set file = file || '{"lag": 2}'""")
    with pytest.raises(ConfigError, match="run file: lag: unknown key"):
        await run.plan(1)
    assert (await run.change("cancel", {})).accepted
