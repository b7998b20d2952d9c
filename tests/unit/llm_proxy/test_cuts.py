"""Agents whose connections are cut at any moment, and who ask again, leave what undisturbed ones leave."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest
from aiohttp import web

from relight.store.memory.attempts import MemoryAttemptStore
from relight.types.wire import (
    CallContext,
    CommitResult,
    DeliveryMark,
    FinishRequest,
    GenerationRecord,
    OpenedAttempt,
    OpenRequest,
    RecalledCall,
    RecallRequest,
    ResolveRequest,
)
from tests.support.fake_engine import FakeEngine, whole
from tests.support.gateway import listening_gateway

RUN = "demo"
AGENTS = 24
CUT_SHARE = 0.6
UNNOTICED_SHARE = 0.3
"""Of the connections that are given up: the gateway is not told, as where a path swallows packets."""
Recorded = dict[int, tuple[str, int, tuple[int, ...] | None, tuple[int, ...] | None]]
"""Of an attempt, by call number: whether it was delivered, its seed, and its tokens."""


class SlowStore(MemoryAttemptStore):
    """Everything that a gateway asks of it takes a moment, as over a network."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._draw = random.Random(seed)

    async def _pass(self) -> None:
        await asyncio.sleep(self._draw.choice((0, 0, 0.002, 0.01)))

    async def commit_generations(self, items: Sequence[GenerationRecord]) -> list[CommitResult]:
        await self._pass()
        results = await super().commit_generations(items)
        await self._pass()
        return results

    async def resolve(self, request: ResolveRequest) -> CallContext:
        context = await super().resolve(request)
        await self._pass()
        return context

    async def mark_delivered(self, items: Sequence[DeliveryMark]) -> None:
        await self._pass()
        await super().mark_delivered(items)

    async def recall(self, request: RecallRequest) -> RecalledCall:
        await self._pass()
        return await super().recall(request)


class Dialogues(FakeEngine):
    """Its prompts' tokens follow from the messages, so that the turns of a dialogue can be told apart."""

    async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(body["seed"] % 5 / 500)
        prompt = list(orjson.dumps(body["messages"]))
        return web.json_response({**whole(body, chat=True), "prompt_token_ids": prompt})


class Agent:
    """Plays two turns, retrying as OpenAI's client does: the same body, with a count that it raises."""

    def __init__(self, attempt: OpenedAttempt, origin: str, draw: random.Random | None) -> None:
        self._attempt = attempt
        self._url = urlsplit(origin)
        self._draw = draw
        self._abandoned: list[asyncio.StreamWriter] = []

    async def play(self) -> list[str]:
        """What it was told, turn by turn."""
        said: list[str] = []
        for turn in range(2):
            messages = [{"role": "user", "content": f"{turn} {' '.join(said)}"}]
            said.append(await self._ask(orjson.dumps({"model": "policy", "messages": messages, "max_tokens": 4})))
        for writer in self._abandoned:
            writer.close()
        return said

    async def _ask(self, body: bytes) -> str:
        for count in range(100):
            answer = await self._try(self._request(body, count))
            if answer is not None:
                return orjson.loads(answer)["choices"][0]["message"]["content"]
        raise AssertionError("cut off a hundred times")

    def _request(self, body: bytes, count: int) -> bytes:
        path = urlsplit(self._attempt.base_url).path
        lines = [
            f"POST {path}/chat/completions HTTP/1.1",
            "host: gateway",
            f"authorization: Bearer {self._attempt.token}",
            f"x-stainless-retry-count: {count}",
            f"content-length: {len(body)}",
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    async def _try(self, request: bytes) -> bytes | None:
        """One request; None where it was cut off."""
        reader, writer = await asyncio.open_connection(self._url.hostname, self._url.port)
        if self._draw is None or self._draw.random() > CUT_SHARE:
            writer.write(request)
            answer = await read_answer(reader)
            writer.close()
            return answer
        await self._cut(reader, writer, request, self._draw)
        return None

    async def _cut(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes, draw: random.Random
    ) -> None:
        where = draw.choice(("within the request", "at some moment", "at some moment", "after the answer"))
        writer.write(request[: draw.randrange(len(request))] if where == "within the request" else request)
        await writer.drain()
        if where == "at some moment":
            await asyncio.sleep(draw.choice((0, 0.003, 0.006, 0.01, 0.015, 0.02, 0.03)))
        elif where == "after the answer":
            await reader.readexactly(draw.randrange(1, 40))
        if draw.random() < UNNOTICED_SHARE:
            self._abandoned.append(writer)
        else:
            reset(writer)


def reset(writer: asyncio.StreamWriter) -> None:
    """Cut a connection off."""
    opened: socket.socket = writer.get_extra_info("socket")
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    """The body of a 200."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    assert head.startswith(b"http/1.1 200"), head + await reader.read(1000)
    return await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))


@asynccontextmanager
async def dialogues(path: Path, seed: int) -> AsyncGenerator[tuple[SlowStore, str]]:
    """A store, an engine and a gateway; yields the store and the gateway's address."""
    store, engine = SlowStore(seed), Dialogues(path)
    await engine.start()
    store.add_engine(url=engine.url)
    try:
        async with listening_gateway(store) as client:
            yield store, client.origin
    finally:
        await engine.stop()


async def play(path: Path, seed: int, cut: bool) -> list[tuple[list[str], Recorded]]:
    """What many agents at once were told, and what the store has of them: each ends as soon as it has its answers."""
    async with dialogues(path, seed) as (store, origin):

        async def one(number: int) -> tuple[list[str], Recorded]:
            store.add_rollout(f"r{number}", run=RUN)
            opening = OpenRequest(rollout_id=f"r{number}", try_number=1, execution="e", worker_id="w")
            attempt = (await store.open_attempt(opening)).attempt
            assert attempt is not None
            said = await Agent(attempt, origin, random.Random(seed * 1000 + number) if cut else None).play()
            await store.finish_attempt(FinishRequest(attempt_id=attempt.attempt_id, fence=attempt.fence, reward=1.0))
            return said, recorded(store, attempt.attempt_id)

        return await asyncio.gather(*map(one, range(AGENTS)))


def recorded(store: MemoryAttemptStore, attempt_id: str) -> Recorded:
    """What the store has of an attempt."""
    return {
        number: (
            call.delivered,
            call.record.seed,
            tuple(call.record.prompt_token_ids or ()),
            tuple(call.record.choices[0].response_token_ids or ()),
        )
        for number, call in store.attempt(attempt_id).calls.items()
    }


@pytest.mark.parametrize("seed", range(4))
async def test_agents_whose_connections_are_cut_at_any_moment_leave_the_same_recorded_calls(
    tmp_path: Path, seed: int
) -> None:
    undisturbed = await play(tmp_path / "quiet.sock", seed, cut=False)
    torn = await play(tmp_path / "torn.sock", seed, cut=True)
    for (said, left), (said_torn, left_torn) in zip(undisturbed, torn, strict=True):
        assert said_torn == said
        assert left_torn == left
