"""Agent Lightning 0.3's published runner runs agents against a store server.

    PEER_PYTHON tests/compat/run_agents.py STORE_URL

Run by the Python of the peer's environment. Enqueues six rollouts, has a `LitAgentRunner` with a decorated function
work them off, and prints what the store then holds of each as one JSON object. What its tracer records goes to the
store by OTLP, what the agent returns by REST. Two attempts fail: one for good, one is tried again.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from agentlightning import (
    LLM,
    LightningStoreClient,
    LitAgentRunner,
    OtelTracer,
    emit_message,
    emit_reward,
    find_final_reward,
    operation,
    rollout,
)
from agentlightning.types import AttemptedRollout, EnqueueRolloutRequest, RolloutConfig, SpanCoreFields

RUNS = 7
"""Six rollouts; one of them takes two attempts."""


def multiply(left: int, right: int) -> int:
    """A tool, with a span of its own."""
    with operation(name="multiply") as recorded:  # as a decorator it asks for a tracer when it is imported
        recorded.set_input(left, right)
        recorded.set_output(left * right)
    return left * right


@rollout
def agent(task: dict[str, Any], llm: LLM, rollout: AttemptedRollout) -> float | list[SpanCoreFields] | None:
    """Calls its tool, and is rewarded by a span, by what it returns, or by a span that it returns."""
    emit_message(f"asked {llm.model}")
    right = multiply(task["left"], task["right"]) == task["product"]
    if task.get("fails") == "always" or (task.get("fails") == "once" and rollout.attempt.sequence_id == 1):
        raise RuntimeError("this agent broke")
    if task.get("returns") == "reward":
        return float(right)
    if task.get("returns") == "spans":
        return [emit_reward(float(right), propagate=False)]
    emit_reward(float(right))
    return None


async def enqueue(store: LightningStoreClient) -> dict[str, str]:
    """Resources and six tasks; returns their rollouts by name."""
    await store.add_resources({"main_llm": LLM(endpoint="http://127.0.0.1:9/v1", model="policy")})
    task = {"left": 7, "right": 8, "product": 56}
    tasks = {
        "right": task,
        "wrong": task | {"product": 54},
        "returned": task | {"returns": "reward"},
        "written": task | {"returns": "spans"},
        "broken": task | {"fails": "always"},
        "retried": task | {"fails": "once"},
    }
    config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    requests = [
        EnqueueRolloutRequest(input=task, mode="train", config=config if name == "retried" else None)
        for name, task in tasks.items()
    ]
    rollouts = await store.enqueue_many_rollouts(requests)
    return {name: rollout.rollout_id for name, rollout in zip(tasks, rollouts, strict=True)}


async def found(store: LightningStoreClient, rollout_id: str) -> dict[str, Any]:
    """What the store holds of a rollout."""
    row = await store.get_rollout_by_id(rollout_id)
    assert row is not None
    attempts = await store.query_attempts(rollout_id)
    spans = await store.query_spans(rollout_id, "latest")
    return {
        "status": row.status,
        "attempts": [attempt.status for attempt in attempts],
        "workers": sorted({attempt.worker_id or "" for attempt in attempts}),
        "sequence_ids": [span.sequence_id for span in await store.query_spans(rollout_id)],
        "spans": [span.name for span in spans],
        "reward": find_final_reward(list(spans)),
    }


async def main(url: str) -> dict[str, Any]:
    """Run them all, and look."""
    store = LightningStoreClient(url)
    rollouts = await enqueue(store)
    runner: LitAgentRunner[Any] = LitAgentRunner(OtelTracer(), RUNS, poll_interval=0.1, heartbeat_launch_mode="asyncio")
    runner.init(agent)
    runner.init_worker(1, store)
    await asyncio.wait_for(runner.iter(), 60)
    runner.teardown_worker(1)
    runner.teardown()
    results = {name: await found(store, rollout_id) for name, rollout_id in rollouts.items()}
    worker = await store.get_worker_by_id("Worker-1")
    assert worker is not None
    results["worker"] = {"status": worker.status, "has_statistics": bool(worker.heartbeat_stats)}
    await store.close()
    return results


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1]))))
