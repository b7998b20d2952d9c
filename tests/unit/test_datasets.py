"""Data sets: the same rows are the same set; a row at fault is named."""

from __future__ import annotations

import datetime
import gzip
import hashlib
import json
import threading
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from relight.datasets import canonical_lines, is_stored, load_tasks, read_pieces, tasks_of
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


class Sum(BaseModel):
    question: str
    answer: int


def test_a_data_set_in_memory_is_that_of_a_file_with_the_same_tasks(tmp_path: Path) -> None:
    file = load_tasks(str(write_jsonl(tmp_path / "a.jsonl", [*ROWS, {"sums": ROWS}, 7, None])), "/")
    sums = [Sum.model_validate(row) for row in ROWS]
    memory = tasks_of([sums[0], ROWS[1], {"sums": sums}, 7, None], "train_dataset")
    assert (memory.rows, memory.dataset_id) == (file.rows, file.dataset_id)


@pytest.mark.parametrize(
    ("tasks", "says"),
    [
        ([1, {"x": object()}], "data set train_dataset, row 1, field x: "),
        ([object()], "data set train_dataset, row 0: "),
        ([1, 2, 2**64], "data set train_dataset, row 2: "),
        ([], "it has no rows"),
    ],
)
def test_a_task_that_is_no_json_is_named_by_its_index(tasks: list[Any], says: str) -> None:
    with pytest.raises(DatasetError, match=says):
        tasks_of(tasks, "train_dataset")


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


def test_parquet_values_that_json_represents_differently_are_converted(tmp_path: Path) -> None:
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
        ('{"question": "a"}\n[1]\n', r"row 2: is not an object, so it has no field 'question'"),
        ('{"question": "a"}\nnull\n', r"row 2: is not an object, so it has no field 'question'"),
        ("", r"no rows"),
        ("\n \n", r"no rows"),
        ('{"question": "a"}\n{"answer": 1}\n', r"row 2: field 'question' is missing \(the row has: answer\)"),
        ('{"question": null}\n', r"row 1: field 'question' is null"),
        ('{"question": "a\\u0000b"}\n', r"row 1, field 'question': holds the character U\+0000"),
        ("question,answer\n1,2\n", r"row 1: not JSON"),
        (
            '{"question": 1}\n' + "[" * 129 + "]" * 129,
            r"row 2: nested more than 128 levels deep; write it flatter, or as JSON in a",
        ),
        ('{"a": ' + "[" * 300 + "]" * 300 + "}", r"row 1, field a: nested more than 128 levels deep"),
        ("PAR1 but not really", r"damaged"),
    ],
)
def test_a_row_at_fault_is_one_message_with_file_and_row(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "tasks.jsonl").write_text(content)
    with pytest.raises(DatasetError, match=message) as raised:
        load_tasks("tasks.jsonl", tmp_path, ["question"])
    assert "tasks.jsonl" in raised.value.message
    assert "\n" not in raised.value.message


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ('{"id": 18446744073709551616}', "field id: the integer 18446744073709551616 has more than 64 bits; write it"),
        ('{"id": -9223372036854775809}', "field id: the integer -9223372036854775809 has more than 64 bits"),
        ('{"a": {"ids": [1, 123456789012345678901]}}', r"field a\.ids\.1: the integer 123456789012345678901 has more"),
        ('{"id": ' + "9" * 300 + "}", r"field id: the integer 9{40}\.\.\. has more than 64 bits"),
    ],
)
def test_an_integer_that_would_become_a_float_is_refused_with_row_and_field(
    tmp_path: Path, row: str, fault: str
) -> None:
    (tmp_path / "tasks.jsonl").write_text(f'{{"id": 1}}\n\n{row}\n')
    with pytest.raises(DatasetError, match=f"row 3, {fault}"):
        load_tasks("tasks.jsonl", tmp_path)
    with pytest.raises(DatasetError, match=f"row 7, {fault}"):
        canonical_lines("sums", row.encode(), 7)


