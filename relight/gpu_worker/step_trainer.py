"""Turns a step's rollouts into training rows, and brings a trainer to the version that an update starts from."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from relight.adapter.training_rows import Generation, TrainingRow, merge_breaks, rows_of
from relight.errors import CheckpointError
from relight.gpu_worker.complete_directories import Manifest
from relight.gpu_worker.row_file import row_weights
from relight.gpu_worker.trainer_client import TrainerProcess
from relight.gpu_worker.version_files import CHECKPOINT, EXPORT, VersionFiles
from relight.store.database import Database
from relight.store.training import ledger
from relight.store.training.ledger import Candidate, PolicyVersion, Sample, choose
from relight.store.training.plans import ResolvedPlan
from relight.types.hyperparameters import estimator_options, trainer_numbers
from relight.types.names import POLICY

log = logging.getLogger(__name__)


def make_rows(
    samples: Sequence[Sample], generations: Mapping[str, Sequence[Generation]], plan: ResolvedPlan
) -> list[TrainingRow]:
    """The rows of a step, with advantages and weights."""
    rows = [
        row.model_copy(update={"advantage": sample.advantage, "group": candidate.group})
        for sample in samples
        for candidate in (sample.candidate,)
        for row in rows_of(
            candidate.rollout_id,
            candidate.attempt_id,
            generations.get(candidate.attempt_id, ()),
            plan.algorithm.level,
        )
    ]
    algorithm = plan.algorithm
    weights = row_weights(rows, algorithm.loss_agg_mode, algorithm.sequence)
    return [row.model_copy(update={"weight": weight}) for row, weight in zip(rows, weights, strict=True)]


def step_metrics(
    candidates: Sequence[Candidate], samples: Sequence[Sample], rows: Sequence[TrainingRow]
) -> dict[str, float]:
    """Metrics of a step that are known before it trains."""
    rewards = [candidate.reward for candidate in candidates if candidate.reward is not None]
    groups = {candidate.group for candidate in candidates}
    trained = {sample.candidate.group for sample in samples}
    flat = [group for group in trained if len({s.candidate.reward for s in samples if s.candidate.group == group}) == 1]
    metrics: dict[str, float] = {
        "rollouts": len(candidates),
        "failed": sum(candidate.failure_class is not None for candidate in candidates),
        "trained": len(samples),
        "rows": len(rows),
        "groups_dropped": len(groups - trained),
        "groups_without_signal": len(flat),
        "trained_tokens": sum(row.trained_tokens for row in rows),
        "token_breaks": merge_breaks(rows),
    }
    if rewards:
        metrics["reward_mean"] = sum(rewards) / len(rewards)
    return {name: float(value) for name, value in metrics.items()}


class StepTrainer:
    """Applies recorded batches with one trainer process."""

    def __init__(self, db: Database, run: str, trainer: TrainerProcess, files: VersionFiles, scratch: Path) -> None:
        self.db = db
        self.run = run
        self.trainer = trainer
        self.files = files
        self.scratch = scratch

    async def write_ledger(self, step: int, plan: ResolvedPlan) -> None:
        """Decide what the step trains on, and record it; a step's ledger never changes afterwards."""
        candidates = await ledger.read_candidates(self.db, self.run, step, plan)
        chosen = choose(candidates, plan.group_size, plan.failures.short_groups)
        attempts = [candidate.attempt_id for candidate in chosen]
        generations = await ledger.read_generations(self.db, self.run, step, attempts)
        samples = await self._with_advantages(chosen, generations, plan)
        rows = make_rows(samples, generations, plan)
        metrics = step_metrics(candidates, samples, rows)
        metrics["calls_left_out"] = float(await ledger.count_left_out(self.db, self.run, step, attempts))
        await ledger.write_ledger(self.db, self.run, step, samples, rows, metrics)

    async def _with_advantages(
        self, chosen: Sequence[Candidate], generations: Mapping[str, Sequence[Generation]], plan: ResolvedPlan
    ) -> list[Sample]:
        if not chosen:
            return []
        rewards = [candidate.reward or 0.0 for candidate in chosen]
        groups = [str(candidate.group) for candidate in chosen]
        options = estimator_options(plan.algorithm.name, plan.verl)
        if plan.algorithm.name == "opo":
            written = (generations.get(candidate.attempt_id, ()) for candidate in chosen)
            options["lengths"] = [max(1, sum(len(one.token_ids) for one in calls)) for calls in written]
        values = await self.trainer.advantages(plan.algorithm.name, rewards, groups, options)
        return [Sample(candidate, float(value)) for candidate, value in zip(chosen, values, strict=True)]

    async def apply(self, step: int, run: str | None = None) -> dict[str, float]:
        """Make version `step` from `step - 1`, which the trainer holds, with the recorded rows of this run, or of one
        that it was forked from."""
        run = run or self.run
        row = await ledger.get_step(self.db, run, step)
        plan = ResolvedPlan.model_validate(row["plan"])
        rows = await ledger.read_rows(self.db, run, step)
        if not rows:
            await self.trainer.keep(step)  # the same weights get the next number
            return {}
        numbers = trainer_numbers(
            plan.algorithm, plan.sampling.temperature, plan.verl, plan.group_size, plan.scheduled_rate
        )
        result = await self.trainer.train(step, rows, numbers, seed=plan.trainer_seed)
        if run == self.run:
            await ledger.write_trainer_logprobs(self.db, run, step, result.logprobs)
        return result.metrics

    async def bring_to(self, version: int, *, repairing: bool = False) -> int:
        """Have the trainer hold a version: load the newest good checkpoint and replay the steps since then.

        Returns how many steps were replayed. Their weights are compared with the export, unless that is to be repaired.
        """
        if (await self.trainer.state()).version == version:
            return 0
        # The run and its ancestors, nearest first, each with the version after which it begins.
        line = [(row["run"], row["after"]) for row in await self.db.fetch("lineage", self.run)]
        start = await self._load_checkpoint(version, line)
        for step in range(start + 1, version + 1):
            run = next(run for run, after in line if after < step)
            log.info("replaying step %s of run %s", step, run, extra={"action": "replay", "run": self.run})
            await self.apply(step, run)
        if start < version and not repairing:
            await self._match_export(version)
        return version - start

    async def _load_checkpoint(self, version: int, line: Sequence[tuple[str, int]]) -> int:
        """Load the newest undamaged checkpoint up to a version; returns its version.

        If a fork has none, those of its ancestors are used.
        """
        up_to = version
        for run, _after in line:
            while (found := await ledger.newest_checkpoint(self.db, run, up_to)) and found.checkpoint_path:
                if await self._loaded(found, found.checkpoint_path):
                    return found.version
                up_to = found.version - 1
        await self.trainer.load(0)
        return 0

    async def _loaded(self, version: PolicyVersion, location: str) -> bool:
        try:
            directory = await self.files.open(location, version.checkpoint_digest)
            await self.trainer.load(version.version, checkpoint_dir=directory)
        except CheckpointError as error:
            log.warning("%s; an older one is used", error, extra={"action": "checkpoint_refused", "run": self.run})
            await self.db.execute("insert_metric", self.run, version.version, "checkpoint/refused", 1.0)
            return False
        return True

    async def _match_export(self, version: int) -> None:
        """If replayed weights differ from the published ones, as on GPUs, adjust the elements that do (rule 16)."""
        recorded = await ledger.get_version(self.db, self.run, version)
        if recorded is None:
            return
        scratch = self.scratch / f"replayed-{version}"
        await asyncio.to_thread(shutil.rmtree, scratch, True)
        saved = await self.trainer.save(scratch)
        await asyncio.to_thread(shutil.rmtree, scratch, True)
        if saved.export and saved.export.weights_digest != recorded.weights_hash:
            await self.db.execute("insert_metric", self.run, version, "replay/differs", 1.0)
            try:
                export = await self.files.open(recorded.export_path, recorded.export_digest)
            except CheckpointError as error:  # nothing to compare with
                log.warning("%s; the replayed weights are used", error, extra={"action": "export_refused"})
                return
            patched = await self.trainer.agree(version, export)
            await self.db.execute("insert_metric", self.run, version, "replay/patched", float(patched))

    async def save(self, version: int, folder: Path, checkpoint: bool, meta: Mapping[str, Any]) -> PolicyVersion:
        """Write the export and, if asked for, a checkpoint; each appears when it is complete."""
        export = folder / EXPORT
        checkpoint_dir = folder / CHECKPOINT if checkpoint else None
        saved = await self.trainer.save(export, checkpoint_dir, meta={"run": self.run, "policy": POLICY, **meta})
        if saved.export is None:
            raise CheckpointError(f"the trainer wrote no export of version {version}")
        return describe(version, folder, saved.export, saved.checkpoint)


def describe(version: int, folder: Path, export: Manifest, checkpoint: Manifest | None) -> PolicyVersion:
    """The record of a version whose files are in a folder."""
    return PolicyVersion(
        version=version,
        weights_hash=export.weights_digest,
        export_path=str(folder / EXPORT),
        checkpoint_path=str(folder / CHECKPOINT) if checkpoint else None,
        export_digest=export.digest,
        checkpoint_digest=checkpoint.digest if checkpoint else None,
        export_bytes=export.size_bytes,
        checkpoint_bytes=checkpoint.size_bytes if checkpoint else 0,
    )
