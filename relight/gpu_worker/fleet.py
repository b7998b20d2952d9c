"""The engine of a GPU host: kept up, and on the newest recorded version of its run (semantics 14).

One task owns the engine. Nobody else starts it or loads weights; others record a version and wait until the engine
acknowledges it. So a restart of engine, GPU worker or activity needs no code of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from relight.errors import CheckpointError, ConfigError, EngineError, PostgresError, RelightError
from relight.faults import Place, reach
from relight.gpu_worker.engine import SERVED_MODEL, VLLM, EngineProcess
from relight.gpu_worker.pulse import Pulse
from relight.gpu_worker.versions import VersionFiles
from relight.store.database import Database
from relight.store.ledger import Version, newest_version

log = logging.getLogger(__name__)

Mend = Callable[[int], Awaitable[None]]
"""Makes the export of a version again."""

BOOT_SECONDS = 1800.0
LOOK_SECONDS = 0.5
"""How often the engine's process is looked at; a new version is noticed at once."""
SOCKET = "engine-0.sock"
MAX_SOCKET_PATH = 100
FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 60.0


class EngineKeeper:
    """Keeps one engine for one run."""

    def __init__(
        self,
        db: Database,
        host: str,
        run: str,
        model_dir: Path,
        *,
        files: VersionFiles,
        mend: Mend,
        socket_path: Path,
        logs: Path,
        vllm_keys: Mapping[str, Any],
        module: str = VLLM,
    ) -> None:
        self.db = db
        self.host = host
        self.run = run
        self.model_dir = model_dir
        self.files = files
        self.mend = mend
        self.socket_path = socket_path
        self.log_file = logs / "engine.log"
        self.vllm_keys = vllm_keys
        self.module = module
        self.engine_id = f"{host}/0"
        self.engine: EngineProcess | None = None
        self.version: int | None = None
        self.failures = 0
        """Boots in a row that failed."""
        self.last_failure = ""
        self.fault: ConfigError | None = None
        """What no boot will mend."""
        self._changed = asyncio.Condition()
        self._wanted = asyncio.Event()
        self._resting = asyncio.Lock()

    async def keep(self) -> None:
        """Keep the engine until cancelled; then it ends with all that it started."""
        try:
            while self.fault is None:
                try:
                    await self._serve_once()
                except ConfigError as error:
                    self.fault = error
                except (RelightError, OSError) as error:
                    await self._failed(error)
                except Exception as error:  # whatever it is: were this task to end, updates would wait for ever
                    log.exception("the engine's keeper stumbled", extra={"action": "keeper_failed", "run": self.run})
                    await self._failed(error)
                await self._tell()
                await asyncio.sleep(self._backoff())
        finally:
            await asyncio.shield(self._end())

    async def wait_for(self, version: int) -> None:
        """Return when the engine has acknowledged a version that is recorded.

        Raises:
            ConfigError: no engine will come up with these keys.
        """
        self._wanted.set()
        async with self._changed:
            await self._changed.wait_for(lambda: self.fault or (self.version is not None and self.version >= version))
        if self.fault:
            raise self.fault

    async def wait_for_boot(self, patience: int) -> None:
        """Return when the engine serves.

        Raises:
            ConfigError: a key is at fault.
            EngineError: so many boots in a row failed; with the last one's reason.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self.fault or self.version is not None or self.failures >= patience)
        if self.fault:
            raise self.fault
        if self.version is None:
            raise EngineError(self.last_failure)

    async def _serve_once(self) -> None:
        """Start the engine on the newest version and follow that version until the engine dies."""
        newest, weights = await self._good_export()
        engine = await EngineProcess.start(
            weights, self.socket_path, log=self.log_file, vllm_keys=self.vllm_keys, module=self.module
        )
        self.engine = engine
        try:
            url = f"unix:{self.socket_path}"
            columns = (self.engine_id, self.host, self.run, url, SERVED_MODEL, engine.pids[0] if engine.pids else None)
            await self.db.execute("upsert_engine", *columns)
            seconds = await engine.wait_ready(BOOT_SECONDS)
            log.info("engine is up after %.0f s", seconds, extra={"action": "engine_up", "run": self.run})
            await self._acknowledge(newest)
            self.failures = 0
            await self._follow(engine)
        finally:
            self.version = None
            await asyncio.shield(self._stop(engine))

    async def _follow(self, engine: EngineProcess) -> None:
        pulse = Pulse(engine.client)
        while engine.alive:
            async with self._resting:
                await pulse.check()
                newest = await self._newer()
                if newest:
                    await self._publish(engine, newest)
            self._wanted.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), LOOK_SECONDS)
        raise EngineError(f"the engine ended; its log is {self.log_file}")

    async def _good_export(self) -> tuple[Version, Path]:
        """The newest version as this host can load it; made again where what was written has not lasted."""
        newest = await self._newest()
        if newest.version == 0:
            return newest, self.model_dir  # wherever it lay on the host that recorded it
        try:
            return newest, await self.files.open(newest.export_path, newest.export_digest)
        except CheckpointError as error:
            log.warning("%s; it is made again", error, extra={"action": "export_refused", "run": self.run})
        await self.mend(newest.version)
        newest = await self._newest()
        return newest, await self.files.open(newest.export_path, newest.export_digest)

    async def _publish(self, engine: EngineProcess, version: Version) -> None:
        weights = await self.files.open(version.export_path, version.export_digest)
        await self.db.execute("set_engine_state", self.engine_id, "loading")
        self.version = None
        await engine.client.publish(weights)
        reach(Place.PUBLISHED)
        await self._acknowledge(version)

    async def _acknowledge(self, version: Version) -> None:
        if await self.db.value("engine_loaded", self.engine_id, version.version, version.fence) is None:
            raise EngineError(f"engine {self.engine_id} obeys a newer update than that of version {version.version}")
        self.version = version.version
        await self._tell()

    async def _newest(self) -> Version:
        newest = await newest_version(self.db, self.run)
        return newest or Version(0, "", str(self.model_dir), None)

    async def _newer(self) -> Version | None:
        """A version that the engine does not hold yet. While nobody can tell, it goes on with the one that it holds."""
        try:
            newest = await self._newest()
        except PostgresError as error:
            log.warning("can't look for a newer version: %s", error, extra={"action": "keeper_waits", "run": self.run})
            return None
        return newest if self.version is not None and newest.version > self.version else None

    async def sleep(self) -> None:
        """Give the GPU to the trainer; the engine answers nothing until `wake`."""
        await self._resting.acquire()
        if self.engine and self.engine.alive:
            await self.engine.client.sleep()

    async def wake(self) -> None:
        """Take the GPU back."""
        try:
            if self.engine and self.engine.alive:
                await self.engine.client.wake_up()
        finally:
            self._resting.release()

    async def _failed(self, error: Exception) -> None:
        self.failures += 1
        self.last_failure = str(error)
        log.warning("engine of run %s: %s", self.run, error, extra={"action": "engine_down", "run": self.run})
        with suppress(PostgresError):
            await self.db.execute("set_engine_state", self.engine_id, "dead")

    def _backoff(self) -> float:
        return min(FIRST_BACKOFF_SECONDS * 2 ** max(self.failures - 1, 0), LONGEST_BACKOFF_SECONDS)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _stop(self, engine: EngineProcess) -> None:
        self.engine = None
        await (engine.stop() if engine.alive else engine.kill())

    async def _end(self) -> None:
        with suppress(PostgresError):
            await self.db.execute("set_engine_state", self.engine_id, "dead")


def socket_path(home: Path) -> Path:
    """Where the engine's socket lies: in the home folder, or under /tmp where that path is too long for a socket."""
    folder = home.resolve() / "sockets"
    if len(os.fsencode(folder / SOCKET)) > MAX_SOCKET_PATH:
        name = hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:10]
        folder = Path(f"/tmp/relight-{os.getuid()}-{name}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise ConfigError(f"{folder} belongs to somebody else; set another home with RELIGHT_HOME")
    folder.chmod(0o700)
    return folder / SOCKET
