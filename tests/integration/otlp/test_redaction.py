"""Secrets that agents send are nowhere in Postgres afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.store.generations import unpack_body
from relight.store.spans.ingest import SpanIngest
from relight.store_api.otlp_spans import decode_protobuf
from relight.types.tracer import Span
from tests.support.examples import examples
from tests.support.otlp import any_value, key_values, make_request, make_span
from tests.support.postgres import fresh_database
from tests.support.secrets import planted
from tests.support.seeds import seed_attempt, seed_rollout
from tests.support.store_kit import PostgresKit, call, failure, finish, opened, span


@dataclass
class Bench:
    """A database that lives as long as all examples of a property."""

    runner: asyncio.Runner
    database: Database

    async def found_after(self, secret: str, send: Coroutine[Any, Any, None]) -> list[str]:
        """Tables that hold a secret after it was sent; no span and no body is left."""
        await send
        found = await tables_with(self.database, secret)
        assert await self.database.pool.fetchval("select count(*) from spans") == 1
        await self.database.pool.execute("delete from spans; delete from bodies")
        return found


async def tables_with(database: Database, text: str) -> list[str]:
    """Tables in which a text is, compressed bodies included."""
    names = await database.pool.fetch(
        "select relname from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r'"
    )
    found: list[str] = []
    for (name,) in names:
        rows = await database.pool.fetch(f"select to_jsonb(t) as row from {name} t")
        found += [name for row in rows if text in repr(row["row"])]
    bodies = await database.pool.fetch("select body from bodies")
    return found + ["bodies" for row in bodies if text in repr(unpack_body(row["body"]))]


@pytest.fixture(scope="module")
def bench(postgres_url: str) -> Generator[Bench]:
    """With the rollout r1 and its attempt a1."""
    with asyncio.Runner() as runner:
        opening = fresh_database(postgres_url)
        database = runner.run(opening.__aenter__())
        runner.run(seed_rollout(database, "r1", None))
        runner.run(seed_attempt(database, "r1", "a1"))
        yield Bench(runner, database)
        runner.run(opening.__aexit__(None, None, None))


def large(value: Any) -> Any:
    """The value beside so much text that it becomes a body."""
    return {"held": value, "filler": "all work and no play " * 200}


@given(case=planted(), part=st.sampled_from(["attributes", "event", "link", "resource", "name"]), big=st.booleans())
@settings(max_examples=examples(60))
def test_a_secret_sent_by_otlp_is_not_stored(bench: Bench, case: tuple[str, Any], part: str, big: bool) -> None:
    secret, held = case
    value = {"a": large(held) if big else held}
    request = make_request([make_span(1, value if part == "attributes" else {})])
    kept = request.resource_spans[0].scope_spans[0].spans[0]
    if part == "event":
        kept.events.add(name="e", attributes=key_values(value))
    elif part == "link":
        kept.links.add(trace_id=b"\x01" * 16, span_id=b"\x01" * 8, attributes=key_values(value))
    elif part == "resource":
        request.resource_spans[0].resource.attributes.add(key="r", value=any_value(value))
    elif part == "name":
        kept.name = f"sk-{secret}-0123456789abcdef"

    async def send() -> None:
        ingest = SpanIngest(bench.database)
        await ingest.submit(decode_protobuf(request.SerializeToString(), ingest.redactor).rows)

    assert bench.runner.run(bench.found_after(secret, send())) == []


@given(case=planted(), part=st.sampled_from(["attributes", "events", "links", "resource", "context", "own", "name"]))
@settings(max_examples=examples(40))
def test_a_secret_in_a_span_of_the_interface_is_not_stored(bench: Bench, case: tuple[str, Any], part: str) -> None:
    secret, held = case
    text = f"sk-{secret}-0123456789abcdef"
    value = [held] if part in ("events", "links") else text if part == "name" else held
    fields: dict[str, Any] = {"name": "n"} | {part: value}
    given_span = Span(rollout_id="r1", attempt_id="a1", sequence_id=-1, trace_id="t", span_id="s", **fields)

    async def send() -> None:
        await SpanIngest(bench.database).add([given_span])

    assert bench.runner.run(bench.found_after(secret, send())) == []


async def test_secrets_in_what_an_attempt_leaves_are_not_stored(database: Database) -> None:
    secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123"
    kit = PostgresKit(database, await PostgresStore.create(database, "http://gateway"))
    await kit.start()
    await kit.add_rollout("r1")
    attempt = await opened(kit)
    record = call(
        attempt,
        request={"messages": [{"role": "user", "content": f"use {secret}"}], "api_key": f"x{secret}"},
        response={"choices": [{"message": {"content": f"ok: {secret}"}}]},
    )
    await kit.store.commit_generations([record])
    await kit.store.record_call_failures([failure(attempt, 2, message=f"no {secret}")])
    await kit.store.add_spans("r1", attempt.attempt_id, attempt.fence, [span(name=secret, attributes={"a": [secret]})])
    await finish(
        kit,
        attempt,
        message=f"said {secret}",
        error={"traceback": f"raise X({secret})"},
        output=f"{secret}\n",
        spans=[span("span-2", events=[{"name": secret}])],
    )
    assert await tables_with(database, secret) == []
    assert await database.pool.fetchval("select output from attempts") == "[redacted]\n"
    row = await database.pool.fetchrow("select prompt_token_ids, token_ids from generations")
    assert tuple(row) == (record.prompt_token_ids, record.choices[0].response_token_ids)
