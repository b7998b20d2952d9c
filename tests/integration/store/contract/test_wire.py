"""What concerns the service and its client alone."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import pytest

from relight.errors import RelightError, StoreError
from relight.store.client import LightningStoreClient
from relight.store_api.server import bind
from tests.support.lightning_kit import ServedKit, begin, running
from tests.support.lossy_proxy import lossy_proxy


@pytest.fixture
async def http(service: ServedKit) -> AsyncGenerator[aiohttp.ClientSession]:
    """A plain HTTP client with the token."""
    headers = {"Authorization": f"Bearer {service.token}"}
    async with aiohttp.ClientSession(service.service_url, headers=headers) as session:
        yield session


async def answer(response: Any) -> tuple[int, Any]:
    """Status and JSON."""
    async with response as got:
        return got.status, await got.json(content_type=None)


@pytest.mark.parametrize("query", ["sort_by=colour", "limit=-2", "offset=-1"])
async def test_a_query_that_is_invalid_is_400(http: aiohttp.ClientSession, query: str) -> None:
    """Invariant 52."""
    status, body = await answer(http.get(f"/v1/agl/rollouts?{query}"))
    assert status == 400
    assert query.split("=")[0] in str(body)
    assert "Traceback" not in str(body)


async def test_get_and_search_agree(service: ServedKit, http: aiohttp.ClientSession) -> None:
    """Invariant 53."""
    rollout = await running(service.store)
    await service.store.enqueue_rollout("x")
    await service.store.update_worker("w", {"cpu": 1})
    await service.store.add_resources({})
    for path, query, body in (
        ("rollouts", "status_in=running&status_in=failed&limit=5", {"status_in": ["running", "failed"], "limit": 5}),
        ("rollouts", "sort_by=start_time&sort_order=desc", {"sort_by": "start_time", "sort_order": "desc"}),
        (f"rollouts/{rollout.rollout_id}/attempts", "limit=1", {"limit": 1}),
        ("spans", f"rollout_id={rollout.rollout_id}", {"rollout_id": rollout.rollout_id}),
        ("workers", "worker_id_contains=w", {"worker_id_contains": "w"}),
    ):
        status, got = await answer(http.get(f"/v1/agl/{path}?{query}"))
        found = await answer(http.post(f"/v1/agl/{path}/search", json=body))
        assert (status, got) == found
        assert set(got) >= {"items", "limit", "offset", "total"}
        assert got["total"] == 1 or "sort_by" in body


async def test_a_cursor_of_the_wire_pages_to_the_end(service: ServedKit, http: aiohttp.ClientSession) -> None:
    """Ours: cursors."""
    made = [(await service.store.start_rollout(number)).rollout_id for number in range(5)]
    plain = await answer(http.post("/v1/agl/rollouts/search", json={"limit": 2}))
    assert "next" not in plain[1]
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        status, got = await answer(http.post("/v1/agl/rollouts/search", json={"limit": 2, "cursor": cursor}))
        assert (status, got["limit"], got["offset"], got["total"]) == (200, 2, 0, 5)
        assert await answer(http.get(f"/v1/agl/rollouts?limit=2&cursor={cursor}")) == (status, got)
        seen += [rollout["rollout_id"] for rollout in got["items"]]
        cursor = got["next"]
        assert len(seen) <= len(made)
    assert seen == made
    status, got = await answer(http.post("/v1/agl/rollouts/search", json={"cursor": "page-2"}))
    assert (status, "cursor: 'page-2'" in got["detail"]) == (422, True)


async def test_an_empty_page_of_attempts_has_a_total(service: ServedKit, http: aiohttp.ClientSession) -> None:
    """Invariant 7."""
    rollout = await begin(service.store)
    path = f"/v1/agl/rollouts/{rollout.rollout_id}/attempts"
    empty = {"items": [], "limit": 0, "offset": 0, "total": 1}
    assert await answer(http.get(f"{path}?limit=0")) == (200, empty)
    assert await answer(http.post(f"{path}/search", json={"limit": 0})) == (200, empty)
    status, _ = await answer(http.get("/v1/agl/rollouts?limit=0"))
    assert status == 400


async def test_other_origins_are_refused(service: ServedKit, http: aiohttp.ClientSession) -> None:
    """Invariant 54."""
    async with http.get("/v1/agl/statistics", headers={"Origin": "http://elsewhere"}) as response:
        assert response.status == 200
        assert "Access-Control-Allow-Origin" not in response.headers


async def test_a_lost_answer_makes_no_second_rollout_and_loses_none(service: ServedKit) -> None:
    """Invariant 59."""
    async with lossy_proxy(service.service_url) as (url, losses), LightningStoreClient(url, service.token) as client:
        made = [(await client.enqueue_rollout(number)).rollout_id for number in range(3)]
        taken = [await client.dequeue_rollout("w") for _ in range(3)]
        assert losses.lost.total() >= 2
    assert [rollout and rollout.rollout_id for rollout in taken] == made
    assert (await service.store.query_rollouts()).total == 3
    assert {rollout.attempt.sequence_id for rollout in taken if rollout} == {1}


async def test_a_service_that_is_down_is_an_error_and_not_none() -> None:
    """Invariant 59."""
    listener = bind("127.0.0.1", 0, "unknown")
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()
    async with LightningStoreClient(url, "token", retry_seconds=0.2) as client:
        with pytest.raises(RelightError):
            await client.get_rollout_by_id("ro-1")


async def test_the_wrong_token_is_refused_at_once(service: ServedKit) -> None:
    """Invariant 59."""
    async with LightningStoreClient(service.service_url, "wrong") as client:
        with pytest.raises(RelightError):
            await client.statistics()


async def test_the_health_check_answers(http: aiohttp.ClientSession) -> None:
    """Invariant 59."""
    assert (await answer(http.get("/v1/agl/health")))[0] == 200


async def test_metrics_are_exported(http: aiohttp.ClientSession) -> None:
    """Invariant 60."""
    async with http.get("/metrics") as response:
        assert response.status == 200
        assert "# TYPE" in await response.text()


async def test_client_and_service_count_alike(service: ServedKit, http: aiohttp.ClientSession) -> None:
    """Invariant 61."""
    await running(service.store)
    status, body = await answer(http.get("/v1/agl/statistics"))
    numbers = await service.store.statistics()
    assert status == 200
    assert {key: value for key, value in numbers.items() if key != "uptime"} == {
        key: value for key, value in body.items() if key != "uptime"
    }


async def test_a_busy_port_is_an_error() -> None:
    """Invariant 62."""
    with bind("127.0.0.1", 0, "the first") as taken, pytest.raises(StoreError, match="second"):
        bind("127.0.0.1", taken.getsockname()[1], "the second")


async def test_traces_may_be_compressed_and_other_bodies_may_not(
    service: ServedKit, http: aiohttp.ClientSession
) -> None:
    """Invariant 63."""
    rollout = await begin(service.store)
    ids = {
        "agentlightning.rollout_id": rollout.rollout_id,
        "agentlightning.attempt_id": rollout.attempt.attempt_id,
    }
    body = gzip.compress(_traces(ids))
    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
    async with http.post("/v1/traces", data=body, headers=headers) as response:
        assert response.status == 200
    (span,) = await service.store.query_spans(rollout.rollout_id)
    assert (span.name, span.sequence_id, span.trace_id, span.span_id) == ("work", 1, "01" * 16, "02" * 8)
    async with http.post(
        "/v1/traces", data=_traces({}), headers=headers | {"Content-Encoding": "identity"}
    ) as response:
        assert response.status == 200
    async with http.post("/v1/traces", data=b"x", headers={"Content-Type": "text/plain"}) as response:
        assert response.status in (400, 415)
    assert (await service.store.statistics())["total_spans"] == 1


def _traces(ids: dict[str, str]) -> bytes:
    trace_service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    request = trace_service.ExportTraceServiceRequest()
    spans = request.resource_spans.add()
    for key, value in ids.items():
        attribute = spans.resource.attributes.add(key=key)
        attribute.value.string_value = value
    spans.scope_spans.add().spans.add(
        trace_id=b"\x01" * 16,
        span_id=b"\x02" * 8,
        name="work",
        start_time_unix_nano=10**9,
        end_time_unix_nano=2 * 10**9,
    )
    return request.SerializeToString()


async def test_a_client_can_be_pickled(service: ServedKit) -> None:
    """Invariant 64."""
    await service.store.enqueue_rollout("x")
    async with pickle.loads(pickle.dumps(service.store)) as copy:
        assert (await copy.query_rollouts()).total == 1


async def test_the_token_may_be_in_the_url(service: ServedKit) -> None:
    """Ours: 0.3's clients have no other place for it."""
    host = service.service_url.removeprefix("http://")
    async with LightningStoreClient(f"http://relight:{service.token}@{host}") as client:
        assert (await client.statistics())["total_rollouts"] == 0


async def test_the_service_announces_otlp(http: aiohttp.ClientSession) -> None:
    status, body = await answer(http.get("/v1/agl/capabilities"))
    assert (status, body["otlp_traces"]) == (200, True)
