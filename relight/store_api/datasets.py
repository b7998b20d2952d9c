"""Data sets over HTTP: `PUT` their pieces, then `PUT` the name of the whole set."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from relight.store.database import Database
from relight.store.datasets import named as datasets
from relight.types.views import DatasetView, Page, PieceView

router = APIRouter(prefix="/v1/relight/datasets", tags=["data sets"])
MAX_SAMPLE = 100
LINES = {"requestBody": {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}}
"""In the OpenAPI schema. Any media type is taken for JSONL."""
Upload = Annotated[str, Query(min_length=1, max_length=100, description="Names the upload; the caller makes it up.")]


class PutDataset(BaseModel):
    """Which pieces make a data set."""

    model_config = ConfigDict(extra="forbid")

    upload: str = Field(min_length=1, max_length=100)
    pieces: int = Field(ge=1, le=100_000)
    replace: bool = False
    """Replace the rows of this name. Runs that use the old rows keep them."""


def _database(request: Request) -> Database:
    return request.app.state.database


@router.put("/{name}/pieces/{piece}", openapi_extra=LINES)
async def put_piece(
    request: Request,
    name: str,
    piece: Annotated[int, Path(ge=0, lt=100_000)],
    upload: Upload,
    first_line: Annotated[int, Query(ge=1, description="Number of its first line, which errors count from.")] = 1,
    required: Annotated[list[str], Query(description="Fields that each row must have.")] = [],  # noqa: B006 (FastAPI copies)
) -> PieceView:
    """Send a piece of a data set: whole lines of JSONL, 8 MiB at most. The same piece again replaces it."""
    body = await _read(request)
    return await datasets.keep_piece(_database(request), name, upload, piece, body, first_line, required)


async def _read(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > datasets.MAX_PIECE_BYTES:
            raise HTTPException(413, f"a piece is larger than {datasets.MAX_PIECE_BYTES} bytes; send fewer lines")
    return bytes(body)


@router.put("/{name}")
async def put_dataset(request: Request, name: str, body: PutDataset) -> DatasetView:
    """Put the pieces of an upload together under a name."""
    return await datasets.put_dataset(_database(request), name, body.upload, body.pieces, replace=body.replace)


@router.get("")
async def read_datasets(
    request: Request, after: str = "", limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> Page[DatasetView]:
    """Data sets by name, after `after`."""
    return await datasets.list_datasets(_database(request), after, limit)


@router.get("/{name}")
async def read_dataset(
    request: Request, name: str, sample: Annotated[int, Query(ge=0, le=MAX_SAMPLE)] = 0
) -> DatasetView:
    """A data set, and its first rows."""
    return await datasets.get_dataset(_database(request), name, sample)


@router.delete("/{name}", status_code=204)
async def delete_dataset(request: Request, name: str) -> None:
    """Delete a data set that no run uses."""
    await datasets.delete_dataset(_database(request), name)
