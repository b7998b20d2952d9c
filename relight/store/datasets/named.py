"""Data sets in the store, by name: uploaded in bounded pieces, then assembled and named.

A set's rows are immutable and identified by their hash, which runs pin; the name decides which rows a new run uses.
Every call may be repeated: a piece that is sent again replaces the earlier one.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from relight.datasets import canonical_lines
from relight.errors import ConflictError, DatasetError, InvalidRequestError, NotFoundError
from relight.store.database import Database, Queries, Transaction
from relight.types.names import RUN_NAME
from relight.types.views import DatasetView, Page, PieceView

MAX_PIECE_BYTES = 8 * 1024 * 1024
FORGOTTEN_SECONDS = 24 * 3600.0
"""How long after its last piece an incomplete upload is kept."""
COMPRESSION = 1


def check_name(name: str) -> str:
    """Check a data set's name, for which the rule of run names holds.

    Raises:
        InvalidRequestError: it is invalid.
    """
    if not RUN_NAME.fullmatch(name):
        raise InvalidRequestError(f"name: {name[:100]!r} is invalid; it must match {RUN_NAME.pattern}")
    return name


async def keep_piece(
    database: Database, name: str, upload: str, piece: int, body: bytes, first_line: int, required: Sequence[str]
) -> PieceView:
    """Check the rows of a piece and store them.

    Raises:
        DatasetError: a line is not a task, or lacks a field; the message names both.
    """
    if piece == 0:
        await database.execute("drop_old_pieces", FORGOTTEN_SECONDS)
    lines = await asyncio.to_thread(canonical_lines, check_name(name), body, first_line, required)
    packed = await asyncio.to_thread(zlib.compress, b"".join(lines), COMPRESSION)
    await database.execute("keep_piece", upload, piece, len(lines), packed)
    return PieceView(upload=upload, piece=piece, rows=len(lines))


async def put_dataset(database: Database, name: str, upload: str, pieces: int, *, replace: bool = False) -> DatasetView:
    """Assemble an upload's pieces under a name.

    Raises:
        InvalidRequestError: a piece is missing.
        DatasetError: it has no rows.
        ConflictError: the name has other rows, and `replace` was not given.
    """
    async with database.transaction() as tx:
        await tx.execute("lock_dataset_name", check_name(name))
        known = await _find(tx, name)
        if known is not None and known["upload"] == upload:
            return _view(known)
        dataset_id = await _assemble(tx, name, upload, pieces)
        if known is not None and known["dataset_id"] != dataset_id and not replace:
            raise ConflictError(
                f"data set {name} has other rows ({known['dataset_id'][:12]}); give these another name, or ask to "
                "replace them: runs that use them keep them"
            )
        await tx.execute("name_dataset", name, dataset_id, upload)
        await tx.execute("drop_pieces", upload)
        if known is not None:
            await _drop_unused(tx, known["dataset_id"])
        return _view(await _get(tx, name))


async def _assemble(tx: Transaction, name: str, upload: str, pieces: int) -> str:
    """Store the rows and return the set's id. One piece at a time is in memory."""
    there = await tx.fetch("list_pieces", upload)
    missing = next((n for n in range(pieces) if n >= len(there) or there[n]["piece"] != n), None)
    if missing is not None or len(there) != pieces:
        what = f"piece {missing} is missing" if missing is not None else f"there are {len(there)}"
        raise InvalidRequestError(f"pieces: the data set has {pieces}, but {what}; first send each piece, from 0 on")
    rows = sum(row["row_count"] for row in there)
    if not rows:
        raise DatasetError(f"data set {name}: it has no rows; give at least one task")
    digest = sha256()
    for piece in range(pieces):
        digest.update(await _piece(tx, upload, piece))
    dataset_id = digest.hexdigest()
    source = f"store:{name}"
    if await tx.row("insert_dataset_once", dataset_id, source, rows):
        position = 0
        for piece in range(pieces):
            lines = (await _piece(tx, upload, piece)).splitlines()
            tasks = [line.decode() for line in lines]
            await tx.execute("insert_tasks_at", dataset_id, position, tasks)
            position += len(tasks)
    return dataset_id


