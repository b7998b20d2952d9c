"""The parts of the embedded stack: how each is started, checked and stopped.

All are started at once: a service imports its modules while Postgres and Temporal boot, then waits for them (`--wait`).
Runners are stopped first, Postgres last.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import platform
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import asyncpg
from temporalio.client import Client
from temporalio.service import RPCError

from relight.errors import ConfigError, TemporalError
from relight.processes import common_variables
from relight.settings import Settings, environment_name
from relight.stack import postgres_roles, postgres_server, temporal_server
from relight.stack.addresses import Addresses, environment
from relight.stack.http_check import require_http
from relight.stack.ports import address, listens
from relight.stack.postgres_server import PostgresServer
from relight.stack.supervisor import ManagedProcess
from relight.stack.temporal_binary import Binary
from relight.store.attempts.attempt_tokens import runner_token
from relight.store.database import Database
from relight.store.live_connection import UNREACHABLE_ERRORS
from relight.temporal.connection import connect_temporal
from relight.temporal.server_setup import configure

log = logging.getLogger(__name__)
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
"""Stop stage, and seconds (in addition to a service's drain time) after which a part is killed; no record is lost by
it.
"""
POSTGRES_END = ((signal.SIGINT, 10.0), (signal.SIGQUIT, 5.0))
"""Signals for a Postgres that waits for its sessions: fast shutdown closes them, immediate shutdown recovers later."""
SILENT_SECONDS = 30.0
"""A part reports every 10 s; without a report for this time it counts as not answering."""
REPORT_CHECK_SECONDS = 15.0
"""The interval of these checks; after an outage of Postgres, reports take a moment to resume."""
WAIT_SECONDS = 300
"""How long a service waits for the services that it needs; then it exits and is restarted."""
POSTGRES_URL = "RELIGHT_POSTGRES_URL"
PROVIDER_KEY = "_API_KEY"
"""The end of the names of model providers' keys."""
COMMON = common_variables.COMMON | common_variables.CACHES.keys() | {"XDG_CONFIG_HOME", "XDG_CACHE_HOME"}
SERVICE = ("RELIGHT_", "TEMPORAL_")
STORAGE = ("AWS_", "FSSPEC_", "GOOGLE_", "AZURE_")
"""What libraries for object storage read."""
PREFIXES: Mapping[str, tuple[str, ...]] = {
    TEMPORAL: (),
    STORE: ("RELIGHT_", *STORAGE),
    GATEWAY: ("RELIGHT_",),
    ORCHESTRATOR: (*SERVICE, *STORAGE),
    RUNNER: SERVICE,
}
"""By part, the beginnings of the names of further variables. A runner gets no key of a provider or of storage."""
Ready = Callable[[int], Awaitable[bool]]
AddressOverrides = Callable[[str, Settings], Mapping[str, str]]
"""Environment variables of single processes, by name: other addresses than the stack's."""
GPU_MODULES = ("vllm", "verl", "torch")


@dataclass(frozen=True)
class StackRequest:
    """What to run in the stack."""

    agents: Sequence[str] = ()
    only: frozenset[str] | None = None
    runners: int = 1
    runner_flags: Sequence[str] = ()
    overrides: AddressOverrides | None = None


def wanted(request: StackRequest, addresses: Addresses) -> list[str]:
    """Names of the parts to start, in the order in which they are shown.

    Raises:
        ConfigError: a part does not exist.
    """
    unknown = sorted((request.only or frozenset()) - set(NAMES))
    if unknown:
        raise ConfigError(f"there is no part named {', '.join(unknown)}; the parts are {', '.join(NAMES)}")
    absent = {POSTGRES: not addresses.own_postgres, TEMPORAL: not addresses.own_temporal, RUNNER: not request.agents}
    if request.only is None:
        absent[GPU_WORKER] = bool(missing_gpu_modules())
    return [name for name in NAMES if (request.only is None or name in request.only) and not absent.get(name)]


def missing_gpu_modules() -> list[str]:
    """Packages that a GPU worker needs and this environment lacks."""
    return [name for name in GPU_MODULES if importlib.util.find_spec(name) is None]


def needed(environ: Mapping[str, str], name: str, passed: Sequence[str] = ()) -> dict[str, str]:
    """The variables that a part of the stack needs, and those that `passed` names.

    A GPU worker's libraries read too many to list: it gets all but Postgres' address and the keys of model providers.
    """
    return {
        key: value
        for key, value in environ.items()
        if key in passed or (key != POSTGRES_URL and (key in COMMON or _needs(name, key)))
    }


def _needs(name: str, key: str) -> bool:
    if name == GPU_WORKER:
        return key.startswith(SERVICE) or not key.endswith(PROVIDER_KEY)
    if name == GATEWAY and key.endswith(PROVIDER_KEY):
        return True
    return key.startswith((*common_variables.PREFIXES, *PREFIXES[name]))


class ProcessFactory:
    """Makes parts for one home folder."""

    def __init__(
        self,
        request: StackRequest,
        addresses: Addresses,
        postgres: PostgresServer | None,
        temporal: Binary | None,
        on_note: Callable[[str], None],
    ) -> None:
        self.request = request
        self.addresses = addresses
        self.settings: Settings = addresses.settings
        self.postgres = postgres
        self.temporal = temporal
        self.on_note = on_note
        """Is called with a line for each step of finding a Temporal server."""
        self.environment = environment(addresses)
        self.client: Client | None = None

    def make(self, name: str) -> list[ManagedProcess]:
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

    def _postgres(self, server: PostgresServer) -> ManagedProcess:
        return ManagedProcess(
            name=POSTGRES,
            command=server.command(),
            log=self._log(POSTGRES),
            ready=lambda pid: self._postgres_is_ready(server),
            environment={"PATH": self.environment.get("PATH", ""), "LC_ALL": "C.UTF-8"},
            folder=server.folder,
            prepare=lambda: postgres_server.prepare(server),
            user=server.user,
            stop_stage=STOPS[POSTGRES][0],
            stop_seconds=STOPS[POSTGRES][1],
            stop_signal=signal.SIGINT,  # "fast shutdown": ends sessions, writes a checkpoint
            death_signal=signal.SIGQUIT,  # "immediate shutdown": its children end too; recovers at the next start
            answers=self._postgres_answers,
            is_ending=lambda: postgres_server.is_stopping(server),
            end_signals=POSTGRES_END,
        )

    def _temporal(self, binary: Binary) -> ManagedProcess:
        folder = self.settings.home / "temporal"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return ManagedProcess(
            name=TEMPORAL,
            command=self._temporal_command(binary),
            log=self._log(TEMPORAL),
            ready=self._temporal_answers,
            environment=needed(self.environment, TEMPORAL),
            folder=folder,
            prepare=self._find_temporal_again,
            cancel_prepare=True,  # to build it takes minutes
            stop_stage=STOPS[TEMPORAL][0],
            stop_seconds=STOPS[TEMPORAL][1],
            answers=self._temporal_serves,
        )

    def _temporal_command(self, binary: Binary) -> list[str]:
        ports, database = self.addresses.ports, self.settings.home / "temporal" / "temporal.db"
        namespace = self.settings.temporal_namespace
        return temporal_server.command(binary.path, database, namespace, ports["temporal"], ports["temporal_ui"])

    async def _find_temporal_again(self) -> list[str]:
        """The command that starts it. Its file is searched again if it was deleted, as another process may clear the
        cache.
        """
        known = self.temporal
        if known is None or not os.access(known.path, os.X_OK):
            self.on_note("the Temporal server's file was deleted: looking for another")
            known = self.temporal = await temporal_server.obtain(self.settings.home, self.on_note)
        return self._temporal_command(known)

    def _service(self, title: str, name: str, flags: Sequence[str], ready: Ready, ask_seconds: float) -> ManagedProcess:
        command = [sys.executable, "-m", "relight.cli", name, "--wait", str(WAIT_SECONDS), *flags]
        return ManagedProcess(
            name=title,
            command=command,
            log=self._log(title),
            ready=ready,
            environment=self._environment(title, name),
            folder=Path.cwd(),
            stop_stage=STOPS[name][0],
            stop_seconds=STOPS[name][1] + self.settings.drain_seconds,
            ask_seconds=ask_seconds,
            answers=ready if name in (STORE, GATEWAY) else self._heard(name),
            check_seconds=2.0 if name in (STORE, GATEWAY) else REPORT_CHECK_SECONDS,
        )

    def _environment(self, title: str, name: str) -> Mapping[str, str]:
        """What the part needs. Runner and gateway use HTTP alone; the others get Postgres' address. A runner has no
        admin token.
        """
        flags = self.request.runner_flags
        passed = [value for flag, value in pairwise(flags) if flag == "--env"]
        own = needed(self.environment, name, passed if name == RUNNER else ())
        if name not in (RUNNER, GATEWAY) and self.settings.postgres_url:
            own["RELIGHT_POSTGRES_URL"] = self.settings.postgres_url
        if name == RUNNER and self.settings.token_value:
            own[environment_name("token")] = runner_token(self.settings.token_value)
        return own | dict(self.request.overrides(title, self.settings)) if self.request.overrides else own

    async def _postgres_is_ready(self, server: PostgresServer) -> bool:
        """Whether it answers and has the schema, which its owner installs here."""
        database = await Database.connect(server.url(postgres_roles.OWNER), max_size=1)
        try:
            await database.migrate()
        except ConfigError as error:
            log.debug("the services refuse this database, with the remedy: %s", error)
        finally:
            await database.close()
        return True

    async def _postgres_answers(self, pid: int) -> bool:
        return await self._ask_postgres("select 1") == 1

    async def _temporal_serves(self, pid: int) -> bool:
        try:
            return await (await self._connect()).service_client.check_health(timeout=timedelta(seconds=5))
        except (RPCError, TemporalError):  # it does not answer
            return False

    async def _temporal_answers(self, pid: int) -> bool:
        if not listens(pid, self.addresses.ports["temporal"]):
            return False
        try:
            client = await self._connect()
            await configure(client, set_retention=True)
        except (RPCError, TemporalError):  # it starts
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
            except (RPCError, TemporalError):  # the server does not answer
                return False

        return polls

    def _reported(self, kind: str) -> Ready:
        async def reported(pid: int) -> bool:
            """Whether it has reported to the store."""
            query = (
                "select exists (select from workers where kind = $1 and pid = $2"
                " and last_heartbeat > now() - make_interval(secs => $3))"  # the kernel uses process ids again
            )
            return bool(await self._ask_postgres(query, kind, pid, SILENT_SECONDS))

        return reported

    def _heard(self, kind: str) -> Ready:
        async def heard(pid: int) -> bool:
            """Whether it still reports; without an answer from Postgres that is unknown, and it counts as answering."""
            query = (
                "select max(last_heartbeat) > now() - make_interval(secs => $4) from workers"
                " where kind = $1 and pid = $2 and host = $3"
            )
            return await self._ask_postgres(query, kind, pid, platform.node(), SILENT_SECONDS) is not False

        return heard

    async def _ask_postgres(self, query: str, *values: object) -> object:
        """One value, or None if Postgres does not answer: it is down, recovers, or has no schema yet."""
        try:
            connection = await asyncpg.connect(self.settings.postgres_url, timeout=5, command_timeout=5)
            try:
                return await connection.fetchval(query, *values)
            finally:
                await connection.close(timeout=5)
        except UNREACHABLE_ERRORS:
            return None

    async def _connect(self) -> Client:
        if self.client is None:
            self.client = await connect_temporal(self.settings)
        return self.client
