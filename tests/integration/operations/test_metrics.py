"""`/metrics` of service and gateway."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.responses import Response

from relight.llm_proxy.metrics import Metered
from relight.llm_proxy.metrics import route_path as gateway_path
from relight.observability.metrics import HttpMetrics, exposition, measured
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.store.group_commit import GroupCommit
from relight.store_api.metrics import PostgresFigures
from relight.types.names import POLICY
from tests.support.small_run import RUN, SmallRun
from tests.support.store_service import TOKEN, store_service

BEARER = {"Authorization": f"Bearer {TOKEN}"}
BASIC = {"Authorization": "Basic " + b64encode(f"relight:{TOKEN}".encode()).decode()}
Metrics = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parse(text: str) -> Metrics:
    """Every sample by its name and labels; fails where the text is none of Prometheus'."""
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.get((name, frozenset(labels.items())), 0.0)


@asynccontextmanager
async def service(database: Database) -> AsyncGenerator[tuple[aiohttp.ClientSession, str]]:
    store = await PostgresStore.create(database, "http://gateway")
    async with store_service(store, database) as url, aiohttp.ClientSession() as session:
        yield session, url


async def scrape(session: aiohttp.ClientSession, url: str, headers: Mapping[str, str] = BEARER) -> Metrics:
    async with session.get(url, headers=headers) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        return parse(await answer.text())


@pytest.mark.parametrize("path", ["/metrics", "/v1/prometheus", "/v1/prometheus/"])
@pytest.mark.parametrize("headers", [BEARER, BASIC], ids=["bearer", "basic"])
async def test_prometheus_reads_the_service_with_its_token(
    database: Database, path: str, headers: Mapping[str, str]
) -> None:
    async with service(database) as (session, url):
        found = await scrape(session, url + path, headers)
        assert value(found, "relight_postgres_up") == 1
        assert value(found, "process_resident_memory_bytes") > 0
        async with session.get(url + path) as refused:
            assert refused.status == 401


async def test_requests_are_counted_by_route_and_refusals_too(database: Database) -> None:
    async with service(database) as (session, url):
        before = await scrape(session, f"{url}/metrics")
        for run, status in (("a", 404), ("b", 404)):
            async with session.get(f"{url}/v1/relight/runs/{run}", headers=BEARER) as answer:
                assert answer.status == status
        for _ in range(3):
            async with session.get(f"{url}/v1/relight/runs/a") as answer:
                assert answer.status == 401
        after = await scrape(session, f"{url}/metrics")
    runs = {"method": "GET", "path": "/v1/relight/runs/{run}", "status": "404"}
    refused = {"method": "GET", "path": "unmatched", "status": "401"}
    for labels, more in ((runs, 2), (refused, 3)):
        for name in ("agl_http_total", "agl_http_latency_count"):
            assert value(after, name, **labels) - value(before, name, **labels) == more
    assert value(after, "relight_http_in_flight") == 1


async def test_rollouts_runs_and_engines_show_as_postgres_has_them(finished: Database) -> None:
    async with service(finished) as (session, url):
        found = await scrape(session, f"{url}/metrics")
    succeeded = dict(
        await finished.pool.fetchrow("select count(*), mode from rollouts where mode = 'val' group by mode")
    )
    assert value(found, "agl_rollouts_total", status="succeeded", mode="val") == succeeded["count"]
    assert value(found, "agl_rollouts_total", status="failed", mode="train") == 2
    assert value(found, "agl_rollouts_duration_count", status="failed", mode="train") == 2
    assert value(found, "agl_rollouts_duration_bucket", status="failed", mode="train", le="+Inf") == 2
    assert value(found, "relight_attempts", status="failed", failure_class="infrastructure") == 2
    assert value(found, "relight_runs", status="finished") == 1
    assert value(found, "relight_engines", run=RUN, policy=POLICY, state="ready") == 1
    assert value(found, "relight_engine_version", engine_id="engine-1", run=RUN, policy=POLICY) == 2
    assert value(found, "relight_stored_bytes", part="generations") > 0


async def test_a_run_in_progress_shows_its_queue_and_its_step(database: Database, tmp_path: Path) -> None:
    run = SmallRun(database, await PostgresStore.create(database, "http://gateway"), tmp_path)
    await run.begin()
    await run.sample(1)
    await run.update(1)
    await database.pool.execute(
        "insert into rollouts (rollout_id, kind, input, created_at)"
        " values ('x', 'external', '1', now() - interval '1 h')"
    )
    await database.pool.execute(
        "insert into policy_versions (run, policy, version, weights_hash, export_path)"
        " values ($1, 'judge', 7, 'w', 'nowhere')",
        RUN,
    )
    async with service(database) as (session, url):
        found = await scrape(session, f"{url}/metrics")
    assert value(found, "relight_run_step", run=RUN) == 1
    assert value(found, "relight_run_total_steps", run=RUN) == 2
    assert value(found, "relight_run_version", run=RUN, policy=POLICY) == 1
    assert value(found, "relight_run_version", run=RUN, policy="judge") == 7
    assert value(found, "relight_rollouts_open", kind="external", status="queuing") == 1
    assert value(found, "relight_rollouts_oldest_seconds", kind="external", status="queuing") >= 3600


