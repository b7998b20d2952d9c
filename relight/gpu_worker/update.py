"""`update_policy`: make version n from n-1, once, whatever dies in between (semantics 13 and 15).

Order: ledger -> train -> export and checkpoint renamed into place -> version row -> engines acknowledge -> step row.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from relight.errors import LeaseLostError, PostgresError
from relight.faults import Place, reach
from relight.gpu_worker.fleet import EngineKeeper
from relight.gpu_worker.training import StepTrainer
from relight.store import ledger
from relight.store.database import Database
from relight.store.plans import ResolvedPlan
from relight.types.payloads import UpdateResult

log = logging.getLogger(__name__)

LEASE_SECONDS = 30.0
KEPT_VERSIONS = 2
"""Exports and checkpoints of so many versions stay on disk, beside the given model."""


class Stopwatch:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._at = time.monotonic()

    def lap(self, phase: str) -> None:
        """Everything since the last lap was this phase."""
        now = time.monotonic()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._at
        self._at = now


class PolicyUpdate:
    """One run's updates on this host."""

    def __init__(
        self, db: Database, host: str, run: str, steps: StepTrainer, engines: EngineKeeper, folder: Path
    ) -> None:
        self.db = db
        self.host = host
        self.run = run
        self.steps = steps
        self.engines = engines
        self.folder = folder

    async def make(self, step: int, *, checkpoint: bool, share_gpu: bool) -> UpdateResult:
        """Make version `step`, or find it made; return when engines hold it and the step is recorded."""
        watch = Stopwatch()
        metrics: dict[str, float] = {}
        if await ledger.get_version(self.db, self.run, step) is None:
            async with self._lease() as lease:
                metrics = await self._train(step, watch, lease, checkpoint, share_gpu)
        await self.engines.wait_for(step)
        watch.lap("publish")
        await ledger.record_step(self.db, self.run, step, metrics, watch.seconds)
        reach(Place.STEP_RECORDED)
        await self._tidy(step)
        return await self._result(step, watch)

    async def _train(
        self, step: int, watch: Stopwatch, lease: tuple[str, str, int], checkpoint: bool, share_gpu: bool
    ) -> dict[str, float]:
        row = await ledger.get_step(self.db, self.run, step)
        plan = ResolvedPlan.model_validate(row["plan"])
        async with self._gpu(share_gpu):
            replayed = await self.steps.bring_to(step - 1)
            watch.lap("replay" if replayed else "ledger")
            if row["status"] in ("planned", "sampled"):
                await self.steps.write_ledger(step, plan)
                reach(Place.LEDGERED)
            watch.lap("ledger")
            metrics = await self.steps.apply(step)
            reach(Place.TRAINED)
            watch.lap("update")
            version = await self.steps.save(step, self.folder / f"v{step:05d}-f{lease[2]}", checkpoint)
        watch.lap("save")
        reach(Place.SAVED)
        metrics |= {"replayed_steps": float(replayed)} if replayed else {}
        await ledger.record_version(self.db, self.run, version, lease, metrics)
        reach(Place.VERSION_RECORDED)
        return metrics

    @asynccontextmanager
    async def _gpu(self, shared: bool) -> AsyncGenerator[None]:
        """Engine and trainer that share one GPU take turns."""
        if not shared:
            yield
            return
        await self.engines.sleep()
        try:
            yield
        finally:
            await self.engines.wake()

    @asynccontextmanager
    async def _lease(self) -> AsyncGenerator[tuple[str, str, int]]:
        """Be the one writer of the run's versions; a lease that is lost ends the work and the trainer."""
        name = f"policy/{self.run}"
        fence = await ledger.take_lease(self.db, name, self.host, LEASE_SECONDS)
        if fence is None:
            raise LeaseLostError(f"another GPU host makes a version of run {self.run}; trying again")
        owner = asyncio.current_task()
        assert owner is not None
        renewing = asyncio.create_task(self._renew(name, fence, owner))
        try:
            yield name, self.host, fence
        except asyncio.CancelledError:
            if renewing.done() and not renewing.cancelled():
                raise LeaseLostError(f"lease {name} was lost to another GPU host") from None
            raise
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            await ledger.release_lease(self.db, name, self.host, fence)

    async def _renew(self, name: str, fence: int, owner: asyncio.Task[object]) -> None:
        """Until cancelled, or until the lease is lost; then trainer and owner are ended."""
        last = time.monotonic()
        while time.monotonic() - last < LEASE_SECONDS:
            await asyncio.sleep(LEASE_SECONDS / 6)
            try:
                if not await ledger.renew_lease(self.db, name, self.host, fence, LEASE_SECONDS):
                    break
            except PostgresError:
                continue
            last = time.monotonic()
        log.error("lease %s was lost", name, extra={"action": "lease_lost", "run": self.run})
        await self.steps.trainer.kill()
        owner.cancel()

    async def _tidy(self, step: int) -> None:
        """Remove versions that nobody needs: their successors are acknowledged."""
        for row in await self.db.fetch("old_versions", self.run, step - KEPT_VERSIONS + 1):
            folder = Path(row["export_path"]).parent
            if folder.parent != self.folder or not folder.exists():
                continue
            if row["checkpoint_path"]:
                newest = await ledger.newest_checkpoint(self.db, self.run, step)
                if newest is None or newest.version <= row["version"]:
                    continue  # training would go on from it
                if await self.db.value("forget_checkpoint", self.run, row["version"]) is None:
                    continue  # a run was forked from it
            await asyncio.to_thread(shutil.rmtree, folder, True)

    async def _result(self, step: int, watch: Stopwatch) -> UpdateResult:
        row = await ledger.get_step(self.db, self.run, step)
        metrics = row["metrics"]
        return UpdateResult(
            version=step,
            unchanged=row["unchanged"],
            rows=int(metrics.get("rows", 0)),
            rollouts=int(metrics.get("trained", 0)),
            reward_mean=metrics.get("reward_mean"),
            seconds={name: round(value, 3) for name, value in watch.seconds.items()},
        )
