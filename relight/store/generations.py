"""Commits model calls: many in one transaction, their bodies by content hash, once a day.

A call whose number is used by the same request is committed already; if another request uses it, the call has to be
renumbered. If Postgres refuses an item, the items are committed one by one, so that only this one fails.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

import orjson

from relight.errors import InvalidRequestError
from relight.observability.redaction import Redactor
from relight.store.database import Database
from relight.store.storable import storable, storable_text
from relight.types.wire import CommitResult, GenerationRecord, UndeliveredCall

COMPRESSION = 1
"""zlib's fastest level: bodies are written once and rarely read."""
LONGEST_RESPONSE_ID = 200
"""Ids of engines have about 45 characters; a provider's longer one is not indexed."""
COMMITTED = CommitResult(state="committed")
FOREIGN = CommitResult(state="conflict", reason="the token is not this attempt's")
ATTEMPT_ENDED = CommitResult(state="conflict", reason="the attempt is over")
FIXED = {"new": COMMITTED, "committed": COMMITTED, "foreign": FOREIGN, "over": ATTEMPT_ENDED}


def to_json(content: Any) -> bytes:
    """JSON as it is stored."""
    try:
        return orjson.dumps(content)
    except TypeError:  # integers beyond 64 bits, lone surrogates
        return orjson.dumps(storable(content))


def pack_body(content: dict[str, Any], redactor: Redactor) -> tuple[bytes, bytes]:
    """Hash and compressed JSON of a body, without its secrets."""
    text = redactor.json(to_json(content))
    return sha256(text).digest(), zlib.compress(text, COMPRESSION)


def unpack_body(data: bytes) -> Any:
    """The JSON value of a stored body."""
    return orjson.loads(zlib.decompress(data))


def generation_items(number: int, item: GenerationRecord, redactor: Redactor) -> list[tuple[Any, ...]]:
    """A call as rows of `generation_item_v1`, one a choice."""
    if not item.choices:
        raise InvalidRequestError(f"call {item.call_number} of attempt {item.attempt_id} has no choices")
    request, request_body = pack_body(item.request, redactor)
    response, response_body = pack_body(item.response, redactor)
    sampling = to_json(storable(item.sampling)).decode()
    response_id = response_id_of(item.response)
    return [
        (
            number,
            item.rollout_id,
            item.attempt_id,
            item.token_hash,
            item.call_number,
            choice.index,
            storable_text(item.request_hash),
            storable_text(item.route),
            request,
            None if position else request_body,
            response,
            None if position else response_body,
            item.prompt_token_ids,
            choice.response_token_ids,
            choice.logprobs,
            sampling,
            item.seed,
            storable_text(item.engine_id),
            storable_text(item.model),
            None if choice.finish_reason is None else storable_text(choice.finish_reason),
            choice.complete,
            item.delivered,
            item.duration_seconds,
            response_id,
        )
        for position, choice in enumerate(item.choices)
    ]


def response_id_of(response: Any) -> str | None:
    """The engine's id of an answer. Clients of the Messages and Responses APIs know the part after its last hyphen."""
    found = response.get("id") if isinstance(response, dict) else None
    return storable_text(found) if isinstance(found, str) and len(found) <= LONGEST_RESPONSE_ID else None


async def commit_generations(
    database: Database, items: Sequence[GenerationRecord], redactor: Redactor
) -> list[CommitResult]:
    """Commit all items in one transaction; if one can't be stored, each in its own."""
    results: list[CommitResult] = []
    for group in distinct_groups(items):
        results += await _commit_group(database, group, redactor)
    return results


def distinct_groups(items: Sequence[GenerationRecord]) -> list[list[GenerationRecord]]:
    """Items in order, split before a call that occurs a second time, which is rare."""
    groups: list[list[GenerationRecord]] = []
    seen: set[tuple[str, int]] = set()
    for item in items:
        key = (item.attempt_id, item.call_number)
        if not groups or key in seen:
            groups.append([])
            seen = set()
        groups[-1].append(item)
        seen.add(key)
    return groups


async def _commit_group(
    database: Database, items: Sequence[GenerationRecord], redactor: Redactor
) -> list[CommitResult]:
    try:
        rows = [row for number, item in enumerate(items) for row in generation_items(number, item, redactor)]
        verdicts = await database.fetch("commit_generations", rows)
    except InvalidRequestError as error:
        if len(items) == 1:
            return [CommitResult(state="conflict", reason=f"not storable: {error.message}")]
        return [result for item in items for result in await _commit_group(database, [item], redactor)]
    found = {row["item"]: row for row in verdicts}
    return [_result(item, found[number]) for number, item in enumerate(items)]


def _result(item: GenerationRecord, row: Any) -> CommitResult:
    if row["verdict"] in FIXED:
        return FIXED[row["verdict"]]
    reason = f"call {item.call_number} is another request's"
    return CommitResult(state="renumber", reason=reason, next_call_number=row["next_number"])


def undelivered(rows: Iterable[Any]) -> list[UndeliveredCall]:
    """Calls whose answer may not have been delivered, from rows of `undelivered_calls`."""
    return [UndeliveredCall.model_validate({**dict(row), "response": unpack_body(row["response"])}) for row in rows]