def test_whole_numbers_in_parquet_with_more_than_64_bits_are_refused(tmp_path: Path) -> None:
    column = pa.array([Decimal(5), Decimal(2**64)], pa.decimal128(38, 0))
    pq.write_table(pa.table({"id": column}), tmp_path / "a.parquet")
    with pytest.raises(DatasetError, match=r"row 2, field id: the integer 18446744073709551616 .* write it as a str"):
        load_tasks("a.parquet", tmp_path)


@given(st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False, allow_infinity=False))
def test_every_integer_of_64_bits_and_every_text_of_digits_is_read_as_it_is(whole: int, number: float) -> None:
    row = {"a": whole, "b": [whole, number], "c": {"text": "9" * 30}, "d": f"{'1' * 25}", "e": 1e300}
    [line] = canonical_lines("x", json.dumps(row).encode(), 1)
    assert orjson.loads(line) == row


def test_a_missing_file_is_named_with_its_resolved_path(tmp_path: Path) -> None:
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


def test_a_set_in_the_store_is_distinguished_from_a_path() -> None:
    assert is_stored("dataset:abc")
    assert is_stored("store:abc")
    assert not is_stored("data/train.jsonl")
    assert not is_stored("s3://bucket/store")


@pytest.mark.parametrize("limit", [30, 50, 10_000])
def test_pieces_hold_the_rows_and_hash_of_the_whole_and_keep_the_numbers_of_lines(tmp_path: Path, limit: int) -> None:
    lines = ['{"b": 1, "a": "é"}', "", '{"a": 2}', "  ", "", '{"a": [1.5, null]}', '{"a": 3}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    whole = load_tasks("a.jsonl", tmp_path)
    pieces = list(read_pieces("a.jsonl", tmp_path, [], limit))
    assert all(len(piece) <= limit for _, piece in pieces)
    rows = [line for first, piece in pieces for line in canonical_lines("x", piece, first)]
    assert [json.loads(line) for line in rows] == whole.rows
    assert hashlib.sha256(b"".join(rows)).hexdigest() == whole.dataset_id
    for first, piece in pieces:  # what a line of a piece says is what the file's line of that number says
        for offset, line in enumerate(piece.decode().split("\n")[:-1]):
            original = lines[first - 1 + offset].strip()
            assert (json.loads(line) if line else "") == (json.loads(original) if original else "")


def test_a_row_that_no_piece_can_hold_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": "' + "x" * 100 + '"}\n')
    with pytest.raises(DatasetError, match="row 2: 109 bytes; the limit is 50"):
        list(read_pieces("a.jsonl", tmp_path, [], 50))


def test_a_fault_in_a_piece_names_the_line_of_the_whole() -> None:
    with pytest.raises(DatasetError, match=r"data set sums, row 41: not JSON"):
        canonical_lines("sums", b'{"a": 1}\n{"a": \n', 40)
    with pytest.raises(DatasetError, match="data set sums, row 40: field 'question' is missing"):
        canonical_lines("sums", b'{"a": 1}', 40, ["question"])


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


@pytest.mark.parametrize("task", [None, "a text", 7, 2**64 - 1, 1.5, True, ["a", {"b": 1}], {"question": "a"}])
def test_a_task_is_any_json_value(tmp_path: Path, task: object) -> None:
    (tmp_path / "tasks.jsonl").write_text(json.dumps(task) + "\n")
    assert load_tasks("tasks.jsonl", tmp_path).rows == [task]


@pytest.mark.parametrize(
    ("task", "message"),
    [("36893488147419103232", "row 1: the integer .* write it as a string"), ('"a\\u0000b"', "row 1: holds the char")],
)
def test_a_task_value_that_cannot_be_stored_is_refused_by_its_row(tmp_path: Path, task: str, message: str) -> None:
    (tmp_path / "tasks.jsonl").write_text(f"{task}\n")
    with pytest.raises(DatasetError, match=message):
        load_tasks("tasks.jsonl", tmp_path)
