"""The engine of a GPU host: kept running, and on the newest recorded version of its run (rule 14).

One task owns the engine. No other code starts it or loads weights; it records a version and waits until the engine
acknowledges it. So a restart of the engine, the GPU worker or the activity needs no special handling.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from relight.errors import CheckpointError, ConfigError, EngineError, PostgresError, RelightError
from relight.faults import FaultPoint, fault_point
from relight.gpu_worker.engine import LONGEST_FOLDER, VLLM, EngineProcess
from relight.gpu_worker.engine_liveness import EngineLiveness
from relight.gpu_worker.version_files import VersionFiles
from relight.processes.restart_backoff import RestartBackoff
from relight.retrying import Every
from relight.store.database import Database
from relight.store.training.ledger import PolicyVersion, newest_version
from relight.types.names import POLICY

log = logging.getLogger(__name__)

RepairExport = Callable[[int], Awaitable[None]]
"""Writes the export of a version again."""

BOOT_SECONDS = 1800.0
POLL_SECONDS = 0.5
"""How often the engine's process is checked; a new version is noticed at once."""
RESUME_TRIES = 10
"""After so many failed tries to resume an engine it is replaced by a new one."""
SOCKET = "engine-0.sock"
FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 60.0


class EngineSupervisor:
    """Keeps one engine running for one run."""

    def __init__(
        self,
        db: Database,
        host: str,
        run: str,
        model_dir: Path,
        *,
        files: VersionFiles,
        repair_export: RepairExport,
        socket_path: Path,
        logs: Path,
        vllm_keys: Mapping[str, Any],
        own_keys: Mapping[str, Any],
        module: str = VLLM,
    ) -> None:
        self.db = db
        self.host = host
        self.run = run
        self.model_dir = model_dir
        self.files = files
        self.repair_export = repair_export
        self.socket_path = socket_path
        self.log_file = logs / "engine.log"
        self.vllm_keys = vllm_keys
        self.own_keys = own_keys
        self.module = module
        self.engine_id = f"{host}/0"
        self.engine: EngineProcess | None = None
        self.version: int | None = None
        self.last_failure = ""
        self._restarts = RestartBackoff(FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS)
        self.bad_config: ConfigError | None = None
        """A wrong key, with which no boot can succeed."""
        self._changed = asyncio.Condition()
        self._version_recorded = asyncio.Event()
        self._engine_lock = asyncio.Lock()
        """Held while the engine sleeps or loads weights."""
        self._resume: Callable[[], Awaitable[None]] | None = None
        """The call that resumes the engine, while it is paused or asleep."""
        self._failed_resumes = 0
        """Failures of that call in a row."""

    async def supervise(self) -> None:
        """Keep the engine running until cancelled; then it ends with all processes that it started."""
        try:
            async for _ in self._restarts:
                try:
                    await self._run_engine()
                except ConfigError as error:
                    self.bad_config = error
                    self._restarts.closing.set()
                except Exception as error:  # if this task ended, updates would never end
                    await self._record_failure(error)
                await self._notify_waiters()
        finally:
            await asyncio.shield(self._record_end())

    async def wait_for(self, version: int) -> None:
        """Return when the engine has acknowledged a recorded version.

        Raises:
            ConfigError: no engine can start with these keys.
        """
        self._version_recorded.set()
        async with self._changed:
            await self._changed.wait_for(
                lambda: self.bad_config or (self.version is not None and self.version >= version)
            )
        if self.bad_config:
            raise self.bad_config

    async def wait_for_boot(self, most_failures: int) -> None:
        """Return when the engine serves.

        Raises:
            ConfigError: a key is wrong.
            EngineError: so many boots in a row failed; it has the reason of the last one.
        """
        async with self._changed:
            await self._changed.wait_for(
                lambda: self.bad_config or self.version is not None or self._restarts.failures >= most_failures
            )
        if self.bad_config:
            raise self.bad_config
        if self.version is None:
            raise EngineError(self.last_failure)

    async def _run_engine(self) -> None:
        """Start the engine on the newest version and follow that version until the engine dies."""
        newest, weights = await self._verified_export()
        engine = await EngineProcess.start(
            weights,
            self.socket_path,
            log=self.log_file,
            vllm_keys=self.vllm_keys,
            own_keys=self.own_keys,
            module=self.module,
        )
        self.engine, self._resume, self._failed_resumes = engine, None, 0
        try:
            url = f"unix:{self.socket_path}"
            pid = engine.pids[0] if engine.pids else None
            columns = (self.engine_id, self.host, self.run, POLICY, url, POLICY, pid)
            await self.db.execute("upsert_engine", *columns)
            seconds = await engine.wait_ready(BOOT_SECONDS)
            log.info("the engine is ready after %.0f s", seconds, extra={"action": "engine_up", "run": self.run})
            await self._acknowledge(newest)
            self._restarts.ready()
            await self._follow(engine)
        finally:
            self.version = None
            await asyncio.shield(self._stop(engine))

    async def _follow(self, engine: EngineProcess) -> None:
        liveness = EngineLiveness(engine.client)
        async for _ in Every(POLL_SECONDS, wake=self._version_recorded):
            self._version_recorded.clear()
            if not engine.alive:
                raise EngineError(f"the engine ended; its log is {self.log_file}")
            async with self._engine_lock:
                await liveness.check()
                await self._resume_engine()
                if self._failed_resumes >= RESUME_TRIES:
                    raise EngineError(f"the engine could not be resumed in {self._failed_resumes} tries")
                newest = None if self._resume else await self._newer_version()
                if newest:
                    await self._publish(engine, newest)

    async def _verified_export(self) -> tuple[PolicyVersion, Path]:
        """The newest version and its files, verified; a damaged export is written again."""
        newest = await self._newest_version()
        if newest.version == 0:
            return newest, self.model_dir  # the host that recorded it may have had it elsewhere
        try:
            return newest, await self.files.open(newest.export_path, newest.export_digest)
        except CheckpointError as error:
            log.warning("%s; the export is written again", error, extra={"action": "export_refused", "run": self.run})
        await self.repair_export(newest.version)
        newest = await self._newest_version()
        return newest, await self.files.open(newest.export_path, newest.export_digest)

    async def _publish(self, engine: EngineProcess, version: PolicyVersion) -> None:
        weights = await self.files.open(version.export_path, version.export_digest)
        await self.db.execute("set_engine_state", self.engine_id, "loading")
        self.version = None
        self._resume = engine.client.resume
        await engine.client.load(weights)
        fault_point(FaultPoint.PUBLISHED)
        await self._acknowledge(version)  # before the resume: all that it samples after this is of that version
        fault_point(FaultPoint.ACKNOWLEDGED)
        await self._resume_engine()

    async def _resume_engine(self) -> None:
        """Resume an engine that is paused or asleep; if that fails, the next round tries again."""
        if self._resume is None:
            return
        try:
            await self._resume()
        except EngineError as error:
            self._failed_resumes += 1
            log.warning("the engine is not resumed: %s", error, extra={"action": "engine_paused", "run": self.run})
        else:
            self._resume, self._failed_resumes = None, 0

    async def _acknowledge(self, version: PolicyVersion) -> None:
        if await self.db.value("engine_loaded", self.engine_id, version.version, version.fence) is None:
            raise EngineError(f"engine {self.engine_id} has a newer update than that of version {version.version}")
        self.version = version.version
        await self._notify_waiters()

    async def _newest_version(self) -> PolicyVersion:
        newest = await newest_version(self.db, self.run)
        return newest or PolicyVersion(0, "", str(self.model_dir), None)

    async def _newer_version(self) -> PolicyVersion | None:
        """A version that the engine does not hold yet. If Postgres does not answer, the engine keeps its version."""
        try:
            newest = await self._newest_version()
        except PostgresError as error:
            log.warning(
                "can't check for a newer version: %s",
                error,
                extra={"action": "engine_supervisor_waits", "run": self.run},
            )
            return None
        return newest if self.version is not None and newest.version > self.version else None

    @asynccontextmanager
    async def asleep(self) -> AsyncGenerator[None]:
        """Give the GPU to the trainer; the engine answers nothing meanwhile."""
        async with self._engine_lock:
            if self.engine is None or not self.engine.alive:
                yield
                return
            self._resume = self.engine.client.wake_up
            falling_asleep = asyncio.create_task(self.engine.client.sleep())
            try:
                await asyncio.shield(falling_asleep)
                yield
            finally:  # also after a failure or a cancel: the engine may be asleep, or about to be
                await asyncio.gather(asyncio.shield(falling_asleep), return_exceptions=True)
                await self._resume_engine()

    async def _record_failure(self, error: Exception) -> None:
        self._restarts.ended()
        self.last_failure = str(error)
        unexpected = not isinstance(error, (RelightError, OSError))
        extra = {"action": "engine_down", "run": self.run}
        log.warning("engine of run %s: %s", self.run, error, exc_info=unexpected, extra=extra)
        with suppress(PostgresError):
            await self.db.execute("set_engine_state", self.engine_id, "dead")

    async def _notify_waiters(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _stop(self, engine: EngineProcess) -> None:
        self.engine = None
        await (engine.stop() if engine.alive else engine.kill())

    async def _record_end(self) -> None:
        with suppress(PostgresError):
            await self.db.execute("set_engine_state", self.engine_id, "dead" if self.bad_config else "stopped")


def socket_path(home: Path) -> Path:
    """The path of the engine's socket: in the home folder, or under /tmp if that path is too long for sockets."""
    folder = home.resolve() / "sockets"
    if len(os.fsencode(folder)) > LONGEST_FOLDER:
        name = hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:10]
        folder = Path(f"/tmp/relight-{os.getuid()}-{name}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise ConfigError(f"{folder} belongs to another user; set another home with RELIGHT_HOME")
    folder.chmod(0o700)
    return folder / SOCKET
