"""Providers of other models with the real store service on Postgres: what is kept of their calls, and trained."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai

from relight.store.attempts.client import StoreClient
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.store.training.ledger import read_generations
from relight.types.wire import OpenRequest
from tests.support.fake_engine import fake_engine
from tests.support.fake_provider import KEY, WORDS, fake_provider
from tests.support.gateway import listening_gateway
from tests.support.seeds import RUN, seed_engine, seed_rollout, seed_run
from tests.support.store_service import TOKEN, store_service

QUESTION: Any = [{"role": "user", "content": "7*8?"}]


async def test_a_runs_providers_are_called_and_recorded_and_never_trained_on(database: Database, tmp_path: Path):
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(fake_engine(tmp_path / "e.sock"))
        provider = await stack.enter_async_context(fake_provider())
        named = {"name": "other", "base_url": provider.url, "api_key_env": "OTHER_API_KEY", "models": ["judge"]}
        await seed_run(database, upstreams=[named], models={"gpt-4o-mini": "policy", "gpt-5": "judge"})
        await seed_rollout(database, "ro")
        await seed_engine(database)
        await database.pool.execute("update engines set url = $1", engine.url)
        service = await PostgresStore.create(database, "http://127.0.0.1:1")
        url = await stack.enter_async_context(store_service(service, database))
        store = await stack.enter_async_context(StoreClient(url, TOKEN))
        asked = OpenRequest(rollout_id="ro", try_number=1, execution="x", worker_id="w")
        attempt = (await store.open_attempt(asked)).attempt
        assert attempt is not None
        async with listening_gateway(store, environment={"OTHER_API_KEY": KEY}) as client:
            base_url = f"{client.origin}{urlsplit(attempt.base_url).path}"
            async with openai.AsyncOpenAI(base_url=base_url, api_key=attempt.token) as official:
                judged = await official.chat.completions.create(model="judge", messages=QUESTION)
                await official.chat.completions.create(model="policy", messages=QUESTION)
                await official.chat.completions.create(model="gpt-4o-mini", messages=QUESTION)
                await official.chat.completions.create(model="gpt-5", messages=QUESTION)
                listed = {model.id async for model in official.models.list()}
    trained = await read_generations(database, RUN, 1, [attempt.attempt_id])
    rows = await database.pool.fetch("select * from generations order by call_number")
    dumped = str([dict(row) for row in rows]) + str(await database.pool.fetch("select file from runs"))
    assert judged.choices[0].message.content == "".join(WORDS)
    assert [generation.call_number for generation in trained[attempt.attempt_id]] == [2, 3]
    assert [(row["engine_id"], row["model"], row["delivered"]) for row in rows] == [
        ("upstream:other", "judge", "yes"),
        ("engine-1", "policy", "yes"),
        ("engine-1", "policy", "yes"),
        ("upstream:other", "judge", "yes"),
    ]
    assert listed == {"policy", "judge", "gpt-4o-mini", "gpt-5"}
    assert (rows[0]["prompt_token_ids"], rows[0]["token_ids"], rows[0]["version_start"]) == (None, None, None)
    assert KEY not in dumped
