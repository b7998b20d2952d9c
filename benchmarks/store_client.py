"""The client of the store benchmarks, in its own process: the same load for Relight's store and for Agent Lightning's.

`lives`: rollouts from enqueue to finish, with four spans each. `spans`: OTLP batches, built before the clock starts.
`reads`: one rollout's spans after the other. The order of work comes in on standard input, what was measured goes out
on standard output, both as JSON.
"""

from __future__ import annotations

import asyncio
import secrets
import statistics
import sys
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from time import perf_counter, time, time_ns
from typing import Any

import aiohttp
import orjson
import uvloop
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.processes import TOKEN

SPAN_BYTES = 1024
SPANS_A_LIFE = 4


@dataclass
class Order:
    """An order: what to do, and at which store."""

    kind: str
    """`lives`, `spans` or `reads`."""
    count: int
    """Lives, spans or reads."""
    clients: int
    url: str = ""
    name: str = ""
    """Prefix of its rows, different from those of other orders."""
    batch: int = 200
    rollouts: int = 64
    """That the spans are spread over."""
    rollouts_a_batch: int = 1
    rollout_ids: list[str] = field(default_factory=list[str])
    """Which to read."""

    def at(self, url: str, name: str) -> Order:
        """The same at another store."""
        return replace(self, url=url, name=name)


class Caller:
    """Speaks REST and OTLP to a store."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.session = session

    async def post(self, path: str, body: Any) -> Any:
        """A request of 0.3's REST API; its answer."""
        return orjson.loads(await self._send(f"/v1/agl{path}", orjson.dumps(body), "application/json"))

    async def export(self, body: bytes) -> None:
        """An OTLP export."""
        await self._send("/v1/traces", body, "application/x-protobuf")

    async def _send(self, path: str, body: bytes, kind: str) -> bytes:
        async with self.session.post(self.url + path, data=body, headers={"content-type": kind}) as response:
            answer = await response.read()
            if response.status not in (200, 201):
                raise RuntimeError(f"{path}: HTTP {response.status}: {answer[:300]!r}")
        return answer


def span_of(rollout_id: str, attempt_id: str, number: int) -> dict[str, Any]:
    """A span as 0.3's client posts it."""
    now = time()
    return {
        "rollout_id": rollout_id,
        "attempt_id": attempt_id,
        "sequence_id": number,
        "trace_id": secrets.token_hex(16),
        "span_id": secrets.token_hex(8),
        "parent_id": None,
        "name": "chat.completion",
        "status": {"status_code": "OK", "description": None},
        "attributes": {"gen_ai.request.model": "policy", "number": number, "text": "x" * 200},
        "events": [],
        "links": [],
        "start_time": now - 0.1,
        "end_time": now,
        "context": None,
        "parent": None,
        "resource": {"attributes": {"service.name": "bench"}, "schema_url": ""},
    }


async def live(caller: Caller, worker_id: str) -> None:
    """One rollout from enqueue to finish."""
    asked = {"input": {"question": "7*8?"}, "mode": "train"}
    await caller.post("/queues/rollouts/enqueue", {"rollouts": [asked]})
    taken: list[Any] = []
    while not taken:
        taken = await caller.post("/queues/rollouts/dequeue", {"limit": 1, "worker_id": worker_id})
    rollout_id, attempt_id = taken[0]["rollout_id"], taken[0]["attempt"]["attempt_id"]
    for number in range(1, SPANS_A_LIFE + 1):
        await caller.post("/spans", span_of(rollout_id, attempt_id, number))
    await caller.post(f"/rollouts/{rollout_id}/attempts/{attempt_id}", {"status": "succeeded"})


