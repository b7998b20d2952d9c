"""`/metrics` of the store service: the counts of this process, and figures from Postgres.

Any number of services may be scraped. Postgres is read once for all scrapes of a few seconds, and so rarely that
reading takes at most a twentieth of the time. While Postgres does not answer, only the process' own counts are served.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from starlette.responses import Response

from relight.errors import RelightError
from relight.observability import metrics
from relight.store.database import Database

router = APIRouter(tags=["operations"])
DURATIONS = (0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
SHORTEST_SECONDS = 5.0
"""Postgres is not read again sooner than that."""
SHARE = 20
"""At most one part in this many of the time is spent reading."""
ANSWER_SECONDS = 8.0
"""Prometheus itself gives up after 10 s by default."""


class Gauge(NamedTuple):
    """A figure from the rows of a query: the sum of a column, by other columns."""

    name: str
    text: str
    query: str
    column: str | None
    """None: how many rows there are."""
    labels: tuple[str, ...] = ()


GAUGES = (
    Gauge("relight_rollouts_open", "Rollouts not ended.", "open_rollouts", "number", ("kind", "status")),
    Gauge("relight_rollouts_oldest_seconds", "Age of them.", "open_rollouts", "oldest_seconds", ("kind", "status")),
    Gauge("relight_attempts", "Attempts on record.", "attempts", "number", ("status", "failure_class")),
    Gauge("relight_rollouts_failed", "Rollouts that failed.", "failures", "number", ("kind", "failure_class")),
    Gauge("relight_rollouts_quarantined", "Given up.", "quarantined", "number"),
    Gauge("relight_run_warnings", "What runs are warned of.", "warnings", "number", ("run", "name")),
    Gauge("relight_outbox_waiting", "Workflows to be started.", "outbox", "number"),
    Gauge("relight_outbox_oldest_seconds", "Age of them.", "outbox", "oldest_seconds"),
    Gauge("relight_runs", "Runs.", "runs", "number", ("status",)),
    Gauge("relight_run_step", "Last recorded step.", "running", "step", ("run",)),
    Gauge("relight_run_total_steps", "Steps to do.", "running", "total_steps", ("run",)),
    Gauge("relight_run_paused", "It is paused.", "running", "paused", ("run",)),
    Gauge("relight_run_version", "Newest policy version.", "versions", "version", ("run", "policy")),
    Gauge("relight_engines", "Engines.", "engines", None, ("run", "policy", "state")),
    Gauge("relight_engine_version", "Version held; -1: none.", "engines", "version", ("engine_id", "run", "policy")),
    Gauge("relight_processes", "Alive.", "workers", "number", ("kind",)),
    Gauge("relight_stored_bytes", "With indexes.", "stored", "size_bytes", ("part",)),
)
QUERIES = tuple(dict.fromkeys(gauge.query for gauge in GAUGES))


class PostgresFigures(Collector):
    """The figures that were last read from Postgres."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = asyncio.Lock()
        self._until = 0.0
        self._metrics: list[Metric] = []
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """The figures from Postgres, and the pool of this process."""
        return [*self._metrics, self._pool()]

    async def refresh(self) -> None:
        """Read Postgres, unless that was done recently."""
        async with self._lock:
            began = perf_counter()
            if began < self._until:
                return
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    known = await self._read()
                self._metrics = [_gauge("relight_postgres_up", "Postgres answers.", (), [((), 1)]), *known]
            except (RelightError, TimeoutError):
                self._metrics = [_gauge("relight_postgres_up", "Postgres answers.", (), [((), 0)])]
            ended = perf_counter()
            self._until = ended + max(SHORTEST_SECONDS, SHARE * (ended - began))

    async def _read(self) -> list[Metric]:
        rows = {name: await self._database.fetch(f"metrics_{name}") for name in QUERIES}
        ended = await self._database.fetch("metrics_ended_rollouts", list(DURATIONS))
        return [*_rollout_metrics(ended), *(_summed(gauge, rows[gauge.query]) for gauge in GAUGES)]

    def _pool(self) -> Metric:
        pool = self._database.pool
        idle = pool.get_idle_size()
        values = [(("used",), pool.get_size() - idle), (("idle",), idle), (("most",), pool.get_max_size())]
        return _gauge("relight_pool_connections", "Connections to Postgres of this process.", ("state",), values)


def _gauge(name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for given, value in values:
        family.add_metric(given, value)
    return family


def _rollout_metrics(ended: Sequence[Any]) -> list[Metric]:
    """0.3's two: rollouts that ended, and how long they took."""
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0] * (len(DURATIONS) + 1))
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    for row in ended:
        key = (row["status"], row["mode"])
        counts[key][row["bucket"]] += row["number"]
        seconds[key] += row["seconds"]
    total = CounterMetricFamily("agl_rollouts", "Rollouts that ended.", labels=("status", "mode"))
    duration = HistogramMetricFamily("agl_rollouts_duration", "Seconds of ended rollouts.", labels=("status", "mode"))
    bounds = [*map(str, DURATIONS), "+Inf"]
    for key, by_bucket in counts.items():
        total.add_metric(key, sum(by_bucket))
        duration.add_metric(key, list(zip(bounds, itertools.accumulate(by_bucket), strict=True)), seconds[key])
    return [total, duration]


def _summed(gauge: Gauge, rows: Sequence[Any]) -> Metric:
    numbers: dict[tuple[str, ...], float] = defaultdict(float)
    for row in rows:
        numbers[tuple(str(row[label]) for label in gauge.labels)] += row[gauge.column] if gauge.column else 1
    return _gauge(gauge.name, gauge.text, gauge.labels, numbers.items())


def route_path(scope: metrics.Scope, status: int) -> str:
    """The path of a request's route, with its parameters by name."""
    return getattr(scope.get("route"), "path", metrics.UNMATCHED)


@router.get("/metrics", response_class=Response)
@router.get("/v1/prometheus", response_class=Response, include_in_schema=False)
@router.get("/v1/prometheus/", response_class=Response, include_in_schema=False)
async def read_metrics(request: Request) -> Response:
    """Metrics as Prometheus reads them."""
    snapshot: PostgresFigures | None = request.app.state.snapshot
    found = metrics.exposition()
    if snapshot:
        await snapshot.refresh()
        found += generate_latest(snapshot.registry)
    return Response(found, media_type=metrics.CONTENT_TYPE)
