"""A gateway that listens, in front of a scripted store."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from hashlib import sha256
from typing import Any

import aiohttp

from relight.errors import ConflictError, InvalidRequestError, StoreError, UnauthorizedError
from relight.llm_proxy.app import open_gateway
from relight.llm_proxy.metrics import Metered
from relight.llm_proxy.server import Server, bind, configure
from relight.types.wire import (
    CallContext,
    CallFailure,
    CommitResult,
    DeliveryMark,
    EndedAttempts,
    EngineInfo,
    GenerationRecord,
    RecalledCall,
    RecallRequest,
    ResolveRequest,
    UndeliveredCall,
    WorkerReport,
)

TOKEN = "rl-token"
ADMIN = "admin-token"
CHAT = "chat/completions"
SAMPLING = {"temperature": 0.7, "top_p": 1.0, "top_k": -1, "max_tokens": 8, "stop": []}


class ScriptedStore:
    """The part of the store that a gateway sees, with switches for what can go wrong."""

    def __init__(self) -> None:
        self.context: dict[str, Any] = {
            "run": "r",
            "model": "policy",
            "seed_base": "7/1/0/0/1",
            "sampling": SAMPLING,
            "agent_chooses_sampling": False,
            "min_version": 0,
            "max_version": 0,
            "engine_wait_seconds": 30.0,
        }
        self.listed: list[EngineInfo] = []
        self.records: dict[tuple[str, int], GenerationRecord] = {}
        self.batches: list[int] = []
        self.marks: dict[tuple[str, int], str] = {}
        self.failures: list[CallFailure] = []
        self.resolved: list[ResolveRequest] = []
        self.dead: set[str] = set()
        self.refused_marks: frozenset[str] = frozenset()
        """As by a store service that knows no such marks."""
        self.away = False
        self.turned_away = 0
        self.committing = 0
        """How often commits were asked for."""
        self.lists = 0
        """How often the engines were asked for."""
        self.commit_gate = asyncio.Event()
        self.commit_gate.set()
        self.changed = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something that the store was told makes `condition` true."""
        async with asyncio.timeout(10):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    def _reached(self) -> None:
        self.changed.set()
        if self.away:
            self.turned_away += 1
            raise StoreError("away")

    def has_engine(self, url: str, version: int = 0, engine_id: str = "e1") -> None:
        """An engine acknowledged a version."""
        self.listed = [engine for engine in self.listed if engine.engine_id != engine_id]
        self.listed.append(EngineInfo(engine_id=engine_id, run="r", url=url, model="policy", version=version))

    async def resolve(self, request: ResolveRequest) -> CallContext:
        self._reached()
        self.resolved.append(request)
        if not request.token.startswith(TOKEN):
            raise UnauthorizedError
        if request.attempt_id in self.dead:
            raise ConflictError("attempt a was superseded")
        mine = {n: r for (attempt, n), r in self.records.items() if attempt == request.attempt_id}
        marks = {n: self.marks.get((request.attempt_id, n), record.delivered) for n, record in mine.items()}
        return CallContext(
            rollout_id=request.rollout_id,
            attempt_id=request.attempt_id,
            next_call_number=max(mine, default=0) + 1,
            undelivered=[
                UndeliveredCall.model_validate(
                    {"call_number": n, "request_hash": r.request_hash, "delivered": marks[n], "response": r.response}
                )
                for n, r in mine.items()
                if marks[n] != "yes"
            ],
            **self.context,
        )

    async def ended_attempts(self, request: EndedAttempts) -> EndedAttempts:
        return EndedAttempts(attempt_ids=[name for name in request.attempt_ids if name in self.dead])

    async def recall(self, request: RecallRequest) -> RecalledCall:
        self._reached()
        record = self.records[(request.attempt_id, request.call_number)]
        hashed, response = record.request_hash, record.response
        number = request.call_number
        call = UndeliveredCall(call_number=number, request_hash=hashed, delivered="unknown", response=response)
        return RecalledCall(call=call)

    async def commit_generations(self, items: Sequence[GenerationRecord]) -> list[CommitResult]:
        self.committing += 1
        self._reached()
        await self.commit_gate.wait()
        self._reached()
        self.batches.append(len(items))
        return [self._commit(item) for item in items]

    def _commit(self, item: GenerationRecord) -> CommitResult:
        GenerationRecord.model_validate(item.model_dump())
        assert item.token_hash == sha256(TOKEN.encode()).hexdigest()
        if item.attempt_id in self.dead:
            return CommitResult(state="conflict", reason="attempt a was superseded")
        key = (item.attempt_id, item.call_number)
        if key in self.records and self.records[key].request_hash != item.request_hash:
            number = max(n for a, n in self.records if a == item.attempt_id) + 1
            return CommitResult(state="renumber", next_call_number=number)
        self.records[key] = item
        return CommitResult(state="committed")

    async def record_call_failures(self, items: Sequence[CallFailure]) -> None:
        self._reached()
        self.failures += items

    async def mark_delivered(self, items: Sequence[DeliveryMark]) -> None:
        self._reached()
        if self.refused_marks & {item.delivered for item in items}:
            raise InvalidRequestError
        self.marks |= {(item.attempt_id, item.call_number): item.delivered for item in items}

    async def engines(self, run: str) -> list[EngineInfo]:
        self.lists += 1
        self._reached()
        return list(self.listed)

    async def register_worker(self, worker: WorkerReport) -> None:
        self._reached()

    def calls(self, attempt_id: str = "a") -> dict[int, GenerationRecord]:
        """What was committed for an attempt, by call number."""
        return {number: record for (attempt, number), record in sorted(self.records.items()) if attempt == attempt_id}

    def delivered(self, attempt_id: str = "a") -> dict[int, str]:
        """The marks of an attempt's calls."""
        return {number: mark for (attempt, number), mark in sorted(self.marks.items()) if attempt == attempt_id}


