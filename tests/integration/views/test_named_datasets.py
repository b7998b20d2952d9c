"""Data sets in the store: sent in pieces over HTTP, named, used by runs, removed when no run uses them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from relight.cli import datasets as cli
from relight.datasets import load_tasks
from relight.errors import ConflictError, DatasetError, InvalidRequestError, NotFoundError
from relight.store.database import Database
from relight.store.datasets import named
from relight.store.datasets.client import DatasetClient
from relight.store.datasets.named import find_stored
from tests.support.seeds import seed_run
from tests.support.store_service import TOKEN

ROWS = [{"question": f"{n}+1?", "answer": n + 1} for n in range(100)]


def lines(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def in_pieces(rows: list[Any], size: int = 30) -> list[tuple[int, bytes]]:
    return [(at + 1, lines(rows[at : at + size])) for at in range(0, len(rows), size)]


@pytest.fixture
async def client(store_url: str) -> Any:
    async with DatasetClient(store_url, TOKEN, retry_seconds=10) as found:
        yield found


async def tasks_of(database: Database, dataset_id: str) -> list[Any]:
    rows = await database.pool.fetch("select task from tasks where dataset_id = $1 order by position", dataset_id)
    return [row["task"] for row in rows]


async def test_a_set_that_came_in_pieces_is_the_set_that_its_file_is(
    client: DatasetClient, database: Database, tmp_path: Path
) -> None:
    (tmp_path / "sums.jsonl").write_bytes(lines(ROWS))
    put = await client.put("sums", in_pieces(ROWS))
    assert (put.name, put.rows) == ("sums", 100)
    assert put.dataset_id == load_tasks("sums.jsonl", tmp_path).dataset_id
    assert await tasks_of(database, put.dataset_id) == ROWS
    assert await find_stored(database, "store:sums", ["question"]) == (put.dataset_id, 100)
    assert await find_stored(database, f"dataset:{put.dataset_id}", []) == (put.dataset_id, 100)
    assert await find_stored(database, "sums.jsonl", []) is None
    shown = await client.show("sums", 2)
    assert (shown.sample, shown.runs) == (ROWS[:2], [])
    assert await database.pool.fetchval("select count(*) from dataset_pieces") == 0


async def test_a_set_of_any_json_values_is_shown(client: DatasetClient) -> None:
    rows = ["a", 7, None, [1, {"b": 0.5}], True]
    await client.put("values", [(1, lines(rows))])
    assert (await client.show("values", 5)).sample == rows


async def test_sets_are_listed_by_name_page_by_page(client: DatasetClient, store_url: str) -> None:
    for name in ("b", "a", "c"):
        await client.put(name, [(1, lines([{"name": name}]))])
    assert [view.name for view in await client.list()] == ["a", "b", "c"]
    headers = {"Authorization": f"Bearer {TOKEN}"}
    address = f"{store_url}/v1/relight/datasets?limit=2"
    async with aiohttp.ClientSession(headers=headers) as session, session.get(address) as answer:
        page = await answer.json()
    assert ([view["name"] for view in page["items"]], page["next"]) == (["a", "b"], "b")


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (b'{"question": "x"}\n{"question": \n', "row 61"),
        (b"[1]\n", "row 60: is not an object, so it has no field 'question'"),
        (b'{"answer": 1}\n', "row 60: field 'question' is missing"),
        (b'{"question": null}\n', "row 60: field 'question' is null"),
        (b'{"question": "a\\u0000b"}\n', "row 60, field 'question'"),
        (b'{"question": 36893488147419103232}\n', "row 60, field question: the integer .* write it as a string"),
    ],
)
async def test_a_line_that_is_no_task_is_refused_by_its_number_and_field(
    client: DatasetClient, database: Database, bad: bytes, named: str
) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        await client.put("sums", [(1, lines(ROWS[:59])), (60, bad)], ["question"])
    assert await client.list() == []
    assert await database.pool.fetchval("select count(*) from datasets") == 0


async def test_a_piece_is_bounded_and_what_is_no_name_is_refused(client: DatasetClient) -> None:
    large = b'{"a": "' + b"x" * named.MAX_PIECE_BYTES + b'"}'
    with pytest.raises(InvalidRequestError, match="larger than 8388608 bytes"):
        await client.put("sums", [(1, large)])
    with pytest.raises(InvalidRequestError, match="name: 'Sums' is invalid"):
        await client.put("Sums", in_pieces(ROWS))
    with pytest.raises(DatasetError, match="no rows"):
        await client.put("sums", [])
    with pytest.raises(InvalidRequestError, match="no rows"):
        await client.put("sums", [(1, b"\n\n")])


async def test_pieces_may_come_twice_and_out_of_order_and_none_may_be_missing(database: Database) -> None:
    async def keep(number: int, rows: list[Any]) -> None:
        await named.keep_piece(database, "sums", "u1", number, lines(rows), 1, [])

    await keep(1, ROWS[50:])
    with pytest.raises(InvalidRequestError, match="piece 0 is missing"):
        await named.put_dataset(database, "sums", "u1", 2)
    await keep(0, [{"wrong": True}])
    await keep(0, ROWS[:50])
    with pytest.raises(InvalidRequestError, match="there are 2"):
        await named.put_dataset(database, "sums", "u1", 1)
    views = await asyncio.gather(*[named.put_dataset(database, "sums", "u1", 2) for _ in range(4)])
    assert len({view.dataset_id for view in views}) == 1
    assert await tasks_of(database, views[0].dataset_id) == ROWS


async def test_a_name_keeps_its_rows_unless_they_are_to_be_replaced(client: DatasetClient, database: Database) -> None:
    first = await client.put("sums", in_pieces(ROWS))
    assert (await client.put("sums", in_pieces(ROWS))).dataset_id == first.dataset_id
    with pytest.raises(ConflictError, match="other rows"):
        await client.put("sums", in_pieces(ROWS[:10]))
    second = await client.put("sums", in_pieces(ROWS[:10]), replace=True)
    assert (second.rows, second.dataset_id == first.dataset_id) == (10, False)
    assert await tasks_of(database, first.dataset_id) == []


async def test_what_a_run_uses_stays(client: DatasetClient, database: Database) -> None:
    view = await client.put("sums", in_pieces(ROWS))
    await seed_run(database, "demo")
    await database.pool.execute("update runs set train_dataset = $1 where run = 'demo'", view.dataset_id)
    with pytest.raises(ConflictError, match="is used by demo"):
        await client.delete("sums")
    await client.put("sums", in_pieces(ROWS[:10]), replace=True)
    assert await tasks_of(database, view.dataset_id) == ROWS
    await client.delete("sums")
    with pytest.raises(NotFoundError):
        await client.show("sums")
    with pytest.raises(NotFoundError):
        await client.delete("sums")


async def test_rows_go_with_their_last_name(client: DatasetClient, database: Database) -> None:
    view = await client.put("one", in_pieces(ROWS))
    await client.put("two", in_pieces(ROWS))
    await client.delete("one")
    assert len(await tasks_of(database, view.dataset_id)) == 100
    await client.delete("two")
    assert await database.pool.fetchval("select count(*) from tasks") == 0


async def test_a_set_in_the_store_must_be_there_and_have_the_fields_that_a_run_asks_for(
    client: DatasetClient, database: Database
) -> None:
    with pytest.raises(DatasetError, match="store:sums: the store has no such set"):
        await find_stored(database, "store:sums", [])
    await client.put("sums", [(1, lines([{"a": 1}, {"a": 2, "b": None}]))])
    with pytest.raises(DatasetError, match="row 1: field 'b' is missing"):
        await find_stored(database, "store:sums", ["a", "b"])


async def test_the_command_line_puts_lists_shows_and_removes(
    flags: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sums.jsonl").write_bytes(lines(ROWS))
    await cli.put("sums.jsonl", name="sums", required=["question"])
    await cli.list_()
    await cli.show("sums")
    await cli.remove("sums")
    said = capsys.readouterr().out
    assert "data set sums: 100 rows" in said
    assert "in run files: store:sums" in said
    assert "1+1?" in said
    assert "data set sums removed" in said
    with pytest.raises(DatasetError, match="row 1: field 'colour' is missing"):
        await cli.put("sums.jsonl", name="sums", required=["colour"])
