"""A GPU host: serves one run at a time, with an engine that is kept up and a trainer process.

What it serves is a row in Postgres, so a restarted GPU worker goes on by itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from relight.errors import (
    EngineError,
    HostChangedError,
    ModelError,
    NoRoomError,
    NotFoundError,
    PostgresError,
    RelightError,
)
from relight.gpu_worker.checkpoints import weights_digest_of
from relight.gpu_worker.engine_args import check_vllm_keys
from relight.gpu_worker.fleet import EngineKeeper, socket_path
from relight.gpu_worker.room import Room
from relight.gpu_worker.trainer_client import TrainerProcess
from relight.gpu_worker.training import StepTrainer
from relight.gpu_worker.update import PolicyUpdate
from relight.gpu_worker.versions import VersionFiles
from relight.models import check_model
from relight.settings import Settings
from relight.store import ledger
from relight.store.database import Connection, Database
from relight.store.plans import begin_update
from relight.store.runs import lock_epoch
from relight.types.payloads import EngineState, GpuClaim, RunRequest, StepInput, UpdateResult
from relight.types.run_file import RunFile

log = logging.getLogger(__name__)

BEAT_SECONDS = 5.0
BOOT_PATIENCE = 3
"""Engine boots in a row that may fail before the run is told that its model can't be served."""


