"""From an agent's model calls, through runner, gateway and store, to triplets with token ids and the reward."""

from __future__ import annotations

from pathlib import Path

from relight.adapter import LlmProxyTraceToTriplet, TracerTraceToTriplet
from relight.litagent import rollout
from relight.runner import LitAgentRunner
from relight.runner.agent_call import AgentCall
from relight.runner.attempt import AttemptWatch
from relight.runner.gateway_probe import GatewayProbe
from relight.runner.process_isolation import IsolatedRunner
from relight.store.base import LightningStore
from relight.store.client import LightningStoreClient
from relight.store.database import Database
from relight.tracer.dummy import DummyTracer
from relight.types.resources import LLM, NamedResources
from tests.integration.llm_proxy import asking_agent
from tests.integration.llm_proxy.test_resource_models import GATEWAY, Parts, parts
from tests.support.seeds import seed_rollout, seed_run
from tests.support.store_service import TOKEN


async def check_triplets(store: LightningStore, found: Parts, rollout_id: str) -> None:
    """Both adapters find both calls with the tokens that the gateway recorded."""
    rows = await found.database.pool.fetch(
        "select prompt_token_ids, token_ids from generations where rollout_id = $1 order by sequence_id", rollout_id
    )
    recorded = [tuple(row) for row in rows]
    assert len(recorded) == 2
    assert all(ids for row in recorded for ids in row)
    spans = await store.query_spans(rollout_id)
    names = ["raw_gen_ai_request", "agentlightning.annotation", "agentlightning.annotation"]
    assert [span.name for span in spans] == names, "the second call is the span that names its answer; then the reward"
    for adapter in (LlmProxyTraceToTriplet(), TracerTraceToTriplet()):
        triplets = adapter.adapt(spans)
        assert [(each.prompt["token_ids"], each.response["token_ids"]) for each in triplets] == recorded
        assert [each.reward for each in triplets] == [None, 0.75]
        assert all(each.response["logprobs"] for each in triplets)


async def test_an_attempt_in_a_process_leaves_spans_of_its_calls(database: Database, tmp_path: Path) -> None:
    async with (
        parts(database, tmp_path) as found,
        IsolatedRunner([f"{asking_agent.__file__}:asks_twice"]) as agents,
        LightningStoreClient(found.store.url, TOKEN) as store,
    ):
        await seed_run(database)
        await seed_rollout(database, "ro")
        await found.serve(0)
        opened = await found.open("ro")
        opened.base_url = opened.base_url.replace(GATEWAY, found.origin)
        opened.input = None
        probe = GatewayProbe(found.origin)
        try:
            call = AgentCall.from_opened(opened, "asks_twice")
            outcome = await AttemptWatch(found.store, agents, probe, opened, "w").run(call)
        finally:
            await probe.close()
        assert outcome is not None
        assert (outcome.message, outcome.reward) == ("", 0.75)
        await check_triplets(store, found, "ro")


async def test_the_runner_by_hand_leaves_spans_of_its_calls(database: Database, tmp_path: Path) -> None:
    async with parts(database, tmp_path) as found, LightningStoreClient(found.store.url, TOKEN) as store:
        await seed_run(database)
        await found.serve(0)
        models: NamedResources = {"main_llm": LLM(endpoint=found.provider.url, model="other")}
        added = await store.add_resources(models)
        enqueued = await store.enqueue_rollout(found.origin, "train", added.resources_id, run="demo")
        runner = LitAgentRunner[str](DummyTracer(), max_rollouts=1)
        async with runner.run_context(agent=rollout(asking_agent.asks_twice), store=store):
            await runner.iter()
        ended = await store.get_rollout_by_id(enqueued.rollout_id)
        assert ended is not None
        assert (ended.status, ended.reward) == ("succeeded", 0.75)
        worker = await store.get_worker_by_id("Worker-0")
        assert worker is not None
        assert worker.heartbeat_stats
        await check_triplets(store, found, enqueued.rollout_id)
