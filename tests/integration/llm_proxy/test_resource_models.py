"""Rollouts whose resources name a model: their agents reach it through the gateway, and what was said is recorded."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from relight.store.attempts.client import StoreClient
from relight.store.attempts.postgres import PostgresStore
from relight.store.client import LightningStoreClient
from relight.store.database import Database
from relight.store.postgres import PostgresLightningStore
from relight.testing import ScriptedUpstream
from relight.types.resources import LLM, NamedResources, PromptTemplate, ProxyLLM
from relight.types.store import Dispatch
from relight.types.wire import OpenedAttempt, OpenRequest
from tests.support.fake_engine import FakeEngine, fake_engine
from tests.support.fake_provider import KEY, WORDS, fake_provider
from tests.support.gateway import listening_gateway
from tests.support.seeds import seed_engine, seed_rollout, seed_run
from tests.support.store_service import TOKEN, store_service

QUESTION: Any = [{"role": "user", "content": "7*8?"}]
GATEWAY = "http://gateway.example:4748"


class Parts:
    """A store service, a gateway, a provider and the engine of the run `demo`."""

    def __init__(self, database: Database, store: StoreClient, provider: ScriptedUpstream, engine: FakeEngine) -> None:
        self.database = database
        self.store = store
        self.provider = provider
        self.engine = engine
        self.origin = ""

    async def enqueue(self, resources: NamedResources) -> OpenedAttempt:
        """A rollout of no run with these resources, and its attempt as a runner opens it."""
        outside = await PostgresLightningStore.create(self.database)
        await outside.add_resources(resources)
        rollout = await outside.enqueue_rollout("x", dispatch=Dispatch(by="workflow", agent="outside"))
        await outside.aclose()
        return await self.open(rollout.rollout_id)

    async def serve(self, version: int, name: str = "engine-1") -> None:
        """An engine of the run `demo` that holds a version."""
        await seed_engine(self.database, name, version=version)
        await self.database.pool.execute("update engines set url = $1", self.engine.url)

    async def open(self, rollout_id: str) -> OpenedAttempt:
        asked = OpenRequest(rollout_id=rollout_id, try_number=1, execution="x", worker_id="w")
        attempt = (await self.store.open_attempt(asked)).attempt
        assert attempt is not None
        return attempt

    async def ask(self, base_url: str, key: str | None, model: str) -> str:
        """What a client says that is pointed at this address."""
        assert base_url.startswith(GATEWAY)
        async with openai.AsyncOpenAI(
            base_url=f"{self.origin}{urlsplit(base_url).path}", api_key=key, max_retries=0
        ) as client:
            answer = await client.chat.completions.create(model=model, messages=QUESTION)
        return answer.choices[0].message.content or ""

    async def recorded(self) -> list[tuple[str, str]]:
        """Who served each recorded call, and which model."""
        rows = await self.database.pool.fetch("select engine_id, model from generations order by created_at")
        return [(row["engine_id"], row["model"]) for row in rows]


@asynccontextmanager
async def parts(database: Database, folder: Path) -> AsyncGenerator[Parts]:
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(fake_engine(folder / "e.sock"))
        provider = await stack.enter_async_context(fake_provider())
        service = await PostgresStore.create(database, GATEWAY)
        url = await stack.enter_async_context(store_service(service, database, gateway_url=GATEWAY))
        found = Parts(database, await stack.enter_async_context(StoreClient(url, TOKEN)), provider, engine)
        client = await stack.enter_async_context(listening_gateway(found.store, environment={}))
        found.origin = client.origin
        yield found


async def test_a_rollout_of_no_run_gets_the_model_of_its_resources_through_the_gateway(
    database: Database, tmp_path: Path
) -> None:
    async with parts(database, tmp_path) as found:
        sampling = {"temperature": 0.5}
        model = LLM(endpoint=found.provider.url, model="gpt-5", api_key=KEY, sampling_parameters=sampling)
        attempt = await found.enqueue({"llm": model, "prompt": PromptTemplate(template="{x}")})
        assert (attempt.model, attempt.sampling) == ("gpt-5", sampling)
        given = attempt.resources["llm"]
        assert isinstance(given, LLM)
        assert (given.endpoint, given.api_key, given.model) == (attempt.base_url, attempt.token, "gpt-5")
        assert await found.ask(attempt.base_url, attempt.token, attempt.model) == "".join(WORDS)
        assert await found.ask(attempt.base_url, attempt.token, "policy") == "".join(WORDS)
        assert [request["model"] for request in found.provider.requests] == ["gpt-5", "gpt-5"]
        assert [headers["authorization"] for headers in found.provider.headers] == [f"Bearer {KEY}"] * 2
        assert await found.recorded() == [("upstream:llm", "gpt-5")] * 2
        assert KEY not in str(attempt)


async def test_a_rollout_of_no_run_without_a_model_gets_an_error_at_once(database: Database, tmp_path: Path) -> None:
    async with parts(database, tmp_path) as found:
        attempt = await found.enqueue({"prompt": PromptTemplate(template="{x}")})
        with pytest.raises(openai.InternalServerError, match="no run that has engines, and 'policy' is not a model"):
            await found.ask(attempt.base_url, attempt.token, "policy")
        assert await found.recorded() == []


async def test_models_of_one_name_at_two_addresses_are_told_apart(database: Database, tmp_path: Path) -> None:
    async with parts(database, tmp_path) as found, fake_provider() as other:
        one = LLM(endpoint=found.provider.url, model="same", api_key="key-one")
        two = LLM(endpoint=other.url, model="same", api_key="key-two")
        attempt = await found.enqueue({"first": one, "second": two})
        for resource in attempt.resources.values():
            assert isinstance(resource, LLM)
            await found.ask(resource.endpoint, resource.api_key, resource.model)
        asked = [
            (provider.requests[0]["model"], provider.headers[0]["authorization"])
            for provider in (found.provider, other)
        ]
        assert asked == [("same", "Bearer key-one"), ("same", "Bearer key-two")]


async def test_a_proxy_among_the_resources_of_a_run_is_reached_through_the_gateway_beside_the_policy(
    database: Database, tmp_path: Path
) -> None:
    async with parts(database, tmp_path) as found:
        await seed_run(database)
        await seed_rollout(database, "ro")
        await found.serve(0)
        judge = ProxyLLM(endpoint=found.provider.url, model="policy", api_key=KEY)
        outside = await PostgresLightningStore.create(database)
        await outside.update_resources("rs-1", {"judge": judge})
        await outside.aclose()
        await database.pool.execute("update rollouts set resources_version = 2")
        attempt = await found.open("ro")
        proxy = attempt.resources["judge"]
        assert isinstance(proxy, ProxyLLM)
        url = proxy.get_base_url(attempt.rollout_id, attempt.attempt_id)
        assert await found.ask(url, proxy.api_key, proxy.model) == "".join(WORDS)
        assert await found.ask(attempt.base_url, attempt.token, "policy")
        path = f"/rollout/ro/attempt/{attempt.attempt_id}/v1/chat/completions"
        assert (found.provider.paths, found.provider.requests[0]["model"]) == ([path], "policy")
        assert await found.recorded() == [("upstream:judge", "judge/policy"), ("engine-1", "policy")]
        assert len(found.engine.requests) == 1


async def test_a_rollout_from_outside_is_served_by_the_newest_version_of_its_run(
    database: Database, tmp_path: Path
) -> None:
    async with parts(database, tmp_path) as found:
        await seed_run(database)
        await found.serve(3, "old")
        await found.serve(4, "new")
        outside = await PostgresLightningStore.create(database)
        model = LLM(endpoint=found.provider.url, model="gpt-5", api_key=KEY)
        added = await outside.add_resources({"main_llm": model})
        asked: dict[str, Any] = {"run": "demo", "resources_id": added.resources_id}
        driven = await outside.enqueue_rollout("x", dispatch=Dispatch(by="workflow", agent="outside"), **asked)
        attempt = await found.open(driven.rollout_id)
        await outside.enqueue_rollout("x", **asked)
        await outside.aclose()
        async with LightningStoreClient(found.store.url, TOKEN) as runner:
            claim = await runner.dequeue_rollout()
            assert claim is not None
            given = await runner.get_resources_by_id(claim.resources_id or "")
        assert given is not None
        policy = given.resources["main_llm"]
        assert isinstance(policy, LLM)
        for address, key, named in (
            (attempt.base_url, attempt.token, attempt.model),
            (policy.endpoint, policy.api_key, policy.model),
        ):
            assert await found.ask(address, key, named)
        assert (found.provider.requests, len(found.engine.requests)) == ([], 2)
        rows = await database.pool.fetch("select * from generations")
        assert {(row["engine_id"], row["model"], row["version_start"], row["version_end"]) for row in rows} == {
            ("new", "policy", 4, 4)
        }
        assert {row["attempt_id"] for row in rows} == {attempt.attempt_id, claim.attempt.attempt_id}
        assert all(row["token_ids"] and row["logprobs"] for row in rows)


async def test_a_rollout_from_outside_of_a_run_without_engines_calls_the_model_of_its_resources(
    database: Database, tmp_path: Path
) -> None:
    async with parts(database, tmp_path) as found:
        await seed_run(database, model=None)
        outside = await PostgresLightningStore.create(database)
        model = LLM(endpoint=found.provider.url, model="gpt-5", api_key=KEY)
        added = await outside.add_resources({"main_llm": model})
        dispatch = Dispatch(by="workflow", agent="outside")
        made = await outside.enqueue_rollout("x", dispatch=dispatch, run="demo", resources_id=added.resources_id)
        await outside.aclose()
        attempt = await found.open(made.rollout_id)
        assert await found.ask(attempt.base_url, attempt.token, "policy") == "".join(WORDS)
        assert await found.recorded() == [("upstream:main_llm", "gpt-5")]