@dataclass
class Service:
    """One run on this host."""

    run: str
    file: RunFile
    model_dir: Path
    folder: Path
    room: Room
    files: VersionFiles
    trainer: TrainerProcess | None = None
    training: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One update at a time; a second one waits for it and finds its version."""
    starting_trainer: asyncio.Lock = field(default_factory=asyncio.Lock)
    using_trainer: asyncio.Lock = field(default_factory=asyncio.Lock)
    """An update trains, or an export is made again; never held while engines are waited for."""
    engines: EngineKeeper = field(init=False)
    keeping: asyncio.Task[None] = field(init=False)


class GpuHost:
    """Claims, engines and updates of one host."""

    def __init__(self, db: Database, settings: Settings, name: str, task_queue: str) -> None:
        self.db = db
        self.settings = settings
        self.name = name
        self.task_queue = task_queue
        self.service: Service | None = None
        self._changing = asyncio.Lock()

    async def start(self) -> None:
        """Take up what this host served before."""
        await self.db.execute("upsert_host", self.name, self.task_queue)
        async with self.db.transaction() as connection:
            row = await self.db.row("lock_host", self.name, connection=connection)
        if row and row["run"] and row["run_status"] == "running":
            log.info("going on with run %s", row["run"], extra={"action": "host_resumed", "run": row["run"]})
            await self._serve(row["run"])

    async def beat(self) -> None:
        """Say that the host is alive, until cancelled; obey the record of what it serves, stand in for what is gone."""
        while True:
            try:
                row = await self.db.row("beat_host", self.name)
                if row and self.service and row["run"] != self.service.run:
                    await self._end_what_is_not_ours()
                elif row and not row["serves"] and self.service is None:
                    await self._take_over_a_lost_run()
            except RelightError as error:
                if not isinstance(error, PostgresError):  # that one is seen by everybody
                    log.warning("%s", error, extra={"action": "host_trouble"})
            await asyncio.sleep(BEAT_SECONDS)

    async def claim(self, request: RunRequest) -> GpuClaim:
        """Give the host to a run, or say who has it (semantics 15)."""
        async with self.db.transaction() as connection:
            await lock_epoch(self.db, connection, request.run, request.epoch)
            lost_seconds = self.settings.gpu_lost_seconds
            elsewhere = await self.db.row("host_of_run", request.run, self.name, lost_seconds, connection=connection)
            if elsewhere:
                return GpuClaim(granted=True, host=elsewhere["host"], task_queue=elsewhere["task_queue"])
            lost = await self._lost_hosts(request.run, connection)
            if lost and not await self._can_read(request.run):
                reason = f"GPU host {lost[0]}, where the checkpoints of run {request.run} lie"
                await self.db.execute("set_waiting", request.run, reason, "starting", connection=connection)
                return GpuClaim(granted=False, waiting_for=reason)
            row = await self.db.row("lock_host", self.name, connection=connection)
            holder = row["run"] if row and row["run_status"] == "running" else None
            if holder not in (None, request.run):
                reason = f"a GPU worker, held by {holder}"
                await self.db.execute("set_waiting", request.run, reason, "starting", connection=connection)
                return GpuClaim(granted=False, waiting_for=reason)
            if not await self._free(request.run, lost, connection):
                return GpuClaim(granted=False, waiting_for=f"GPU host {lost[0]}")
            await self.db.execute(
                "assign_host", self.name, request.run, request.epoch, "starting", connection=connection
            )
        return GpuClaim(granted=True, host=self.name, task_queue=self.task_queue)

    async def prepare(self, request: RunRequest) -> EngineState:
        """Start engine and trainer side by side; return when the engine serves the newest version.

        Raises:
            ConfigError: a `vllm:` or `verl:` key is at fault.
            ModelError: no engine comes up with the model.
            NoRoomError: the disk of the run's folder is full.
        """
        await self._check_held(request.run)
        service = await self._serve(request.run)
        async with self._room(service, "starting"):
            return await self._prepare(service)

    async def _prepare(self, service: Service) -> EngineState:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._trainer(service))
                tasks.create_task(service.engines.wait_for_boot(BOOT_PATIENCE))
        except* EngineError as group:
            error = group.exceptions[0]
            await self.db.execute("set_host_state", self.name, "failed", str(error))
            raise ModelError(f"no engine comes up with model {service.file.model}: {error}") from None
        except* (RelightError, OSError) as group:
            raise group.exceptions[0] from None
        await self.db.execute("set_host_state", self.name, "ready", None)
        return EngineState(engines=1, version=service.engines.version or 0)

    async def update(self, place: StepInput) -> UpdateResult:
        """Make a policy version (`update.py` has the order).

        Raises:
            NoRoomError: the disk of the run's folder is full.
        """
        if self.service and self.service.run == place.run:
            self.service.room.check()
        await begin_update(self.db, place)
        await self._check_held(place.run)
        service = await self._serve(place.run)
        async with service.training, self._room(service, "updating"):
            update = await self._policy_update(service)
            row = await self.db.row("get_run", place.run)
            last = row is not None and place.step == row["total_steps"]
            return await update.make(
                place.step,
                checkpoint=last or place.step % service.file.checkpoint_every == 0,
                share_gpu=bool(service.file.vllm.get("enable_sleep_mode")),
            )

    @asynccontextmanager
    async def _room(self, service: Service, phase: str) -> AsyncGenerator[None]:
        """Where files are written; a run that finds no room for them waits, and its row says what for."""
        try:
            with service.room.needed():
                yield
        except NoRoomError as error:
            log.warning("run %s waits for %s", service.run, error, extra={"action": "no_room", "run": service.run})
            with suppress(PostgresError):  # its disk may be the same
                await self.db.execute("set_waiting", service.run, error.message, phase)
            raise

    async def release(self, request: RunRequest) -> None:
        """Stop serving a run, unless a newer epoch of it has claimed the host meanwhile."""
        async with self.db.transaction() as connection:
            row = await self.db.row("lock_host", self.name, connection=connection)
            if row and row["run"] == request.run and (row["epoch"] or 0) > request.epoch:
                log.warning("epoch %s of run %s releases nothing", request.epoch, request.run)
                return
        if self.service and self.service.run == request.run:
            await self._end_service()
        async with self.db.transaction() as connection:
            row = await self.db.row("lock_host", self.name, connection=connection)
            if row and row["run"] == request.run and (row["epoch"] or 0) <= request.epoch:
                await self.db.execute("assign_host", self.name, None, None, "idle", connection=connection)

    async def close(self) -> None:
        """End engine and trainer; the host's row keeps what it served."""
        await self._end_service()

    async def _end_what_is_not_ours(self) -> None:
        """End what this host serves and the record gives to another one, or to nobody."""
        async with self._changing:
            async with self.db.transaction() as connection:  # read again: a claim may have come with the lock
                row = await self.db.row("lock_host", self.name, connection=connection)
            if row and self.service and row["run"] != self.service.run:
                log.warning("run %s is not ours any more", self.service.run, extra={"action": "host_lost"})
                await self._end_service()

    async def _take_over_a_lost_run(self) -> None:
        """Serve a run whose host is gone, if all that it needs can be read here: its rollouts wait for an engine."""
        lost_seconds = self.settings.gpu_lost_seconds
        for row in await self.db.fetch("lost_runs", self.name, lost_seconds):
            if not await self._can_read(row["run"]):
                continue
            async with self.db.transaction() as connection:
                lost = await self._lost_hosts(row["run"], connection)
                if not lost or not await self._free(row["run"], lost, connection):
                    continue  # it came back, or another host was faster
                columns = (row["run"], row["epoch"], "starting")
                await self.db.execute("assign_host", self.name, *columns, connection=connection)
            text = "run %s goes on here: GPU host %s is gone"
            log.warning(text, row["run"], lost[0], extra={"action": "host_took_over", "run": row["run"]})
            await self._serve(row["run"])
            return

    async def _lost_hosts(self, run: str, connection: Connection) -> list[str]:
        columns = (run, self.name, self.settings.gpu_lost_seconds)
        return [row["host"] for row in await self.db.fetch("hosts_lost_with_run", *columns, connection=connection)]

    async def _free(self, run: str, hosts: Sequence[str], connection: Connection) -> bool:
        """Take a run from hosts that are gone. False where one of them was heard of meanwhile."""
        detail, seconds = f"run {run} went over to {self.name}", self.settings.gpu_lost_seconds
        freed = [
            await self.db.value("free_lost_host", host, run, detail, seconds, connection=connection) for host in hosts
        ]
        return all(freed)

    async def _can_read(self, run: str) -> bool:
        """Whether this host sees the run's model and its newest version."""
        row = await self.db.row("get_run", run)
        newest = await ledger.newest_version(self.db, run)
        if row is None:
            return False
        file = RunFile.model_validate(row["file"])
        try:
            await asyncio.to_thread(check_model, file.model, self.settings.data_root)
            files = self._files(file, run)
        except RelightError:
            return False
        return newest is None or newest.version == 0 or await files.can_read(newest.export_path)

    async def _check_held(self, run: str) -> None:
        """See to it that the host still serves the run by the record.

        Raises:
            HostChangedError: another one does by now.
        """
        async with self.db.transaction() as connection:
            row = await self.db.row("lock_host", self.name, connection=connection)
        if row is None or row["run"] != run:
            raise HostChangedError(f"GPU host {self.name} does not serve run {run} any more")

    def _files(self, file: RunFile, run: str) -> VersionFiles:
        return VersionFiles(self.settings.home.resolve(), run, file.checkpoints.url or self.settings.checkpoints)

    async def _policy_update(self, service: Service) -> PolicyUpdate:
        steps = StepTrainer(self.db, service.run, await self._trainer(service), service.files, service.folder)
        keep = service.file.checkpoints
        return PolicyUpdate(self.db, self.name, steps, service.engines, keep, service.using_trainer)

    async def _serve(self, run: str) -> Service:
        async with self._changing:
            if self.service and self.service.run == run and not self.service.keeping.done():
                return self.service
            await self._end_service()
            self.service = await self._start_service(run)
            return self.service

    async def _start_service(self, run: str) -> Service:
        row = await self.db.row("get_run", run)
        if row is None:
            raise NotFoundError(f"there is no run {run!r}")
        file = RunFile.model_validate(row["file"])
        check_vllm_keys(file.vllm)
        model_dir = await asyncio.to_thread(local_model, file.model, self.settings.data_root)
        folder = (self.settings.home / "runs" / run).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        await self._record_given_model(run, model_dir)
        files = self._files(file, run)
        service = Service(run, file, model_dir, folder, Room(folder, files.folder), files)

        async def mend(version: int) -> None:
            await (await self._policy_update(service)).mend(version)

        service.engines = EngineKeeper(
            self.db,
            self.name,
            run,
            model_dir,
            files=service.files,
            mend=mend,
            socket_path=socket_path(self.settings.home),
            logs=folder,
            vllm_keys=file.vllm,
            module=self.settings.engine_module,
        )
        service.keeping = asyncio.create_task(service.engines.keep(), name=f"engine of {run}")
        return service

    async def _record_given_model(self, run: str, model_dir: Path) -> None:
        if await ledger.get_version(self.db, run, 0) is None:
            digest = await asyncio.to_thread(weights_digest_of, model_dir)
            columns = (run, 0, 0, digest, str(model_dir), None)
            await self.db.execute("insert_version", *columns)

    async def _trainer(self, service: Service) -> TrainerProcess:
        """The run's trainer process; started again where it died."""
        extra = {"action": "trainer", "run": service.run}
        async with service.starting_trainer:
            if service.trainer is None or not service.trainer.alive:
                service.trainer = await TrainerProcess.start(
                    service.model_dir,
                    service.folder / "trainer",
                    verl_keys=service.file.verl,
                    log=service.folder / "trainer.log",
                    module=self.settings.trainer_module,
                    on_progress=lambda text: log.info("trainer: %s", text, extra=extra),
                )
            return service.trainer

    async def _end_service(self) -> None:
        service, self.service = self.service, None
        if service is None:
            return
        service.keeping.cancel()
        await asyncio.gather(service.keeping, return_exceptions=True)
        if service.trainer:
            await service.trainer.stop()


def local_model(model: str, data_root: Path) -> Path:
    """The model's directory; one from the hub is fetched first."""
    found = check_model(model, data_root)
    if isinstance(found, Path):
        return found
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(found))
    except (HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError, OSError) as error:
        raise ModelError(f"model {model}: no such directory, and the model hub does not give it: {error}") from error


def host_name(settings: Settings) -> str:
    """This GPU host's name."""
    return settings.gpu_host or os.uname().nodename
