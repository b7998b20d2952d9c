"""What an attempt's own token may do at the store: write its own spans, nothing else."""

from __future__ import annotations

import pytest

from relight.emitter.reading import find_final_reward
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.store.queue.reads import query_spans
from relight.types.queries import SpanQuery
from relight.types.tracer import Span
from tests.support.orchestration import eventually
from tests.support.otlp import OtlpClient, make_request, make_span
from tests.support.seeds import RUN
from tests.support.store_kit import PostgresKit, finish, opened


@pytest.fixture
async def kit(database: Database) -> PostgresKit:
    """The run `demo` with the rollout `mine`, beside r1 and r2."""
    kit = PostgresKit(database, await PostgresStore.create(database, "http://gateway"))
    await kit.start()
    await kit.add_rollout("mine")
    return kit


async def spans_of(database: Database, rollout_id: str) -> list[Span]:
    return list(await query_spans(database, SpanQuery(rollout_id=rollout_id)))


async def test_an_agent_writes_its_own_spans_without_naming_its_attempt(
    database: Database, client: OtlpClient, kit: PostgresKit
) -> None:
    attempt = await opened(kit, "mine")
    client.token = attempt.token
    assert await client.rejected(make_request([make_span(1)], None, None)) == (0, "")
    assert await client.rejected(make_request([make_span(2)], "mine", attempt.attempt_id)) == (0, "")
    assert {span.attempt_id for span in await spans_of(database, "mine")} == {attempt.attempt_id}


async def test_an_agent_cannot_write_spans_of_another_attempt(
    database: Database, client: OtlpClient, kit: PostgresKit
) -> None:
    client.token = (await opened(kit, "mine")).token
    response, _ = await client.post(make_request([make_span(1)], "r1", "a1"))
    assert response.status == 403
    mixed = make_request([make_span(2), make_span(3, {"agentlightning.rollout_id": "r1"})], None, None)
    count, reason = await client.rejected(mixed)
    assert (count, "another attempt" in reason) == (1, True)
    assert await spans_of(database, "r1") == []


@pytest.mark.parametrize(
    "path", ["/v1/metrics", "/v1/agl/statistics", "/v1/relight/workers", "/v1/agl/spans", "/readyz"]
)
async def test_an_agents_token_is_good_for_nothing_else(client: OtlpClient, kit: PostgresKit, path: str) -> None:
    client.token = (await opened(kit, "mine")).token
    response, _ = await client.post(b"", path=path)
    assert response.status == 401


@pytest.mark.parametrize("token", ["", "rl-", "rl-" + "x" * 43, "nonsense"])
async def test_an_unknown_token_is_refused(client: OtlpClient, token: str) -> None:
    client.token = token
    response, _ = await client.post(make_request([make_span(1)]))
    assert response.status == 401


async def test_a_token_outlives_its_attempt_by_a_minute_but_not_its_rollouts_cancelling(
    database: Database, client: OtlpClient, kit: PostgresKit
) -> None:
    attempt = await opened(kit, "mine")
    await finish(kit, attempt)
    client.token = attempt.token
    assert await client.rejected(make_request([make_span(1)], None, None)) == (0, "")
    await kit.add_rollout("gone")
    client.token = (await opened(kit, "gone")).token
    await database.pool.execute("update rollouts set status = 'cancelled' where rollout_id = 'gone'")
    response, _ = await client.post(make_request([make_span(2)], None, None))
    assert response.status == 401


@pytest.mark.parametrize("how", ["infrastructure", "timeout", "superseded"])
async def test_a_token_ends_soon_after_its_attempt_where_the_platform_ended_that(
    client: OtlpClient, kit: PostgresKit, how: str
) -> None:
    attempt = await opened(kit, "mine")
    client.token = attempt.token
    assert await client.rejected(make_request([make_span(1)], None, None)) == (0, "")
    if how == "superseded":
        await opened(kit, "mine", execution="x2")
    else:
        await finish(kit, attempt, failure_class=how)

    async def refused() -> bool:
        response, _ = await client.post(make_request([make_span(2)], None, None))
        return response.status == 401

    await eventually(refused, 5)


@pytest.mark.parametrize("graded", [True, False])
async def test_a_reward_that_an_agent_gives_itself_counts_only_without_a_grader(
    database: Database, client: OtlpClient, kit: PostgresKit, graded: bool
) -> None:
    if graded:
        await database.pool.execute("""update runs set file = file || '{"grader": "judge"}' where run = $1""", RUN)
    attempt = await opened(kit, "mine")
    admin, client.token = client.token, attempt.token
    reward = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 1.0}
    own = make_request([make_span(1, reward, name="agentlightning.annotation")], None, None)
    assert await client.rejected(own) == (0, "")
    spans = await spans_of(database, "mine")
    assert find_final_reward(spans) == (None if graded else 1.0)
    assert 1.0 in spans[0].attributes.values()
    client.token = admin
    request = make_request([make_span(2, reward, name="agentlightning.annotation")], "mine", attempt.attempt_id)
    assert await client.rejected(request) == (0, "")
    assert find_final_reward(await spans_of(database, "mine")) == 1.0
