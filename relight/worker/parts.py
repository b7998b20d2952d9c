"""The parts of the embedded stack: how each is started, asked whether it is ready, and stopped.

All are started at once: a service imports its modules while Postgres and Temporal boot, then waits for them itself
(`--wait`). They are stopped agents first, Postgres last.
"""

from __future__ import annotations

import importlib.util
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncpg
from temporalio.client import Client
from temporalio.service import RPCError

from relight.connections import TEMPORAL_ALIVE
from relight.errors import ConfigError
from relight.settings import Settings
from relight.worker import postgres_server, temporal_server
from relight.worker.addresses import Addresses, environment
from relight.worker.health import require_http
from relight.worker.ports import address, listens
from relight.worker.postgres_server import PostgresServer
from relight.worker.processes import Part
from relight.worker.temporal_binary import Binary

POSTGRES, TEMPORAL, STORE, GATEWAY = "postgres", "temporal", "store", "gateway"
ORCHESTRATOR, GPU_WORKER, RUNNER = "orchestrator", "gpu-worker", "runner"
NAMES = (POSTGRES, TEMPORAL, STORE, GATEWAY, ORCHESTRATOR, GPU_WORKER, RUNNER)
STOPS: Mapping[str, tuple[int, float]] = {
    RUNNER: (0, 2.0),
    GPU_WORKER: (1, 2.0),
    ORCHESTRATOR: (1, 2.0),
    GATEWAY: (2, 0.0),
    STORE: (3, 0.0),
    TEMPORAL: (4, 2.0),
    POSTGRES: (5, 4.0),
}
"""Stage and seconds, beside those that a service drains: what has not ended by then is killed, nothing is lost."""
WAIT_SECONDS = 300
"""How long a service waits for what it needs before it ends and is started again."""
Ready = Callable[[int], Awaitable[bool]]
Roads = Callable[[str, Settings], Mapping[str, str]]
"""Variables for one process of the stack, by its name: how it reaches the others where that is not the straight way."""
GPU_MODULES = ("vllm", "verl", "torch")


@dataclass(frozen=True)
class Request:
    """What the stack is asked to run."""

    agents: Sequence[str] = ()
    only: frozenset[str] | None = None
    runners: int = 1
    runner_flags: Sequence[str] = ()
    roads: Roads | None = None


def wanted(request: Request, addresses: Addresses) -> list[str]:
    """Names of the parts to start, in the order in which they are shown.

    Raises:
        ConfigError: a part that does not exist.
    """
    unknown = sorted((request.only or frozenset()) - set(NAMES))
    if unknown:
        raise ConfigError(f"there is no part named {', '.join(unknown)}; the parts are {', '.join(NAMES)}")
    absent = {POSTGRES: not addresses.own_postgres, TEMPORAL: not addresses.own_temporal, RUNNER: not request.agents}
    if request.only is None:
        absent[GPU_WORKER] = bool(missing_gpu_modules())
    return [name for name in NAMES if (request.only is None or name in request.only) and not absent.get(name)]


def missing_gpu_modules() -> list[str]:
    """What a GPU worker would need and this environment lacks."""
    return [name for name in GPU_MODULES if importlib.util.find_spec(name) is None]


