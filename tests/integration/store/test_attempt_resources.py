"""What an external runner is handed with its attempt, and who else may not have it."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from relight.store.attempts.attempt_tokens import token_hash
from relight.store.attempts.postgres import PostgresStore
from relight.store.client import LightningStoreClient
from relight.store.database import Database
from relight.types.resources import LLM, PromptTemplate, ProxyLLM
from relight.types.rollout import AttemptStatus, FailureClass, RolloutConfig
from tests.support.store_service import TOKEN, store_service

GATEWAY = "http://gateway.example:4748"


@pytest.fixture
async def store(database: Database) -> AsyncGenerator[LightningStoreClient]:
    """A client of a service that knows a gateway."""
    kept = await PostgresStore.create(database, GATEWAY)
    async with (
        store_service(kept, database, gateway_url=GATEWAY) as url,
        LightningStoreClient(url, TOKEN, retry_seconds=5) as client,
    ):
        yield client


async def test_a_claim_brings_the_key_of_its_own_attempt(store: LightningStoreClient, database: Database) -> None:
    models = {"proxy": ProxyLLM(endpoint=GATEWAY, model="m"), "prompt": PromptTemplate(template="{x}")}
    added = await store.add_resources(models)
    await store.enqueue_rollout("x", config=RolloutConfig(max_attempts=2, retry_condition=[FailureClass.AGENT_ERROR]))
    keys: list[str | None] = []
    for claim in (
        await store.dequeue_rollout(),
        await store.start_attempt((await store.query_rollouts())[0].rollout_id),
    ):
        assert claim is not None
        assert claim.resources_id is not None
        found = await store.get_resources_by_id(claim.resources_id)
        assert found is not None
        proxy = found.resources["proxy"]
        assert isinstance(proxy, ProxyLLM)
        assert proxy.get_base_url("r", "a") == f"{GATEWAY}/rollout/r/attempt/a/v1"
        assert found.resources["prompt"] == models["prompt"]
        query = "select token_hash from attempts where attempt_id = $1"
        assert token_hash(proxy.api_key or "") == await database.pool.fetchval(query, claim.attempt.attempt_id)
        keys.append(proxy.api_key)
    assert len(set(keys)) == 2
    (shown,) = await store.query_rollouts()
    assert shown.resources_id == added.resources_id
    again = await store.enqueue_rollout("y", resources_id=claim.resources_id)
    assert again.resources_id == added.resources_id
    changed = await store.update_rollout(again.rollout_id, resources_id=claim.resources_id)
    assert (changed.resources_id, changed.resources_version) == (again.resources_id, again.resources_version)
    await store.update_attempt(shown.rollout_id, "latest", status=AttemptStatus.SUCCEEDED)
    await store.delete_rollout(shown.rollout_id)
    assert await store.get_resources_by_id(claim.resources_id) is None


async def test_a_claim_that_is_repeated_brings_the_same(store: LightningStoreClient) -> None:
    await store.add_resources({"plain": LLM(endpoint=f"{GATEWAY}/v1", model="m")})
    await store.enqueue_rollout("x")
    claims = [await store.dequeue_rollout(idempotency_key="k") for _ in range(2)]
    first, second = (claim.resources_id for claim in claims if claim)
    assert first == second


async def test_a_forged_attempt_key_is_refused(store: LightningStoreClient) -> None:
    await store.add_resources({"proxy": ProxyLLM(endpoint=GATEWAY, model="m")})
    claim = await store.start_rollout("x")
    assert claim.resources_id is not None
    for wrong in (f"{claim.resources_id}x", claim.resources_id.rpartition("~")[0], f"{claim.resources_id[:-1]}~"):
        assert await store.get_resources_by_id(wrong) is None


async def test_models_at_other_addresses_or_with_a_key_are_unchanged(store: LightningStoreClient) -> None:
    models = {
        "elsewhere": ProxyLLM(endpoint="http://other:4748", model="m"),
        "deeper": LLM(endpoint=f"{GATEWAY}/rollout/r/attempt/a/v1", model="m"),
        "keyed": LLM(endpoint=GATEWAY, model="m", api_key="k"),
    }
    added = await store.add_resources(models)
    claim = await store.start_rollout("x")
    assert claim.resources_id == added.resources_id
    added = await store.add_resources(models | {"ours": LLM(endpoint=GATEWAY, model="m")})
    claim = await store.start_rollout("x")
    found = await store.get_resources_by_id(claim.resources_id or "")
    assert found is not None
    assert {name: found.resources[name] for name in models} == models
    ours = found.resources["ours"]
    assert isinstance(ours, LLM)
    attempt = f"{GATEWAY}/rollout/{claim.rollout_id}/attempt/{claim.attempt.attempt_id}/v1"
    assert (ours.endpoint, bool(ours.api_key)) == (attempt, True)


async def test_a_runner_that_knows_no_versions_reads_those_that_its_rollout_was_enqueued_with(
    store: LightningStoreClient,
) -> None:
    added = await store.add_resources({"prompt": PromptTemplate(template="first")})
    config = RolloutConfig(max_attempts=2, retry_condition=[FailureClass.AGENT_ERROR], backoff_seconds=0.0)
    await store.enqueue_rollout("x", config=config)
    templates: list[str] = []
    for text in ("second", "third"):
        await store.update_resources(added.resources_id, {"prompt": PromptTemplate(template=text)})
        claim = await store.dequeue_rollout()
        assert claim is not None
        assert claim.resources_id is not None
        found = await store.get_resources_by_id(claim.resources_id)
        assert found is not None
        prompt = found.resources["prompt"]
        assert isinstance(prompt, PromptTemplate)
        templates.append(prompt.template)
        await store.update_attempt(claim.rollout_id, claim.attempt.attempt_id, status=AttemptStatus.FAILED)
    assert templates == ["first", "first"]
    assert (await store.query_rollouts())[0].resources_id == added.resources_id