def export_of(attempts: list[tuple[str, str]], spans: int) -> bytes:
    """An OTLP request: spans of 1 KB, distributed over attempts."""
    request = ExportTraceServiceRequest()
    for place, (rollout_id, attempt_id) in enumerate(attempts):
        resource = request.resource_spans.add()
        for key, value in (("rollout_id", rollout_id), ("attempt_id", attempt_id)):
            resource.resource.attributes.add(key=f"agentlightning.{key}").value.string_value = value
        kept = resource.scope_spans.add().spans
        for number in range(place, spans, len(attempts)):
            now = time_ns()
            span = kept.add(trace_id=secrets.token_bytes(16), span_id=secrets.token_bytes(8), name="chat.completion")
            span.start_time_unix_nano, span.end_time_unix_nano = now - 10**8, now
            span.attributes.add(key="gen_ai.request.model").value.string_value = "policy"
            span.attributes.add(key="gen_ai.usage.input_tokens").value.int_value = number
            text = secrets.token_hex((SPAN_BYTES - 110) // 2)
            span.attributes.add(key="gen_ai.completion").value.string_value = text
    return request.SerializeToString()


async def attempts_of(caller: Caller, order: Order) -> list[tuple[str, str]]:
    """Started rollouts, to which the spans belong."""
    started: list[tuple[str, str]] = []
    numbers = iter(range(order.rollouts))

    async def start() -> None:
        for number in numbers:
            row = await caller.post("/rollouts", {"input": {"name": order.name, "number": number}})
            started.append((row["rollout_id"], row["attempt"]["attempt_id"]))

    await asyncio.gather(*(start() for _ in range(8)))
    return started


def batches_of(order: Order, attempts: list[tuple[str, str]]) -> Iterator[bytes]:
    """The requests of an order, each attempt's turn after the other's."""
    width = order.rollouts_a_batch
    for batch in range(order.count // order.batch):
        chosen = [attempts[(batch * width + place) % len(attempts)] for place in range(width)]
        yield export_of(chosen, order.batch)


async def shared(clients: int, work: Callable[[int], Awaitable[None]]) -> None:
    """Some clients at once."""
    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(_as_task(work, number))


async def _as_task(work: Callable[[int], Awaitable[None]], number: int) -> None:
    await work(number)


async def lives(caller: Caller, order: Order) -> dict[str, Any]:
    """All lives; how many a second."""
    left = iter(range(order.count))

    async def client(number: int) -> None:
        for _ in left:
            await live(caller, f"bench-{order.name}-{number}")

    began = perf_counter()
    await shared(order.clients, client)
    return {"rate": order.count / (perf_counter() - began)}


async def spans(caller: Caller, order: Order) -> dict[str, Any]:
    """All spans; how many a second, and whose they are."""
    attempts = await attempts_of(caller, order)
    built = list(batches_of(order, attempts))
    left = iter(built)

    async def client(_: int) -> None:
        for body in left:
            await caller.export(body)

    began = perf_counter()
    await shared(order.clients, client)
    seconds = perf_counter() - began
    return {"rate": len(built) * order.batch / seconds, "rollouts": [rollout_id for rollout_id, _ in attempts]}


async def reads(caller: Caller, order: Order) -> dict[str, Any]:
    """All spans of one rollout after the other's; milliseconds, and how many spans each has."""
    times: list[float] = []
    sizes: set[int] = set()
    for number in range(order.count):
        asked = {"rollout_id": order.rollout_ids[number % len(order.rollout_ids)], "limit": -1}
        began = perf_counter()
        page = await caller.post("/spans/search", asked)
        times.append((perf_counter() - began) * 1e3)
        sizes.add(len(page["items"]))
    ordered = sorted(times)
    return {"median_ms": statistics.median(times), "p99_ms": ordered[int(len(ordered) * 0.99)], "sizes": sorted(sizes)}


async def work(order: Order) -> dict[str, Any]:
    """One order."""
    loads = {"lives": lives, "spans": spans, "reads": reads}

    headers = {"authorization": f"Basic {b64encode(f'relight:{TOKEN}'.encode()).decode()}"}
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:
        return await loads[order.kind](Caller(order.url, session), order)


def main() -> None:
    """Read one order and print one result."""
    order = Order(**orjson.loads(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(orjson.dumps(uvloop.run(work(order))))


if __name__ == "__main__":
    main()