async def _piece(tx: Transaction, upload: str, piece: int) -> bytes:
    row = await tx.one("read_piece", upload, piece)
    return await asyncio.to_thread(zlib.decompress, row["body"])


async def list_datasets(database: Database, after: str = "", limit: int = 100) -> Page[DatasetView]:
    """Named data sets, by name."""
    found = await database.models(DatasetView, "view_datasets", None, after, limit + 1)
    items = found[:limit]
    return Page[DatasetView](items=items, next=items[-1].name if len(found) > limit else None)


async def get_dataset(database: Database, name: str, sample: int = 0) -> DatasetView:
    """A data set by its name, with its first rows.

    Raises:
        NotFoundError: there is none.
    """
    async with database.transaction() as tx:
        view = _view(await _get(tx, name))
        tasks = await tx.fetch("read_tasks", view.dataset_id, sample)
        return view.model_copy(update={"sample": [row["task"] for row in tasks]})


async def delete_dataset(database: Database, name: str) -> None:
    """Delete a data set's name, and its rows if nothing else needs them.

    Raises:
        NotFoundError: there is none.
        ConflictError: runs use it.
    """
    async with database.transaction() as tx:
        await tx.execute("lock_dataset_name", name)
        known = await _get(tx, name)
        await tx.execute("lock_dataset", known["dataset_id"])
        view = _view(await _get(tx, name))  # by now with the runs that were just about to use it
        if view.runs:
            raise ConflictError(f"data set {name} is used by {', '.join(view.runs)}; it can't be removed before them")
        await tx.execute("unname_dataset", name)
        await _drop_unused(tx, view.dataset_id)


async def _drop_unused(tx: Transaction, dataset_id: str) -> None:
    """Delete rows that nothing needs. They are locked first, so that a run which is about to use them is noticed."""
    await tx.execute("lock_dataset", dataset_id)
    await tx.execute("drop_unused_dataset", dataset_id)


async def _find(tx: Transaction, name: str) -> Any | None:
    return await tx.row("view_datasets", name, "", 1)


async def _get(tx: Transaction, name: str) -> Any:
    row = await _find(tx, name)
    if row is None:
        raise NotFoundError(f"there is no data set {name!r}; `relight data list` lists them")
    return row


def _view(row: Any) -> DatasetView:
    return DatasetView.model_validate(dict(row))


async def find_stored(database: Queries, source: str, required: Sequence[str]) -> tuple[str, int] | None:
    """Id and number of rows of a set in the store, named or by its id; None for a path or URL.

    Within a transaction a named set keeps its name, and one that is given by its id its rows, until that ends.

    Raises:
        DatasetError: there is no such set, or a row lacks a field.
    """
    kind, _, name = source.partition(":")
    if kind not in ("store", "dataset"):
        return None
    if isinstance(database, Transaction):
        await database.execute(*(("lock_dataset_name", name) if kind == "store" else ("hold_datasets", [name])))
    row = await database.row("find_named_dataset" if kind == "store" else "get_dataset", name)
    if row is None:
        remedy = "send it with `relight data put`" if kind == "store" else "give a path or a URL"
        raise DatasetError(f"data set {source}: the store has no such set; {remedy}")
    wanted = (row["dataset_id"], list(required))
    lacking = await database.row("row_without_field", *wanted) if required else None
    if lacking is not None:
        state = "is null" if lacking["given"] else "is missing"
        raise DatasetError(
            f"data set {source}, row {lacking['position'] + 1}: field {lacking['field']!r} {state}; "
            "`data.required_fields` asks for it"
        )
    return str(row["dataset_id"]), int(row["row_count"])
