"""A GPU host: serves one run at a time, with an engine, which it restarts when it dies, and a trainer process.

A row in Postgres says which run the host serves, so a restarted GPU worker continues by itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from temporalio import activity

from relight.errors import (
    DiskFullError,
    EngineError,
    HostChangedError,
    ModelError,
    PostgresError,
    RelightError,
)
from relight.gpu_worker.complete_directories import weights_digest_of
from relight.gpu_worker.disk_space import DiskSpace
from relight.gpu_worker.engine_args import merged_keys, shares_gpu
from relight.gpu_worker.engine_supervisor import EngineSupervisor, socket_path
from relight.gpu_worker.policy_update import PolicyUpdate
from relight.gpu_worker.step_trainer import StepTrainer
from relight.gpu_worker.trainer_client import TrainerProcess
from relight.gpu_worker.version_files import VersionFiles
from relight.models import check_model
from relight.retrying import Every, logged
from relight.settings import Settings
from relight.store.database import Database, Transaction
from relight.store.runs.lifecycle import lock_wanted
from relight.store.runs.rows import get_run
from relight.store.training import ledger
from relight.store.training.plans import begin_update
from relight.types import names
from relight.types.names import POLICY
from relight.types.payloads import EngineState, GpuClaim, RunRequest, StepInput, UpdateResult
from relight.types.run_file import RunFile

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 5.0
MAX_FAILED_BOOTS = 3
"""After so many failed boots of the engine in a row the run fails, because its model can't be served."""


@dataclass
class ServedRun:
    """One run on this host."""

    run: str
    file: RunFile
    model_dir: Path
    folder: Path
    disk_space: DiskSpace
    files: VersionFiles
    trainer: TrainerProcess | None = None
    update_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One update at a time; a second one waits for it and finds its version."""
    trainer_start_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    trainer_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while an update trains or an export is repaired, never while waiting for engines."""
    engines: EngineSupervisor = field(init=False)
    engine_task: asyncio.Task[None] = field(init=False)


