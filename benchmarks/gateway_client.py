"""The client of `benchmarks.gateway`, a process of its own: makes the same calls to vLLM and to the gateway, in turns.

With one call in flight the two sides take turns call by call, with more of them round by round. The order of work comes
in on standard input, the rounds go out on standard output, both as JSON.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import aiohttp
import orjson

TOKENS = 32
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Order:
    """What to do."""

    socket: str
    """Of the engine."""
    rounds: list[list[tuple[str, str]]]
    """For each round its attempts: base URL and key."""
    calls_per_attempt: int
    in_flight: int
    watched: dict[str, list[int]]
    """Processes whose CPU time is read, by name."""


@dataclass
class Side:
    """One side of a round."""

    calls: int = 0
    seconds: float = 0.0
    median_ms: float = 0.0
    cpu_ms: dict[str, float] = field(default_factory=dict[str, float])
    """CPU time a call, by process."""


def request(number: int) -> bytes:
    """One call; the fields that the gateway adds are there already, so vLLM gets the same from both sides."""
    return orjson.dumps(
        {
            "model": "policy",
            "messages": [{"role": "user", "content": f"{number % 10}*{number // 10 % 10}?"}],
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "seed": number,
            "logprobs": True,
            "return_token_ids": True,
        }
    )


class Caller:
    """Makes calls of either side, and keeps their times."""

    def __init__(self, order: Order, direct: aiohttp.ClientSession, through: aiohttp.ClientSession) -> None:
        self.order = order
        self.direct = direct
        self.through = through

    async def call(self, gateway: bool, base: str, key: str, number: int) -> float:
        """One call; returns its seconds."""
        url = f"{base}/chat/completions" if gateway else "http://engine/v1/chat/completions"
        headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
        content = request(number)
        session = self.through if gateway else self.direct
        began = perf_counter()
        async with session.post(url, data=content, headers=headers) as response:
            answer = orjson.loads(await response.read())
        took = perf_counter() - began
        if response.status != 200 or len(answer["choices"][0]["token_ids"]) != TOKENS:
            raise RuntimeError(f"{url}: HTTP {response.status}: {str(answer)[:300]}")
        return took

    async def by_round(self, attempts: list[tuple[str, str]]) -> tuple[Side, Side]:
        """All calls of one side, `in_flight` at a time, then all of the other."""
        return await self.side(False, attempts), await self.side(True, attempts)

    async def side(self, gateway: bool, attempts: list[tuple[str, str]]) -> Side:
        """All calls of one side; an attempt's calls follow each other."""
        waits: list[float] = []
        work = iter(enumerate(attempts))

        async def slot() -> None:
            for number, (base, key) in work:
                for call in range(self.order.calls_per_attempt):
                    waits.append(await self.call(gateway, base, key, number * self.order.calls_per_attempt + call))

        before, began = self.cpu_seconds(), perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(self.order.in_flight):
                group.create_task(slot())
        seconds, after = perf_counter() - began, self.cpu_seconds()
        cpu = {name: (after[name] - before[name]) / len(waits) * 1e3 for name in after}
        return Side(len(waits), seconds, statistics.median(waits) * 1e3, cpu)

    async def by_call(self, attempts: list[tuple[str, str]]) -> tuple[Side, Side]:
        """One call of one side, then the same of the other. vLLM's CPU time is shared between them."""
        waits: tuple[list[float], list[float]] = ([], [])
        before = self.cpu_seconds()
        for number, (base, key) in enumerate(attempts):
            for call in range(self.order.calls_per_attempt):
                for gateway in (False, True) if call % 2 else (True, False):
                    waits[gateway].append(await self.call(gateway, base, key, number * 100 + call))
        after = self.cpu_seconds()
        count = len(waits[0])
        cpu = {name: (after[name] - before[name]) / count * 1e3 / (1 + (name == "vllm")) for name in after}
        direct, through = (Side(count, sum(side), statistics.median(side) * 1e3, cpu) for side in waits)
        return direct, through

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time of the watched processes and their living descendants."""
        times, children = read_processes()
        return {
            name: sum(times.get(pid, 0.0) for pid in family(pids, children))
            for name, pids in self.order.watched.items()
        }


def read_processes() -> tuple[dict[int, float], dict[int, list[int]]]:
    """CPU seconds of every process, and its children."""
    times: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            times[int(entry.name)] = (int(fields[11]) + int(fields[12])) / TICKS
    return times, children


def family(pids: list[int], children: dict[int, list[int]]) -> Iterator[int]:
    """Processes and all their descendants, each once."""
    seen: set[int] = set()
    left = list(pids)
    while left:
        pid = left.pop()
        if pid not in seen:
            seen.add(pid)
            left += children.get(pid, [])
            yield pid


async def work(order: Order) -> list[tuple[Side, Side]]:
    """All rounds: the measurements of vLLM and of the gateway."""
    async with AsyncExitStack() as stack:
        unix, tcp = aiohttp.UnixConnector(order.socket, limit=0), aiohttp.TCPConnector(limit=0)
        direct = await stack.enter_async_context(aiohttp.ClientSession(connector=unix))
        through = await stack.enter_async_context(aiohttp.ClientSession(connector=tcp))
        caller = Caller(order, direct, through)
        measure = caller.by_call if order.in_flight == 1 else caller.by_round
        return [await measure(attempts) for attempts in order.rounds]


def main() -> None:
    """Read one order and print one result."""
    order: Any = orjson.loads(sys.stdin.buffer.read())
    rounds = asyncio.run(work(Order(**order)))
    sys.stdout.buffer.write(orjson.dumps([[asdict(side) for side in sides] for sides in rounds]))


if __name__ == "__main__":
    main()