class PartFactory:
    """Makes parts for one home folder."""

    def __init__(
        self, request: Request, addresses: Addresses, postgres: PostgresServer | None, temporal: Binary | None
    ) -> None:
        self.request = request
        self.addresses = addresses
        self.settings: Settings = addresses.settings
        self.postgres = postgres
        self.temporal = temporal
        self.environment = environment(addresses)
        self.client: Client | None = None

    def make(self, name: str) -> list[Part]:
        """The processes of a part; several for runners."""
        if name == POSTGRES and self.postgres:
            return [self._postgres(self.postgres)]
        if name == TEMPORAL and self.temporal:
            return [self._temporal(self.temporal)]
        if name == RUNNER:
            flags = [*self.request.agents, *self.request.runner_flags]
            titles = [RUNNER, *(f"{RUNNER}-{number}" for number in range(2, self.request.runners + 1))]
            return [self._service(title, RUNNER, flags, self._reported(RUNNER), 0.3) for title in titles]
        ready, ask_seconds = {
            STORE: (self._serves(self.settings.store_url), 0.1),
            GATEWAY: (self._serves(self.settings.gateway_url), 0.1),
            ORCHESTRATOR: (self._polls(self.settings.orchestrator_queue), 0.3),
            GPU_WORKER: (self._polls(self.settings.gpu_queue), 0.5),
        }[name]
        return [self._service(name, name, [], ready, ask_seconds)]

    def _log(self, name: str) -> Path:
        return self.settings.home / "logs" / f"{name}.log"

    def _postgres(self, server: PostgresServer) -> Part:
        return Part(
            name=POSTGRES,
            command=server.command(),
            log=self._log(POSTGRES),
            ready=self._postgres_answers,
            environment={"PATH": self.environment.get("PATH", ""), "LC_ALL": "C.UTF-8"},
            folder=server.folder,
            prepare=lambda: postgres_server.prepare(server),
            user=server.user,
            stop_stage=STOPS[POSTGRES][0],
            stop_seconds=STOPS[POSTGRES][1],
            stop_signal=signal.SIGINT,  # "fast shutdown": ends sessions, writes a checkpoint
            death_signal=signal.SIGQUIT,  # "immediate shutdown": its children end too; recovers at the next start
        )

    def _temporal(self, binary: Binary) -> Part:
        folder = self.settings.home / "temporal"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        ports = self.addresses.ports
        return Part(
            name=TEMPORAL,
            command=temporal_server.command(
                binary.path,
                folder / "temporal.db",
                self.settings.temporal_namespace,
                ports["temporal"],
                ports["temporal_ui"],
            ),
            log=self._log(TEMPORAL),
            ready=self._temporal_answers,
            environment=self.environment,
            folder=folder,
            stop_stage=STOPS[TEMPORAL][0],
            stop_seconds=STOPS[TEMPORAL][1],
        )

    def _service(self, title: str, name: str, flags: Sequence[str], ready: Ready, ask_seconds: float) -> Part:
        command = [sys.executable, "-m", "relight.cli", name, "--wait", str(WAIT_SECONDS), *flags]
        return Part(
            name=title,
            command=command,
            log=self._log(title),
            ready=ready,
            environment=self._environment(title, name),
            folder=Path.cwd(),
            stop_stage=STOPS[name][0],
            stop_seconds=STOPS[name][1] + self.settings.drain_seconds,
            ask_seconds=ask_seconds,
        )

    def _environment(self, title: str, name: str) -> Mapping[str, str]:
        """Runner and gateway live on HTTP alone; the others get Postgres' address."""
        own = {key: value for key, value in self.environment.items() if key != "RELIGHT_POSTGRES_URL"}
        if name not in (RUNNER, GATEWAY) and self.settings.postgres_url:
            own["RELIGHT_POSTGRES_URL"] = self.settings.postgres_url
        return own | dict(self.request.roads(title, self.settings)) if self.request.roads else own

    async def _postgres_answers(self, pid: int) -> bool:
        return await self._ask_postgres("select 1") == 1

    async def _temporal_answers(self, pid: int) -> bool:
        if not listens(pid, self.addresses.ports["temporal"]):
            return False
        try:
            client = await self._connect()
            await temporal_server.configure(client, set_retention=True)
        except (RPCError, RuntimeError):  # it starts
            return False
        if self.settings.temporal_ui_url:
            await require_http(self.settings.temporal_ui_url, "the Web UI", "its port")
        return True

    def _serves(self, url: str) -> Ready:
        port = address(url)[1]

        async def serves(pid: int) -> bool:
            if not listens(pid, port):
                return False
            await require_http(f"{url}/healthz", "it", "its address")
            return True

        return serves

    def _polls(self, queue: str) -> Ready:
        async def polls(pid: int) -> bool:
            try:
                return await temporal_server.polls(await self._connect(), queue, pid)
            except (RPCError, RuntimeError):  # the server is away
                return False

        return polls

    def _reported(self, kind: str) -> Ready:
        async def reported(pid: int) -> bool:
            """Whether the store has heard of it."""
            query = "select exists (select from workers where kind = $1 and pid = $2)"
            return bool(await self._ask_postgres(query, kind, pid))

        return reported

    async def _ask_postgres(self, query: str, *values: object) -> object:
        """One value, or None while there is no answer: it starts, it recovers, it has no schema yet."""
        try:
            connection = await asyncpg.connect(self.settings.postgres_url, timeout=5)
            try:
                return await connection.fetchval(query, *values)
            finally:
                await connection.close()
        except (asyncpg.PostgresError, asyncpg.InterfaceError):
            return None

    async def _connect(self) -> Client:
        if self.client is None:
            self.client = await Client.connect(
                self.settings.temporal_address,
                namespace=self.settings.temporal_namespace,
                keep_alive_config=TEMPORAL_ALIVE,
            )
        return self.client
