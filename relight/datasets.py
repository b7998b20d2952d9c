"""Reading data sets: JSONL or Parquet, by path or URL, one JSON object a task.

A set's id is the SHA-256 of its rows in canonical JSON, so the same rows are the same set wherever they lie and
whichever format holds them. Blocking; call it from a thread. It does not write to the store.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

import fsspec
import orjson

from relight.errors import DatasetError

STORED_PREFIX = "dataset:"
PARQUET_MAGIC = b"PAR1"
WHERE_PATHS_START = "relative paths start at the data root (`relight config` shows it)"


@dataclass(frozen=True)
class Tasks:
    """A data set in memory."""

    rows: list[dict[str, Any]]
    dataset_id: str
    source: str


def stored_id(source: str) -> str | None:
    """The id of a set that is in the store already (`dataset:<id>`), or None for a path or URL."""
    return source.removeprefix(STORED_PREFIX) if source.startswith(STORED_PREFIX) else None


def load_tasks(source: str, data_root: Path | str, required_fields: Sequence[str] = ()) -> Tasks:
    """Read all rows, check them, and name the set by its content.

    Raises:
        DatasetError: out of reach, empty, or a row at fault; the message names file, row and field.
    """
    digest = hashlib.sha256()
    rows: list[dict[str, Any]] = []
    for number, row in read_rows(source, data_root):
        canonical = _canonical(source, number, row)
        _require(source, number, row, required_fields)
        digest.update(canonical + b"\n")
        rows.append(orjson.loads(canonical))
    if not rows:
        raise DatasetError(f"data set {source}: it has no rows; give at least one task")
    return Tasks(rows, digest.hexdigest(), source)


def read_rows(source: str, data_root: Path | str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows with their numbers, from 1; in JSONL the number is that of the line."""
    with _opened(source, data_root) as file:
        magic = file.read(len(PARQUET_MAGIC))
        file.seek(0)
        yield from _read_parquet(source, file) if magic == PARQUET_MAGIC else _read_jsonl(source, file)


def _read_jsonl(source: str, file: IO[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(file, start=1):
        text = line.removeprefix(b"\xef\xbb\xbf").strip() if number == 1 else line.strip()
        if not text:
            continue
        try:
            row = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise DatasetError(
                f"data set {source}, row {number}: not JSON ({error.msg}, column {error.colno}); "
                "a data set is Parquet, or JSONL with one JSON object a line"
            ) from error
        if not isinstance(row, dict):
            kind = "array" if isinstance(row, list) else type(row).__name__
            raise DatasetError(f"data set {source}, row {number}: a JSON {kind}, where each line must be one object")
        yield number, row


def _read_parquet(source: str, file: IO[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
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
    """The file, seekable: what comes over a network passes through a temporary file."""
    remote = "://" in source
    try:
        place = source if remote else str(_local(source, data_root))
        opened: Any = fsspec.open(place, "rb", compression="infer")
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
        raise DatasetError(f"data set {source}: reading it needs another package ({error})") from error
    # fsspec's file systems have no common error type: whatever an open or a read raises means out of reach.
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


def _canonical(source: str, number: int, row: dict[str, Any]) -> bytes:
    try:
        canonical = orjson.dumps(row, default=_plain, option=orjson.OPT_SORT_KEYS)
    except TypeError as error:
        field = next((name for name, value in row.items() if not _serializable(value)), "?")
        raise DatasetError(
            f"data set {source}, row {number}, field {field}: {error}; convert it to text or numbers"
        ) from error
    if b"\\u0000" in canonical and _holds_nul(row):
        field = next(name for name, value in row.items() if _holds_nul(value) or "\0" in name)
        raise DatasetError(
            f"data set {source}, row {number}, field {field!r}: holds the character U+0000, which Postgres can't store"
        )
    return canonical


def _require(source: str, number: int, row: dict[str, Any], fields: Sequence[str]) -> None:
    for field in fields:
        if row.get(field) is None:
            state = "is null" if field in row else "is missing"
            raise DatasetError(
                f"data set {source}, row {number}: field {field!r} {state} (the row has: {', '.join(map(str, row))}); "
                "`data.required_fields` asks for it"
            )


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"a value of type {type(value).__name__} has no form in JSON")


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
