"""A data set is removed while a run is about to use it: one of them waits for the other, and is told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relight.datasets import Tasks
from relight.errors import ConflictError, InvalidRequestError, OverloadedError
from relight.operators.start_requests import request_start
from relight.store.database import Database
from relight.store.datasets.client import DatasetClient
from relight.store.runs import lifecycle
from relight.types.payloads import BeginInput
from relight.types.run_file import parse_run_file
from tests.support.orchestration import eventually
from tests.support.seeds import seed_run
from tests.support.store_service import TOKEN

WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
FILE = parse_run_file({"agent": "echo", "model": "m", "data": "store:sums", "steps": 1})
ROWS = b'{"question": "1+1?"}\n{"question": "2+2?"}\n'


@pytest.fixture
async def client(store_url: str) -> Any:
    async with DatasetClient(store_url, TOKEN, retry_seconds=10) as found:
        yield found


async def waits(database: Database, number: int = 1) -> None:
    """Until so many sessions wait for a lock."""

    async def enough() -> bool:
        return await database.pool.fetchval(WAITING) >= number

    await eventually(enough)


async def rows_of(database: Database, dataset_id: str) -> int:
    return await database.pool.fetchval("select count(*) from tasks where dataset_id = $1", dataset_id)


@pytest.mark.parametrize("how", ["removed", "replaced"])
async def test_a_set_that_a_run_is_just_beginning_with_stays(
    client: DatasetClient, database: Database, how: str
) -> None:
    put = await client.put("sums", [(1, ROWS)])
    await seed_run(database, "demo")
    async with database.transaction() as beginning:
        await beginning.connection.execute("update runs set train_dataset = $1 where run = 'demo'", put.dataset_id)
        change = client.delete("sums") if how == "removed" else client.put("sums", [(1, ROWS * 2)], replace=True)
        changing = asyncio.create_task(change)
        await waits(database)
    if how == "removed":
        with pytest.raises(ConflictError, match="data set sums is used by demo"):
            await changing
    else:
        view = await changing
        assert view is not None
        assert view.rows == 4
    assert await rows_of(database, put.dataset_id) == 2


async def test_a_run_that_begins_while_its_set_is_removed_tries_again_and_stores_no_rows(
    client: DatasetClient, database: Database
) -> None:
    put = await client.put("sums", [(1, ROWS)])
    found = Tasks([{}, {}], put.dataset_id, "store:sums")
    begin = BeginInput(run="demo", driver="d", file=FILE)
    async with database.transaction() as removing:
        await removing.connection.execute("delete from dataset_names")
        await removing.connection.execute("delete from datasets")
        beginning = asyncio.create_task(lifecycle.begin_run(database, begin, found, None))
        await waits(database)
    with pytest.raises(OverloadedError, match="removed while the run began"):
        await beginning
    with pytest.raises(OverloadedError):
        await lifecycle.begin_run(database, begin, found, None)
    assert await database.pool.fetchval("select count(*) from datasets") == 0
    assert await database.pool.fetchval("select count(*) from runs") == 0


@pytest.mark.parametrize("how", ["removed", "replaced"])
@pytest.mark.parametrize("by", ["store:sums", "dataset:{id}"])
async def test_a_set_that_a_run_was_just_requested_with_stays(
    client: DatasetClient, database: Database, how: str, by: str
) -> None:
    put = await client.put("sums", [(1, ROWS)])
    file = FILE.model_copy(update={"data": FILE.data.model_copy(update={"train": by.format(id=put.dataset_id)})})
    async with database.transaction() as other:
        await other.connection.execute("lock table commands in exclusive mode")
        asking = asyncio.create_task(request_start(database, "wanted", file, "ada"))
        await waits(database)
        change = client.delete("sums") if how == "removed" else client.put("sums", [(1, ROWS * 2)], replace=True)
        changing = asyncio.create_task(change)
        await waits(database, 2)
    await asking
    if how == "removed":
        with pytest.raises(ConflictError, match="data set sums is used by wanted"):
            await changing
    else:
        await changing
    by_name = by.startswith("store:") and how == "replaced"  # it begins with the new rows
    assert await rows_of(database, put.dataset_id) == (0 if by_name else 2)


async def test_a_run_is_not_requested_with_a_set_that_is_gone(client: DatasetClient, database: Database) -> None:
    await client.put("sums", [(1, ROWS)])
    await client.delete("sums")
    with pytest.raises(InvalidRequestError, match=r"data\.train: data set store:sums: the store has no such set"):
        await request_start(database, "wanted", FILE, "ada")
