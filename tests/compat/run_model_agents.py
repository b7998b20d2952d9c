"""Agent Lightning 0.3's published runner runs an unchanged agent whose model is behind the gateway.

    PEER_PYTHON tests/compat/run_model_agents.py STORE_URL GATEWAY_URL

The agent asks its `llm` by the base URL and the key that it is given. Prints what it was told, and what others see.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from agentlightning import LLM, LightningStoreClient, LitAgentRunner, OtelTracer, ProxyLLM, llm_rollout
from agentlightning.types import EnqueueRolloutRequest
from openai import OpenAI

SAID: dict[str, Any] = {}


@llm_rollout
def agent(task: str, llm: LLM) -> float:
    """Asks a model."""
    client = OpenAI(base_url=llm.endpoint, api_key=llm.api_key)
    answer = client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": task}])
    SAID[task] = {"answer": answer.choices[0].message.content, "endpoint": llm.endpoint, "key": llm.api_key}
    return 1.0


async def main(url: str, gateway_url: str) -> dict[str, Any]:
    """Two tasks, one with the model behind a proxy, one with its address as such."""
    store = LightningStoreClient(url)
    kinds = {
        "proxy": ProxyLLM(endpoint=f"{gateway_url}/v1", model="judge"),
        "plain": LLM(endpoint=gateway_url, model="judge"),
    }
    added = {name: (await store.add_resources({"main_llm": llm})).resources_id for name, llm in kinds.items()}
    requests = [EnqueueRolloutRequest(input=name, resources_id=resources_id) for name, resources_id in added.items()]
    rollouts = await store.enqueue_many_rollouts(requests)
    runner: LitAgentRunner[Any] = LitAgentRunner(OtelTracer(), 2, poll_interval=0.1, heartbeat_launch_mode="asyncio")
    runner.init(agent)
    runner.init_worker(1, store)
    await asyncio.wait_for(runner.iter(), 60)
    runner.teardown_worker(1)
    runner.teardown()
    shown: list[str] = []
    for rollout in rollouts:
        found = await store.get_rollout_by_id(rollout.rollout_id)
        assert found is not None
        shown += [found.model_dump_json()]
        shown += [attempt.model_dump_json() for attempt in await store.query_attempts(rollout.rollout_id)]
        shown += [span.model_dump_json() for span in await store.query_spans(rollout.rollout_id)]
    shown += [update.model_dump_json() for update in await store.query_resources()]
    statuses = [found.status for found in await store.query_rollouts()]
    await store.close()
    return {"said": SAID, "shown": "\n".join(shown), "statuses": statuses, "resources": added}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