class GpuHost:
    """Claims, engines and updates of one host: its activities, of which the claim is on the queue of all hosts."""

    def __init__(self, db: Database, settings: Settings, name: str, task_queue: str) -> None:
        self.db = db
        self.settings = settings
        self.name = name
        self.task_queue = task_queue
        self.service: ServedRun | None = None
        self._service_lock = asyncio.Lock()

    async def start(self) -> None:
        """Continue to serve the run that this host served before."""
        await self.db.execute("upsert_host", self.name, self.task_queue)
        async with self.db.transaction() as tx:
            row = await tx.row("lock_host", self.name)
            await tx.execute("end_engines_of_host", self.name)
        if row and row["run"] and row["run_status"] == "running":
            log.info("serving run %s again", row["run"], extra={"action": "host_resumed", "run": row["run"]})
            await self._serve(row["run"])

    async def keep_reporting_alive(self) -> None:
        """Until cancelled, report that the host is alive, serve the run on record, and take over runs of lost hosts."""
        async for _ in Every(HEARTBEAT_SECONDS):
            with logged(log, "%s", RelightError, action="host_check_failed"), suppress(PostgresError):
                row = await self.db.row("heartbeat_host", self.name)
                if row and self.service and row["run"] != self.service.run:
                    await self._end_unassigned_service()
                elif row and row["over"]:  # the run has ended, but its release did not arrive
                    await self.release(RunRequest(run=row["run"], epoch=row["epoch"] or 0))
                elif row and not row["serves"] and self.service is None:
                    await self._take_over_lost_run()

    @activity.defn(name=names.CLAIM_GPU)
    async def claim(self, request: RunRequest) -> GpuClaim:
        """Give the host to a run, or say which run has it (rule 15)."""
        async with self.db.transaction() as tx:
            await lock_wanted(tx, request.run, request.epoch)
            lost_seconds = self.settings.gpu_lost_seconds
            elsewhere = await tx.row("host_of_run", request.run, self.name, lost_seconds)
            if elsewhere:
                return GpuClaim(granted=True, host=elsewhere["host"], task_queue=elsewhere["task_queue"])
            lost = await self._lost_hosts(tx, request.run)
            if lost and not await self._can_read_run(request.run):
                reason = f"GPU host {lost[0]}, which has the checkpoints of run {request.run}, does not answer"
                await tx.execute("set_waiting", request.run, reason, "starting")
                return GpuClaim(granted=False, waiting_for=reason)
            row = await tx.row("lock_host", self.name)
            holder = row["run"] if row and row["run_status"] == "running" else None
            if holder not in (None, request.run):
                reason = f"GPU host {self.name} is in use by run {holder}"
                await tx.execute("set_waiting", request.run, reason, "starting")
                return GpuClaim(granted=False, waiting_for=reason)
            if not await self._take_from_lost_hosts(tx, request.run, lost):
                return GpuClaim(granted=False, waiting_for=f"GPU host {lost[0]} still serves run {request.run}")
            await tx.execute("assign_host", self.name, request.run, request.epoch, "starting")
        return GpuClaim(granted=True, host=self.name, task_queue=self.task_queue)

    @activity.defn(name=names.PREPARE_ENGINES)
    async def prepare(self, request: RunRequest) -> EngineState:
        """Start engine and trainer side by side; return when the engine serves the newest version.

        Raises:
            ConfigError: a `vllm:` or `verl:` key is wrong.
            ModelError: no engine starts with the model.
            DiskFullError: the disk of the run's folder is full.
        """
        await self._require_assigned(request.run)
        service = await self._serve(request.run)
        async with self._disk_space(service, "starting"):
            return await self._prepare(service)

    async def _prepare(self, service: ServedRun) -> EngineState:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._trainer(service))
                tasks.create_task(service.engines.wait_for_boot(MAX_FAILED_BOOTS))
        except* EngineError as group:
            error = group.exceptions[0]
            await self.db.execute("set_host_state", self.name, "failed", str(error))
            raise ModelError(f"no engine starts with model {service.file.model}: {error}") from None
        except* (RelightError, OSError) as group:
            raise group.exceptions[0] from None
        await self.db.execute("set_host_state", self.name, "ready", None)
        return EngineState(engines=1, version=service.engines.version or 0)

    @activity.defn(name=names.UPDATE_POLICY)
    async def update(self, request: StepInput) -> UpdateResult:
        """Make a policy version (`policy_update.py` has the order).

        Raises:
            DiskFullError: the disk of the run's folder is full.
        """
        if self.service and self.service.run == request.run:
            self.service.disk_space.check()
        await begin_update(self.db, request)
        await self._require_assigned(request.run)
        service = await self._serve(request.run)
        async with service.update_lock, self._disk_space(service, "updating"):
            update = await self._policy_update(service)
            last = request.step == (await get_run(self.db, request.run)).total_steps
            return await update.make_version(
                request.step,
                checkpoint=last or request.step % service.file.checkpoint_every == 0,
                share_gpu=shares_gpu(merged_keys(service.file.vllm, self.settings.gpu_vllm)),
            )

    @asynccontextmanager
    async def _disk_space(self, service: ServedRun, phase: str) -> AsyncGenerator[None]:
        """For blocks that write files; if the disk is full, the run's row says that the run waits for space."""
        try:
            with service.disk_space.required():
                yield
        except DiskFullError as error:
            log.warning("run %s waits: %s", service.run, error, extra={"action": "disk_full", "run": service.run})
            with suppress(PostgresError):  # it may be on the same disk
                await self.db.execute("set_waiting", service.run, error.message, phase)
            raise

    @activity.defn(name=names.RELEASE_GPU)
    async def release(self, request: RunRequest) -> RunRequest:
        """Stop serving a run, unless a newer epoch of it has claimed the host meanwhile."""
        async with self.db.transaction() as tx:
            row = await tx.row("lock_host", self.name)
            if row and row["run"] == request.run and (row["epoch"] or 0) > request.epoch:
                log.warning("run %s is not released: epoch %s is no longer current", request.run, request.epoch)
                return request
        if self.service and self.service.run == request.run:
            await self._end_service()
        async with self.db.transaction() as tx:
            row = await tx.row("lock_host", self.name)
            if row and row["run"] == request.run and (row["epoch"] or 0) <= request.epoch:
                await tx.execute("assign_host", self.name, None, None, "idle")
        return request

    async def close(self) -> None:
        """End engine and trainer; the host's row keeps what it served."""
        await self._end_service()

    async def _end_unassigned_service(self) -> None:
        """Stop serving a run that, by the record, this host does not serve any more."""
        async with self._service_lock:
            async with self.db.transaction() as tx:  # read again: a claim may have come with the lock
                row = await tx.row("lock_host", self.name)
            if row and self.service and row["run"] != self.service.run:
                log.warning("this host does not serve run %s any more", self.service.run, extra={"action": "host_lost"})
                await self._end_service()

    async def _take_over_lost_run(self) -> None:
        """Serve a run whose host is gone and whose rollouts wait for an engine, if this host can read its files."""
        lost_seconds = self.settings.gpu_lost_seconds
        for row in await self.db.fetch("lost_runs", self.name, lost_seconds):
            if not await self._can_read_run(row["run"]):
                continue
            async with self.db.transaction() as tx:
                lost = await self._lost_hosts(tx, row["run"])
                if not lost or not await self._take_from_lost_hosts(tx, row["run"], lost):
                    continue  # the host is back, or another one has taken the run
                columns = (row["run"], row["epoch"], "starting")
                await tx.execute("assign_host", self.name, *columns)
            text = "this host takes over run %s: GPU host %s does not answer"
            log.warning(text, row["run"], lost[0], extra={"action": "host_took_over", "run": row["run"]})
            await self._serve(row["run"])
            return

    async def _lost_hosts(self, tx: Transaction, run: str) -> list[str]:
        columns = (run, self.name, self.settings.gpu_lost_seconds)
        return [row["host"] for row in await tx.fetch("hosts_lost_with_run", *columns)]

    async def _take_from_lost_hosts(self, tx: Transaction, run: str, hosts: Sequence[str]) -> bool:
        """Take a run from hosts that do not answer. False if one of them has answered meanwhile."""
        detail, seconds = f"run {run} was taken over by {self.name}", self.settings.gpu_lost_seconds
        freed = [await tx.value("free_lost_host", host, run, detail, seconds) for host in hosts]
        return all(freed)

    async def _can_read_run(self, run: str) -> bool:
        """Whether this host sees the run's model and its newest version."""
        file = (await get_run(self.db, run)).file
        newest = await ledger.newest_version(self.db, run)
        try:
            await asyncio.to_thread(check_model, file.model, self.settings.data_root)
            files = self._files(file, run)
        except RelightError:
            return False
        return newest is None or newest.version == 0 or await files.can_read(newest.export_path)

    async def _require_assigned(self, run: str) -> None:
        """Check that, by the record, this host still serves the run.

        Raises:
            HostChangedError: another host does.
        """
        async with self.db.transaction() as tx:
            row = await tx.row("lock_host", self.name)
        if row is None or row["run"] != run:
            raise HostChangedError(f"GPU host {self.name} does not serve run {run} any more")

    def _files(self, file: RunFile, run: str) -> VersionFiles:
        return VersionFiles(self.settings.home.resolve(), run, file.checkpoints.url or self.settings.checkpoints)

    async def _policy_update(self, service: ServedRun) -> PolicyUpdate:
        steps = StepTrainer(self.db, service.run, await self._trainer(service), service.files, service.folder)
        keep = service.file.checkpoints
        return PolicyUpdate(self.db, self.name, steps, service.engines, keep, service.trainer_lock)

    async def _serve(self, run: str) -> ServedRun:
        async with self._service_lock:
            if self.service and self.service.run == run and not self.service.engine_task.done():
                return self.service
            await self._end_service()
            self.service = await self._start_service(run)
            return self.service

    async def _start_service(self, run: str) -> ServedRun:
        file = (await get_run(self.db, run)).file
        model_dir = await asyncio.to_thread(local_model, file.model, self.settings.data_root)
        folder = (self.settings.home / "runs" / run).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        await self._record_given_model(run, model_dir)
        files = self._files(file, run)
        service = ServedRun(run, file, model_dir, folder, DiskSpace(folder, files.folder), files)

        async def repair_export(version: int) -> None:
            await (await self._policy_update(service)).repair_export(version)

        service.engines = EngineSupervisor(
            self.db,
            self.name,
            run,
            model_dir,
            files=service.files,
            repair_export=repair_export,
            socket_path=socket_path(self.settings.home),
            logs=folder,
            vllm_keys=file.vllm,
            own_keys=self.settings.gpu_vllm,
            module=self.settings.engine_module,
        )
        service.engine_task = asyncio.create_task(service.engines.supervise(), name=f"engine of {run}")
        return service

    async def _record_given_model(self, run: str, model_dir: Path) -> None:
        if await ledger.get_version(self.db, run, 0) is None:
            digest = await asyncio.to_thread(weights_digest_of, model_dir)
            columns = (run, POLICY, 0, 0, digest, str(model_dir), None)
            await self.db.execute("insert_version", *columns)

    async def _trainer(self, service: ServedRun) -> TrainerProcess:
        """The run's trainer process, started again if it has died."""
        extra = {"action": "trainer", "run": service.run}
        async with service.trainer_start_lock:
            if service.trainer is None or not service.trainer.alive:
                service.trainer = await TrainerProcess.start(
                    service.model_dir,
                    service.folder / "trainer",
                    verl_keys=service.file.verl,
                    own_keys=self.settings.gpu_verl,
                    log=service.folder / "trainer.log",
                    module=self.settings.trainer_module,
                    on_progress=lambda text: log.info("trainer: %s", text, extra=extra),
                )
            return service.trainer

    async def _end_service(self) -> None:
        service, self.service = self.service, None
        if service is None:
            return
        service.engine_task.cancel()
        await asyncio.gather(service.engine_task, return_exceptions=True)
        if service.trainer:
            await service.trainer.stop()


def local_model(model: str, data_root: Path) -> Path:
    """The model's directory; a model of the hub is downloaded first."""
    found = check_model(model, data_root)
    if isinstance(found, Path):
        return found
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(found))
    except (HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError, OSError) as error:
        raise ModelError(f"model {model}: no such directory, and the download from the hub failed: {error}") from error


def host_name(settings: Settings) -> str:
    """This GPU host's name."""
    return settings.gpu_host or os.uname().nodename
