"""Every request may be sent twice: a network that loses every first answer changes nothing."""

from __future__ import annotations

from relight.store.attempts.client import StoreClient
from relight.types.wire import DeliveryMark, ResolveRequest, WorkerReport
from tests.support.lossy_proxy import lossy_proxy
from tests.support.store_kit import PostgresKit, call, failure, finish, opened, span
from tests.support.store_service import TOKEN, store_service


async def test_an_attempt_succeeds_though_the_network_loses_every_first_answer(postgres_kit: PostgresKit) -> None:
    await postgres_kit.load(0)
    await postgres_kit.add_rollout("r2", max_attempts=2, retry_condition=["agent_error"])
    async with (
        store_service(postgres_kit.store, postgres_kit.database) as url,
        lossy_proxy(url) as (lossy_url, losses),
        StoreClient(lossy_url, TOKEN, retry_seconds=20) as client,
    ):
        kit = PostgresKit(postgres_kit.database, client)
        attempt = await opened(kit, "r2")
        await client.heartbeat(attempt.attempt_id, attempt.fence, "runner")
        await client.register_worker(WorkerReport(worker_id="runner", kind="runner", host="h"))
        assert [engine.engine_id for engine in await client.engines("demo")] == ["engine-1"]
        request = ResolveRequest(rollout_id="r2", attempt_id=attempt.attempt_id, token=attempt.token)
        assert (await client.resolve(request)).next_call_number == 1
        results = await client.commit_generations([call(attempt, 1, "a"), call(attempt, 2, "b")])
        assert [result.state for result in results] == ["committed", "committed"]
        await client.mark_delivered(
            [DeliveryMark(rollout_id="r2", attempt_id=attempt.attempt_id, call_number=1, delivered="yes")]
        )
        await client.add_spans("r2", attempt.attempt_id, attempt.fence, [span("a"), span("b")])
        await client.record_call_failures([failure(attempt, 1, "a")])
        assert (
            await finish(kit, attempt, failure_class="agent_error", spans=[span("c")])
        ).failure_class == "agent_error"
        assert (await finish(kit, await opened(kit, "r2", try_number=2), reward=1.0)).succeeded
    assert all(losses.lost[path] >= 1 for path in losses.asked)
    assert len(losses.asked) == 10
    state = await postgres_kit.rollout("r2")
    assert (state.status, state.attempts, state.deaths, state.reward) == ("succeeded", 2, 0, 1.0)
    assert await postgres_kit.deliveries(attempt.attempt_id) == {1: "yes", 2: "yes"}
    assert [number for number, _, _ in await postgres_kit.spans("r2")] == [3, 4, 5]  # behind two model calls