async def test_postgres_is_read_once_for_scrapes_that_come_together(database: Database) -> None:
    snapshot = PostgresFigures(database)
    await snapshot.refresh()
    first = snapshot._metrics
    await snapshot.refresh()
    assert snapshot._metrics is first


async def test_without_postgres_a_process_still_serves_its_own_metrics(database_url: str) -> None:
    database = await Database.connect(database_url)
    async with service(database) as (session, url):
        await database.close()
        found = await scrape(session, f"{url}/metrics")
    assert value(found, "relight_postgres_up") == 0
    assert value(found, "process_resident_memory_bytes") > 0


async def test_shared_commits_are_counted_by_size() -> None:
    async def flush(items: Any) -> Any:
        return items

    before = parse(exposition().decode())
    group: GroupCommit[int, int] = GroupCommit(flush, name="test")
    await group.submit([1, 2, 3])
    after = parse(exposition().decode())
    assert value(after, "relight_group_commit_items_sum", group="test") == 3
    assert value(after, "relight_group_commit_items_count", group="test") == 1
    assert value(before, "relight_group_commit_items_count", group="test") == 0
    assert value(after, "relight_group_commit_waiting", group="test") == 0


class Store:
    """A store of two calls."""

    size = 7

    async def good(self, number: int) -> int:
        return number

    async def bad(self) -> None:
        raise ValueError


async def test_calls_of_a_store_are_counted_by_how_they_ended() -> None:
    store = measured(Store())
    assert (await store.good(3), store.size) == (3, 7)
    with pytest.raises(ValueError):
        await store.bad()
    found = parse(exposition().decode())
    assert value(found, "agl_store_total", method="good", store_pubmeth="good", status="OK") == 1
    assert value(found, "agl_store_total", method="bad", store_pubmeth="bad", status="ValueError") == 1
    assert value(found, "agl_store_latency_count", method="good", store_pubmeth="good", status="OK") == 1


async def asked(app: Any, path: str, headers: Mapping[str, str], method: str = "GET") -> tuple[int, bytes]:
    """One request to an ASGI app."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    raw = [(name.lower().encode(), text.encode()) for name, text in headers.items()]
    await app({"type": "http", "method": method, "path": path, "headers": raw}, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


async def agents_app(scope: Any, receive: Any, send: Any) -> None:
    """Knows one route."""
    known = scope["path"] == "/rollout/r1/attempt/a1/v1/chat/completions"
    await Response(b"{}", 200 if known else 404)(scope, receive, send)


@pytest.mark.parametrize(("headers", "status"), [(BEARER, 200), (BASIC, 200), ({}, 401), ({"Authorization": "x"}, 401)])
async def test_the_gateway_serves_its_metrics_to_the_admin_alone(headers: Mapping[str, str], status: int) -> None:
    answer = await asked(Metered(agents_app, TOKEN), "/metrics", headers)
    assert answer[0] == status
    assert (b"agl_http_total" in answer[1]) == (status == 200)


async def test_a_gateway_without_a_token_serves_no_metrics() -> None:
    for headers in ({"Authorization": "Bearer "}, {"Authorization": "Basic cmVsaWdodDo="}):
        assert (await asked(Metered(agents_app, None), "/metrics", headers))[0] == 401


async def test_calls_of_agents_are_counted_without_their_ids() -> None:
    app, before = Metered(agents_app, TOKEN), parse(exposition().decode())
    await asked(app, "/rollout/r1/attempt/a1/v1/chat/completions", {}, "POST")
    await asked(app, "/nothing/of/that/kind", {}, "POST")
    found = parse(exposition().decode())
    path = "/rollout/{rollout_id}/attempt/{attempt_id}/v1/chat/completions"
    for labels in ({"path": path, "status": "200"}, {"path": "unmatched", "status": "404"}):
        more = [value(metrics, "agl_http_total", method="POST", **labels) for metrics in (before, found)]
        assert more[1] - more[0] == 1
    assert gateway_path({"path": "/rollout/r/attempt/a/v1/models/m/x"}, 200).endswith("/v1/models/{model}")


async def test_unknown_paths_cannot_fill_the_memory() -> None:
    app, before = HttpMetrics(agents_app, lambda scope, _: scope["path"]), parse(exposition().decode())
    for number in range(400):
        await asked(app, f"/made/up/{number}", {})
    found = parse(exposition().decode())
    others = [value(metrics, "agl_http_total", method="GET", path="other", status="404") for metrics in (before, found)]
    assert others[1] - others[0] == 200
