"""Data sets: the same rows are the same set; a row at fault is named."""

from __future__ import annotations

import datetime
import gzip
import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.datasets import load_tasks, stored_id
from relight.errors import DatasetError

ROWS = [{"question": "2+3?", "answer": 5}, {"answer": 6, "question": "7-1?"}]


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_same_rows_are_the_same_set_in_every_format(tmp_path: Path) -> None:
    plain = load_tasks(str(write_jsonl(tmp_path / "a.jsonl", ROWS)), "/")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "c.parquet")
    packed, columns = load_tasks("b.jsonl.gz", tmp_path), load_tasks("c.parquet", tmp_path)
    assert plain.rows == packed.rows == columns.rows == ROWS
    assert plain.dataset_id == packed.dataset_id == columns.dataset_id
    assert len(plain.dataset_id) == 64


def test_another_row_or_another_order_is_another_set(tmp_path: Path) -> None:
    ids = {
        load_tasks(str(write_jsonl(tmp_path / "a.jsonl", rows)), tmp_path).dataset_id
        for rows in (ROWS, ROWS[::-1], ROWS[:1], [*ROWS, ROWS[0]])
    }
    assert len(ids) == 4


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_set_is_read_by_url(tmp_path: Path, served: str, name: str) -> None:
    write_jsonl(tmp_path / "a.jsonl", ROWS)
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    assert load_tasks(f"{served}/{name}", "/nowhere").rows == ROWS


def test_a_url_that_does_not_answer_is_named(served: str) -> None:
    with pytest.raises(DatasetError, match=r"http://.*/missing\.jsonl: can't be read"):
        load_tasks(f"{served}/missing.jsonl", "/")


def test_a_protocol_without_its_package_or_name_is_an_error() -> None:
    with pytest.raises(DatasetError, match="nosuch://x"):
        load_tasks("nosuch://x/y.jsonl", "/")


def test_parquet_values_that_json_knows_another_way_are_converted(tmp_path: Path) -> None:
    row = {"when": datetime.datetime(2024, 5, 1, 12, 0), "parts": [{"a": 1}]}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    assert load_tasks("a.parquet", tmp_path).rows == [{"when": "2024-05-01T12:00:00", "parts": [{"a": 1}]}]


def test_bytes_in_parquet_name_file_row_and_field(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([{"a": 1, "image": b"\x01"}]), tmp_path / "a.parquet")
    with pytest.raises(DatasetError, match=r"a\.parquet, row 1, field image: .*bytes"):
        load_tasks("a.parquet", tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"question": "a"}\n\n{"question": \n', r"row 3: not JSON"),
        ('{"question": "a"}\n[1]\n', r"row 2: a JSON array"),
        ("", r"no rows"),
        ("\n \n", r"no rows"),
        ('{"question": "a"}\n{"answer": 1}\n', r"row 2: field 'question' is missing \(the row has: answer\)"),
        ('{"question": null}\n', r"row 1: field 'question' is null"),
        ('{"question": "a\\u0000b"}\n', r"row 1, field 'question': holds the character U\+0000"),
        ("question,answer\n1,2\n", r"row 1: not JSON"),
        ("PAR1 but not really", r"damaged"),
    ],
)
def test_a_row_at_fault_is_one_message_with_file_and_row(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "tasks.jsonl").write_text(content)
    with pytest.raises(DatasetError, match=message) as raised:
        load_tasks("tasks.jsonl", tmp_path, ["question"])
    assert "tasks.jsonl" in raised.value.message
    assert "\n" not in raised.value.message


def test_a_missing_file_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=f"there is no file {tmp_path}/nope.jsonl; relative paths start at"):
        load_tasks("nope.jsonl", tmp_path)


def test_a_directory_is_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="is a directory"):
        load_tasks(".", tmp_path)


def test_a_truncated_archive_is_an_error_of_the_data_set(tmp_path: Path) -> None:
    packed = gzip.compress(b'{"a": 1}\n' * 10_000)
    (tmp_path / "a.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DatasetError, match=r"a\.jsonl\.gz"):
        load_tasks("a.jsonl.gz", tmp_path)


def test_a_byte_order_mark_is_not_part_of_the_first_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\n')
    assert load_tasks("a.jsonl", tmp_path).rows == [{"a": 1}]


def test_a_set_in_the_store_is_told_from_a_path() -> None:
    assert stored_id("dataset:abc") == "abc"
    assert stored_id("data/train.jsonl") is None


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(exclude_characters="\0", codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('ab"\\é', max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(rows=st.lists(st.dictionaries(st.text("xyz", min_size=1), json_values, max_size=3), min_size=1, max_size=5))
def test_what_was_written_is_what_is_read(rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = write_jsonl(tmp_path_factory.mktemp("rows") / "rows.jsonl", rows)
    first = load_tasks(str(path), "/")
    shuffled = write_jsonl(path, [dict(reversed(row.items())) for row in rows])
    assert first.rows == rows
    assert load_tasks(str(shuffled), "/").dataset_id == first.dataset_id
