"""Commit model calls: many in one transaction, their bodies once a day by content hash.

A call number that is taken by the same request is committed already; by another one, it must be numbered anew. An item
that Postgres refuses is tried alone, so that it fails alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from hashlib import sha256
from typing import Any

import orjson

from relight.errors import InvalidRequestError
from relight.store.database import Connection, Database
from relight.store.storable import storable, storable_text
from relight.types.wire import CommitResult, GenerationRecord, UndeliveredCall

COMPRESSION = 1
"""zlib's fastest: bodies are written once and hardly ever read."""
COMMITTED = CommitResult(state="committed")


@dataclass(frozen=True)
class Entry:
    """An attempt that model calls are about to be recorded for."""

    rollout_id: str
    day: date
    token_hash: str
    alive: bool


@dataclass(frozen=True)
class Body:
    """Compressed JSON and its hash."""

    hash: bytes
    data: bytes


def pack_body(content: dict[str, Any]) -> Body:
    """A body as it is stored."""
    try:
        text = orjson.dumps(content)
    except TypeError:  # integers beyond 64 bits, lone surrogates
        text = orjson.dumps(storable(content))
    return Body(sha256(text).digest(), zlib.compress(text, COMPRESSION))


def unpack_body(data: bytes) -> Any:
    """The JSON value of a stored body."""
    return orjson.loads(zlib.decompress(data))


def generation_rows(item: GenerationRecord, entry: Entry, request: Body, response: Body) -> list[tuple[Any, ...]]:
    """Arguments of `add_generation`, a row a choice."""
    shared_sampling = storable(item.sampling)
    return [
        (
            entry.day,
            item.rollout_id,
            item.attempt_id,
            item.call_number,
            choice.index,
            storable_text(item.request_hash),
            storable_text(item.route),
            request.hash,
            response.hash,
            item.prompt_token_ids,
            choice.response_token_ids,
            choice.logprobs,
            shared_sampling,
            item.seed,
            storable_text(item.engine_id),
            storable_text(item.model),
            None if choice.finish_reason is None else storable_text(choice.finish_reason),
            choice.complete,
            item.delivered,
            item.duration_seconds,
            0.0,
            item.duration_seconds,
        )
        for choice in item.choices
    ]


class Commit:
    """One transaction's worth of model calls."""

    def __init__(self, connection: Connection, database: Database, items: Sequence[GenerationRecord]) -> None:
        self.connection = connection
        self.database = database
        self.items = items
        self.entries: dict[str, Entry] = {}
        self.taken: dict[tuple[str, int], str] = {}
        self.bodies: dict[tuple[date, bytes], bytes] = {}
        self.rows: list[tuple[Any, ...]] = []

    async def run(self) -> list[CommitResult]:
        """Record what can be recorded; one result an item."""
        await self._enter()
        results = [await self._judge(item) for item in self.items]
        ordered = sorted((day, hash_, data) for (day, hash_), data in self.bodies.items())
        if self.rows:
            await self.database.execute_many("add_body", ordered, self.connection)
            await self.database.execute_many("add_generation", self.rows, self.connection)
        return results

    async def _enter(self) -> None:
        tokens = {item.attempt_id: item.token_hash for item in self.items}
        found = await self.database.fetch(
            "enter_generations", list(tokens), list(tokens.values()), connection=self.connection
        )
        self.entries = {row[0]: Entry(*row[1:]) for row in found}
        calls = {(item.attempt_id, item.call_number) for item in self.items}
        taken = await self.database.fetch(
            "taken_calls",
            list({entry.day for entry in self.entries.values()}),
            [attempt for attempt, _ in calls],
            [number for _, number in calls],
            connection=self.connection,
        )
        self.taken = {(row[0], row[1]): row[2] for row in taken}

    async def _judge(self, item: GenerationRecord) -> CommitResult:
        entry = self.entries.get(item.attempt_id)
        if entry is None or entry.rollout_id != item.rollout_id or entry.token_hash != item.token_hash:
            return CommitResult(state="conflict", reason="the token is not this attempt's")
        key = (item.attempt_id, item.call_number)
        holder = self.taken.get(key)
        if holder == item.request_hash:
            return COMMITTED
        if not entry.alive:
            return CommitResult(state="conflict", reason="the attempt is over")
        if holder is not None:
            return CommitResult(
                state="renumber",
                reason=f"call {item.call_number} is another request's",
                next_call_number=await self._free_number(item.attempt_id, entry.day),
            )
        self._add(item, entry)
        self.taken[key] = item.request_hash
        return COMMITTED

    async def _free_number(self, attempt_id: str, day: date) -> int:
        stored = await self.database.value("next_call_number", day, attempt_id, connection=self.connection)
        return max([int(stored), *(number + 1 for attempt, number in self.taken if attempt == attempt_id)])

    def _add(self, item: GenerationRecord, entry: Entry) -> None:
        if not item.choices:
            raise InvalidRequestError(f"call {item.call_number} of attempt {item.attempt_id} has no choices")
        request, response = pack_body(item.request), pack_body(item.response)
        for body in (request, response):
            self.bodies[entry.day, body.hash] = body.data
        self.rows += generation_rows(item, entry, request, response)


async def commit_together(database: Database, items: Sequence[GenerationRecord]) -> list[CommitResult]:
    """All items in one transaction."""
    async with database.transaction() as connection:
        return await Commit(connection, database, items).run()


async def commit_generations(database: Database, items: Sequence[GenerationRecord]) -> list[CommitResult]:
    """All items in one transaction; where one of them can't be stored, each in its own."""
    if not items:
        return []
    try:
        return await commit_together(database, items)
    except InvalidRequestError as error:
        if len(items) == 1:
            return [CommitResult(state="conflict", reason=f"not storable: {error.message}")]
    return [result for item in items for result in await commit_generations(database, [item])]


def undelivered(rows: Iterable[Any]) -> list[UndeliveredCall]:
    """Calls whose answer may not have arrived, from rows of `undelivered_calls`."""
    return [
        UndeliveredCall(
            call_number=row["call_number"],
            request_hash=row["request_hash"],
            delivered=row["delivered"],
            response=unpack_body(row["response"]),
        )
        for row in rows
    ]
