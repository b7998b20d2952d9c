"""`update_policy`: make version n from n-1 exactly once, even if processes die in between (rules 13 and 15).

Order: ledger -> train -> export and checkpoint renamed into place -> version row -> engines acknowledge -> step row.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial

from relight.errors import LeaseLostError, PostgresError
from relight.faults import FaultPoint, fault_point
from relight.gpu_worker.complete_directories import read_manifest
from relight.gpu_worker.engine_supervisor import EngineSupervisor
from relight.gpu_worker.file_retention import VersionRetention
from relight.gpu_worker.step_trainer import StepTrainer, describe
from relight.gpu_worker.stopwatch import Stopwatch
from relight.gpu_worker.version_files import CHECKPOINT
from relight.retrying import Backoff, Every, in_background, retry
from relight.store.database import Database
from relight.store.storable import finite
from relight.store.training import ledger
from relight.store.training.ledger import PolicyVersion
from relight.store.training.plans import ResolvedPlan
from relight.types.hyperparameters import OPTIMIZER_STEPS
from relight.types.payloads import UpdateResult
from relight.types.run_file import Checkpoints

log = logging.getLogger(__name__)

LEASE_SECONDS = 30.0


class PolicyUpdate:
    """Makes the policy versions of one run on this host."""

    def __init__(
        self,
        db: Database,
        host: str,
        steps: StepTrainer,
        engines: EngineSupervisor,
        keep: Checkpoints,
        trainer_lock: asyncio.Lock,
    ) -> None:
        self.db = db
        self.host = host
        self.run = steps.run
        self.steps = steps
        self.files = steps.files
        self.engines = engines
        self.keep = keep
        self.trainer_lock = trainer_lock

    async def make_version(self, step: int, *, checkpoint: bool, share_gpu: bool) -> UpdateResult:
        """Make version `step` unless it is recorded; return when engines hold it and the step is recorded."""
        watch = Stopwatch()
        metrics: dict[str, float] = {}
        if await ledger.get_version(self.db, self.run, step) is None:
            async with self.trainer_lock, self._lease() as lease:
                metrics = await self._record(step, watch, lease, checkpoint, share_gpu)
        await self.engines.wait_for(step)
        watch.lap("publish")
        await ledger.record_step(self.db, self.run, step, metrics, watch.seconds)
        fault_point(FaultPoint.STEP_RECORDED)
        await VersionRetention(self.db, self.files).delete_unneeded(self.run, self.keep)
        row = await ledger.get_step(self.db, self.run, step)
        return UpdateResult(version=step, unchanged=row["unchanged"], reward_mean=row["metrics"].get("reward_mean"))

    async def repair_export(self, version: int) -> None:
        """Write the export of a recorded version again, because its files are damaged."""
        async with self.trainer_lock, self._lease() as lease:
            await self.steps.bring_to(version, repairing=True)
            made = await self.steps.save(version, self.files.stage(version, lease[2]), False, {})
            made = await self.files.publish(made)
            recorded = await ledger.get_version(self.db, self.run, version)
            if recorded and recorded.weights_hash != made.weights_hash:
                await self.db.execute("insert_metric", self.run, version, "replay/differs", 1.0)
            await ledger.replace_export(self.db, self.run, made, lease)

    async def _record(
        self, step: int, watch: Stopwatch, lease: tuple[str, str, int], checkpoint: bool, share_gpu: bool
    ) -> dict[str, float]:
        """Write the files, publish them, record them."""
        row = await ledger.get_step(self.db, self.run, step)
        found = await self.files.staged(step, row["batch_hash"] or "", checkpoint)
        if found:  # a process died after it wrote these files and before it recorded them
            folder, export = found
            version = describe(step, folder, export, read_manifest(folder / CHECKPOINT) if checkpoint else None)
            metrics: dict[str, float] = export.meta.get("metrics", {})
        else:
            version, metrics = await self._train(step, watch, lease, checkpoint, share_gpu)
        version = await self.files.publish(version)
        watch.lap("save")
        fault_point(FaultPoint.SAVED)
        unchanged = not metrics.get(OPTIMIZER_STEPS)
        await ledger.record_version(self.db, self.run, version, lease, metrics, unchanged=unchanged)
        fault_point(FaultPoint.VERSION_RECORDED)
        return metrics

    async def _train(
        self, step: int, watch: Stopwatch, lease: tuple[str, str, int], checkpoint: bool, share_gpu: bool
    ) -> tuple[PolicyVersion, dict[str, float]]:
        row = await ledger.get_step(self.db, self.run, step)
        plan = ResolvedPlan.model_validate(row["plan"])
        async with self.engines.asleep() if share_gpu else nullcontext():
            replayed = await self.steps.bring_to(step - 1)
            watch.lap("replay" if replayed else "ledger")
            if row["status"] in ("planned", "sampled"):
                await self.steps.write_ledger(step, plan)
                fault_point(FaultPoint.LEDGERED)
            watch.lap("ledger")
            metrics = await self.steps.apply(step)
            fault_point(FaultPoint.TRAINED)
            watch.lap("update")
            metrics = finite(metrics | ({"replayed_steps": float(replayed)} if replayed else {}))
            batch = (await ledger.get_step(self.db, self.run, step))["batch_hash"]
            folder = self.files.stage(step, lease[2])
            return await self.steps.save(step, folder, checkpoint, {"batch": batch, "metrics": metrics}), metrics

    @asynccontextmanager
    async def _lease(self) -> AsyncGenerator[tuple[str, str, int]]:
        """Hold the lease on writing the run's versions; if it is lost, the update and the trainer are ended."""
        name = f"policy/{self.run}"
        fence = await ledger.take_lease(self.db, name, self.host, LEASE_SECONDS)
        if fence is None:
            raise LeaseLostError(f"another GPU host is making a version of run {self.run}; trying again")
        owner = asyncio.current_task()
        assert owner is not None
        try:
            async with in_background(self._renew(name, fence, owner)) as (renewing,):
                try:
                    yield name, self.host, fence
                except asyncio.CancelledError:
                    if renewing.done() and not renewing.cancelled():
                        raise LeaseLostError(f"lease {name} was lost to another GPU host") from None
                    raise
        finally:
            await ledger.release_lease(self.db, name, self.host, fence)

    async def _renew(self, name: str, fence: int, owner: asyncio.Task[object]) -> None:
        """Renew the lease until cancelled; if it is lost, end the trainer and the task that holds it."""
        renew = partial(ledger.renew_lease, self.db, name, self.host, fence, LEASE_SECONDS)
        period = LEASE_SECONDS / 6
        with suppress(PostgresError):
            async for _ in Every(period, at_once=False):
                backoff = Backoff(period, period, within_seconds=LEASE_SECONDS)
                if not await retry(renew, PostgresError, backoff=backoff):
                    break
        log.error("lease %s was lost", name, extra={"action": "lease_lost", "run": self.run})
        await self.steps.trainer.kill()
        owner.cancel()