class Client:
    """An agent's side of the connection."""

    def __init__(self, session: aiohttp.ClientSession, origin: str) -> None:
        self.session = session
        self.origin = origin

    def base(self, attempt: str = "a") -> str:
        return f"{self.origin}/rollout/ro/attempt/{attempt}"

    def post(
        self, body: Any = None, attempt: str = "a", route: str = "chat/completions", retry: int = 0, **change: Any
    ):
        """One call; a chat with a fixed question unless `body` says otherwise."""
        body = {"model": "policy", "messages": [{"role": "user", "content": "7*8?"}]} if body is None else body
        headers = {"authorization": f"Bearer {TOKEN}"} | ({"x-stainless-retry-count": str(retry)} if retry else {})
        return self.session.post(f"{self.base(attempt)}/v1/{route}", json={**body, **change}, headers=headers)

    async def call(self, **arguments: Any) -> tuple[int, Any]:
        """One call, with its status and answer."""
        async with self.post(**arguments) as response:
            return response.status, await response.json()

    async def status(self, attempt: str = "a", token: str = ADMIN) -> Any:
        """The status route."""
        async with self.session.get(f"{self.base(attempt)}/status", headers={"authorization": f"Bearer {token}"}) as r:
            return await r.json()


class QuietServer(Server):
    """Leaves the test run's signals alone."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@asynccontextmanager
async def listening_gateway(store: Any, port: int = 0, **options: Any) -> AsyncGenerator[Client]:
    """A gateway on a port of loopback (0: a free one), and a client for it. Ends as the process does, draining."""
    sock: socket.socket = bind("127.0.0.1", port)
    async with open_gateway(store, ADMIN, **options) as app:
        config = configure(Metered(app, ADMIN, app.engines), 5)
        server = QuietServer(config)
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        connector = aiohttp.TCPConnector(limit=0)
        try:
            async with aiohttp.ClientSession(connector=connector) as session:
                yield Client(session, f"http://127.0.0.1:{sock.getsockname()[1]}")
        finally:
            server.should_exit = True
            await serving
