"""Reading data sets: JSONL or Parquet, by path or URL, one JSON value a task.

A set's id is the SHA-256 of its rows in canonical JSON, so the same rows are the same set wherever they lie and
whichever format holds them. Blocking; call it from a thread. It does not write to the store.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

import fsspec
import orjson
from pydantic import BaseModel

from relight.errors import DatasetError
from relight.types.checking import MOST_LEVELS, depth_of
from relight.types.core import Dataset

STORED_PREFIXES = ("store:", "dataset:")
"""Of sets that are in the store already: by name, or by id."""
PARQUET_MAGIC = b"PAR1"
_LARGEST, _SMALLEST = 2**64 - 1, -(2**63)
"""The integers that a row can hold: orjson makes floats of others, and says nothing."""
_MAY_HOLD_FLOATS = frozenset((float, dict, list))
_DIGITS = bytes(ord("0") if chr(byte).isdecimal() else 0 for byte in range(128)) + bytes(128)
_LONG = b"0" * 19
"""The digits of the shortest integer that may be beyond them."""
WHERE_PATHS_START = "relative paths start at the data root (`relight config` shows it)"


@dataclass(frozen=True)
class Tasks:
    """A data set in memory."""

    rows: list[Any]
    dataset_id: str
    source: str


def is_stored(source: str) -> bool:
    """Whether it names a data set in the store, not a path or URL."""
    return source.startswith(STORED_PREFIXES)


def load_tasks(source: str, data_root: Path | str, required_fields: Sequence[str] = ()) -> Tasks:
    """Read and check all rows, and compute the data set's id from its content.

    Raises:
        DatasetError: it can't be read, is empty, or a row is wrong; the message names file, row and field.
    """
    return _tasks(source, read_rows(source, data_root), required_fields)


def tasks_of(dataset: Dataset[Any], source: str, required_fields: Sequence[str] = ()) -> Tasks:
    """The tasks of a data set in memory, as a file of them would hold them: pydantic objects as their fields.

    Args:
        dataset: any JSON values or pydantic objects, by position.
        source: what errors call it.

    Raises:
        DatasetError: it is empty, or a row is wrong; the message names its index, from 0, and the field.
    """
    return _tasks(source, ((index, dataset[index]) for index in range(len(dataset))), required_fields)


def _tasks(source: str, numbered: Iterable[tuple[int, Any]], required_fields: Sequence[str]) -> Tasks:
    digest = hashlib.sha256()
    rows: list[Any] = []
    for number, row in numbered:
        line = _checked(source, number, row, required_fields)
        digest.update(line)
        rows.append(orjson.loads(line))
    if not rows:
        raise DatasetError(f"data set {source}: it has no rows; give at least one task")
    return Tasks(rows, digest.hexdigest(), source)


def canonical_lines(source: str, body: bytes, first_line: int, required_fields: Sequence[str] = ()) -> list[bytes]:
    """The rows of a piece of JSONL that begins at this line, each in canonical JSON with its newline.

    Raises:
        DatasetError: a row is wrong; the message names line and field.
    """
    return [
        _checked(source, number, row, required_fields)
        for number, row in _read_jsonl(source, body.split(b"\n"), first_line)
    ]


def read_pieces(
    source: str, data_root: Path | str, required_fields: Sequence[str], max_bytes: int
) -> Iterator[tuple[int, bytes]]:
    """A data set as JSONL in pieces, each with the number of its first row; in JSONL that of its line.

    Raises:
        DatasetError: it can't be read, or a row is wrong or larger than a piece.
    """
    piece, first, following = bytearray(), 1, 1
    for number, row in read_rows(source, data_root):
        line = _checked(source, number, row, required_fields)
        if len(line) > max_bytes:
            raise DatasetError(f"data set {source}, row {number}: {len(line)} bytes; the limit is {max_bytes}")
        blank = b"\n" * (number - following) if piece else b""  # lines without a row keep the others' numbers right
        if len(piece) + len(blank) + len(line) > max_bytes:
            yield first, bytes(piece)
            piece, blank = bytearray(), b""
        first = first if piece else number
        piece += blank + line
        following = number + 1
    if piece:
        yield first, bytes(piece)


def _checked(source: str, number: int, row: Any, required_fields: Sequence[str]) -> bytes:
    row = row.model_dump(mode="json") if isinstance(row, BaseModel) else row
    canonical = _canonical(source, number, row)
    _require(source, number, row, required_fields)
    return canonical + b"\n"


def read_rows(source: str, data_root: Path | str) -> Iterator[tuple[int, Any]]:
    """The rows with their numbers, from 1; in JSONL the number is that of the line."""
    with _opened(source, data_root) as file:
        magic = file.read(len(PARQUET_MAGIC))
        file.seek(0)
        yield from _read_parquet(source, file) if magic == PARQUET_MAGIC else _read_jsonl(source, file)


def _read_jsonl(source: str, file: Iterable[bytes], first_line: int = 1) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(file, start=first_line):
        text = line.removeprefix(b"\xef\xbb\xbf").strip() if number == 1 else line.strip()
        if not text:
            continue
        try:
            row = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise DatasetError(
                f"data set {source}, row {number}: not JSON ({error.msg}, column {error.colno}); "
                "a data set is Parquet, or JSONL with one JSON value a line"
            ) from error
        values = row.values() if isinstance(row, dict) else (row,)
        if not _MAY_HOLD_FLOATS.isdisjoint(map(type, values)) and _has_long_number(text):
            _refuse_large_integers(source, number, text)
        yield number, row


def _has_long_number(text: bytes) -> bool:
    """Whether 19 digits follow each other; four of every fourth byte do so then, which is quicker to see."""
    return _LONG[:4] in text[::4].translate(_DIGITS) and _LONG in text.translate(_DIGITS)


def _refuse_large_integers(source: str, number: int, text: bytes) -> None:
    try:
        row = json.loads(text, parse_int=Decimal)
        found = next(_large_integers(row, ""), None)
    except RecursionError:
        return  # a row nested so deeply has no canonical form either
    if found is not None:
        field, value = found
        raise DatasetError(f"data set {source}, row {number}{_at(field)}: {_too_large(value)}")


def _at(field: str) -> str:
    """Where in a row something is; a row that is no object has no fields."""
    return f", field {field}" if field else ""


def _fields(row: Any) -> Iterable[tuple[str, Any]]:
    return row.items() if isinstance(row, dict) else [("", row)]


def _large_integers(value: Any, field: str) -> Iterator[tuple[str, Decimal]]:
    if isinstance(value, Decimal) and not _SMALLEST <= value <= _LARGEST:
        yield field, value
    elif isinstance(value, dict | list):
        items: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else enumerate(value)
        for name, item in items:
            yield from _large_integers(item, f"{field}.{name}" if field else str(name))


def _too_large(value: Decimal) -> str:
    digits = str(value)
    shown = digits if len(digits) <= 40 else f"{digits[:40]}..."
    return f"the integer {shown} has more than 64 bits; write it as a string"


def _read_parquet(source: str, file: IO[bytes]) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        for batch in pq.ParquetFile(file).iter_batches():
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except (pa.ArrowInvalid, OSError) as error:
        raise DatasetError(f"data set {source}, after row {number}: the Parquet file is damaged ({error})") from error


@contextmanager
def _opened(source: str, data_root: Path | str) -> Generator[IO[bytes]]:
    """The file, seekable: a file from the network is copied to a temporary one."""
    remote = "://" in source
    try:
        address = source if remote else str(_local(source, data_root))
        opened: Any = fsspec.open(address, "rb", compression="infer")
        with opened as file:
            if not remote:
                yield file
                return
            with tempfile.TemporaryFile() as copy:
                shutil.copyfileobj(file, copy)
                copy.seek(0)
                yield copy
    except DatasetError:
        raise
    except ImportError as error:
        raise DatasetError(f"data set {source}: a package is missing to read it ({error})") from error
    # fsspec's file systems have no common error type: any error of an open or a read means that it can't be read.
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise DatasetError(f"data set {source}: can't be read ({reason})") from error


def _local(source: str, data_root: Path | str) -> Path:
    path = Path(data_root) / Path(source).expanduser()
    if path.is_dir():
        raise DatasetError(f"data set {source}: {path.resolve()} is a directory; name a JSONL or Parquet file")
    if not path.exists():
        raise DatasetError(f"data set {source}: there is no file {path.resolve()}; {WHERE_PATHS_START}")
    return path


def _canonical(source: str, number: int, row: Any) -> bytes:
    try:
        canonical = orjson.dumps(row, default=_plain, option=orjson.OPT_SORT_KEYS)
    except TypeError as error:
        _refuse_deep(source, number, row)
        field = next((name for name, value in _fields(row) if not _serializable(value)), "?")
        too_large = isinstance(error.__cause__, OverflowError)
        reason = str(error.__cause__) if too_large else f"{error}; convert it to text or numbers"
        raise DatasetError(f"data set {source}, row {number}{_at(field)}: {reason}") from error
    if canonical.count(b"[") + canonical.count(b"{") > MOST_LEVELS:
        _refuse_deep(source, number, row)
    if b"\\u0000" in canonical and _holds_nul(row):
        field = next(name for name, value in _fields(row) if _holds_nul(value) or "\0" in name)
        where = f", field {field!r}" if field else ""
        raise DatasetError(
            f"data set {source}, row {number}{where}: holds the character U+0000, which Postgres can't store"
        )
    return canonical


def _refuse_deep(source: str, number: int, row: Any) -> None:
    if depth_of(row) > MOST_LEVELS:
        field = next((name for name, value in _fields(row) if depth_of(value) >= MOST_LEVELS), "")
        raise DatasetError(
            f"data set {source}, row {number}{_at(field)}: nested more than {MOST_LEVELS} levels deep; write it "
            "flatter, or as JSON in a text"
        )


def _require(source: str, number: int, row: Any, fields: Sequence[str]) -> None:
    for field in fields:
        if not isinstance(row, dict):
            raise DatasetError(
                f"data set {source}, row {number}: is not an object, so it has no field {field!r}; "
                "`data.required_fields` asks for it"
            )
        if row.get(field) is None:
            state = "is null" if field in row else "is missing"
            raise DatasetError(
                f"data set {source}, row {number}: field {field!r} {state} (the row has: {', '.join(map(str, row))}); "
                "`data.required_fields` asks for it"
            )


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        if value.as_tuple().exponent == 0 and not _SMALLEST <= value <= _LARGEST:
            raise OverflowError(_too_large(value))
        return float(value)
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"a value of type {type(value).__name__} can't be represented in JSON")


def _serializable(value: Any) -> bool:
    try:
        orjson.dumps(value, default=_plain)
    except TypeError:
        return False
    return True


def _holds_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(_holds_nul(key) or _holds_nul(item) for key, item in value.items())
    return isinstance(value, list | tuple) and any(_holds_nul(item) for item in value)
