"""The agents of `benchmarks.relay`: the same model call directly and through the runner's relay, in turns."""

from __future__ import annotations

import asyncio
import http.client
import json
import statistics
from time import perf_counter, sleep
from urllib.parse import urlsplit

import aiohttp

QUESTION = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "7*8? " * 200}]}).encode()


def _report(waits: tuple[list[float], list[float]]) -> float:
    """Medians and means of both sides in ms; the first tenth was a warm-up."""
    kept = [side[len(side) // 10 :] for side in waits]
    print(json.dumps([[1e3 * statistics.median(side), 1e3 * statistics.fmean(side)] for side in kept]))
    return 1.0


def by_itself(task, llm):
    """In a process of its own, as a synchronous agent."""
    ways = [urlsplit(task["straight"]), urlsplit(llm.endpoint)]
    connections = [http.client.HTTPConnection(way.hostname, way.port) for way in ways]
    waits: tuple[list[float], list[float]] = ([], [])
    for number in range(task["calls"]):
        for side in (0, 1) if number % 2 else (1, 0):
            began = perf_counter()
            connections[side].request("POST", f"{ways[side].path}/chat/completions", QUESTION)
            connections[side].getresponse().read()
            waits[side].append(perf_counter() - began)
        sleep(task["pause"])
    return _report(waits)


async def beside_others(task, llm):
    """In a shared process, as an asynchronous agent."""
    ways = [task["straight"], llm.endpoint]
    waits: tuple[list[float], list[float]] = ([], [])
    async with aiohttp.ClientSession() as session:
        for number in range(task["calls"]):
            for side in (0, 1) if number % 2 else (1, 0):
                began = perf_counter()
                async with session.post(f"{ways[side]}/chat/completions", data=QUESTION) as answer:
                    await answer.read()
                waits[side].append(perf_counter() - began)
            await asyncio.sleep(task["pause"])
    return _report(waits)
