"""Plans: the rollouts of a step or an evaluation, and the closing of their batches.

Planning writes all values of a step in one transaction; planning it again returns the same row, whatever the input is
by then (rule 10). Closing a batch writes which attempt of each rollout counts (rule 12).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from relight.errors import NotFoundError, PausedError
from relight.store.database import Database, Transaction
from relight.store.runs import health
from relight.store.runs.lifecycle import lock_epoch, lock_running, lock_wanted
from relight.store.runs.rows import RunRow, get_run
from relight.store.storable import storable_text
from relight.types import names
from relight.types.learning_rate_schedule import learning_rate_factor
from relight.types.payloads import (
    BatchReport,
    CloseRolloutInput,
    EvaluationResult,
    NextRollouts,
    NextRolloutsInput,
    RolloutResult,
    StepInput,
    StepPlan,
)
from relight.types.rollout import FailureClass
from relight.types.run_file import Algorithm, Failures, RunFile, Sampling
from relight.types.verl_keys import flatten_verl_keys
from relight.types.views import EvaluationFigures

ROLLOUTS_PER_BATCH = 200
ALGORITHM_KEYS = frozenset(Algorithm.model_fields)
REPLAYED = ("algorithm", "learning_rate", "failures", "trainer_seed", "verl")
"""Values of a replayed step that come from the replay and not from its parent."""
SAMPLING_KEYS = frozenset(Sampling.model_fields)
EVALUATION_FIGURES = tuple(EvaluationFigures.model_fields)
"""Kept in `metrics` as `eval/<figure>`, and as `eval/<figure>/<source>` for each data source."""


class ResolvedPlan(BaseModel):
    """`steps.plan`: every value that a step was done with, so that it can be done again."""

    model_config = ConfigDict(extra="forbid")

    algorithm: Algorithm
    learning_rate: float | None = None
    """`algorithm.learning_rate` of this step, by the run's schedule."""
    sampling: Sampling
    failures: Failures
    group_size: int
    batch_size: int
    isolation: str
    engine_wait_seconds: float
    trainer_seed: int
    verl: dict[str, Any] = {}
    positions: list[int] = []
    """Tasks of the step, by position in the data set; group g has the g-th."""
    stream_end: int = 0
    """Tasks that the run has taken by the end of this step."""

    @property
    def scheduled_rate(self) -> float:
        """The learning rate of the step."""
        return self.algorithm.learning_rate if self.learning_rate is None else self.learning_rate


class PlannedRollout(NamedTuple):
    """A rollout's position in a plan."""

    group: int
    sample: int
    position: int
    batch: int


def stable_seed(*parts: object) -> int:
    """A seed that is the same on every machine: 63 bits of BLAKE2b."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def epoch_order(rows: int, epoch: int, seed: int, shuffle: bool) -> list[int]:
    """The order of the tasks in an epoch."""
    order = list(range(rows))
    if shuffle:
        random.Random(stable_seed(seed, "epoch", epoch)).shuffle(order)
    return order


def take_positions(rows: int, start: int, count: int, seed: int, shuffle: bool) -> list[int]:
    """The tasks `start` to `start + count` of the endless stream of epochs: none is skipped, none comes early."""
    taken: list[int] = []
    while len(taken) < count:
        epoch, offset = divmod(start + len(taken), rows)
        taken += epoch_order(rows, epoch, seed, shuffle)[offset : offset + count - len(taken)]
    return taken


def groups_to_batches(groups: int, group_size: int) -> list[int]:
    """The batch of each group; a batch holds whole groups and about 200 rollouts at most."""
    per_batch = max(ROLLOUTS_PER_BATCH // group_size, 1)
    return [group // per_batch for group in range(groups)]


def resolve_plan(
    file: RunFile, changes: Mapping[str, Any], step: int, rows: int, stream_start: int, total_steps: int
) -> ResolvedPlan:
    """The values of a step: the run file with the changes that were made since."""
    algorithm = file.algorithm.model_copy(update={k: value for k, value in changes.items() if k in ALGORITHM_KEYS})
    factor = learning_rate_factor(flatten_verl_keys(file.verl), step, total_steps)
    sampling = {key: value for key, value in changes.items() if key in SAMPLING_KEYS}
    batch_size = int(changes.get("batch_size", file.batch_size))
    return ResolvedPlan(
        algorithm=algorithm,
        learning_rate=algorithm.learning_rate * factor,
        sampling=file.sampling.model_copy(update=sampling),
        failures=file.failures,
        group_size=int(changes.get("group_size", file.group_size)),
        batch_size=batch_size,
        isolation=file.isolation,
        engine_wait_seconds=file.engine_wait_seconds,
        trainer_seed=stable_seed(file.seed, "trainer", step) % 2**31,
        verl=file.verl,
        positions=take_positions(rows, stream_start, batch_size, file.seed, file.data.shuffle),
        stream_end=stream_start + batch_size,
    )


async def plan_step(db: Database, request: StepInput) -> StepPlan:
    """Plan a training step, or return its plan.

    Raises:
        SupersededError: the run has a newer epoch.
    """
    async with db.transaction() as tx:
        run = await lock_running(tx, request.run, request.epoch)
        row = await tx.row("lock_step", request.run, request.step)
        if row is None:
            if run.paused:
                return StepPlan(step=request.step, state="paused")
            if run.stop_after_step is not None and run.stop_after_step < request.step:
                return StepPlan(step=request.step, state="stopped")
            row = await _write_plan(tx, run, request.step)
        await tx.execute("set_phase", request.run, "sampling")
        rollouts = await tx.value("count_rollouts", request.run, "train", request.step)
    return StepPlan(
        step=request.step,
        state="recorded" if row["status"] == "recorded" else "planned",
        batches=row["batches"],
        rollouts=int(rollouts),
    )


async def _write_plan(tx: Transaction, run: RunRow, step: int) -> Mapping[str, Any]:
    if run.replays:
        return await _write_replayed(tx, run, step)
    stream_start = await _stream_end(tx, run)
    rows = await _row_count(tx, run.train_dataset)
    plan = resolve_plan(run.file, run.hyperparameters, step, rows, stream_start, run.total_steps)
    batches = groups_to_batches(len(plan.positions), plan.group_size)
    columns = (plan.model_dump(mode="json"), *run.resources, max(batches) + 1)
    row = await tx.one("insert_step", run.run, step, "planned", *columns)
    planned = [
        PlannedRollout(group, index, position, batches[group])
        for group, position in enumerate(plan.positions)
        for index in range(plan.group_size)
    ]
    await _insert_rollouts(tx, run, "train", step, planned, version=step - 1)
    return dict(row)


async def _stream_end(tx: Transaction, run: RunRow) -> int:
    """The number of tasks that a run has taken so far; a fork continues from its parent's."""
    row = await tx.row("last_planned_step", run.run)
    while row is None and run.parent_run and run.parent_step:
        row = await tx.row("get_step", run.parent_run, run.parent_step)
        run = await get_run(tx, run.parent_run)
    return int(row["plan"]["stream_end"]) if row else 0


async def _write_replayed(tx: Transaction, run: RunRow, step: int) -> Mapping[str, Any]:
    """Plan a step that trains on the parent's rollouts: as they were sampled, with this run's algorithm."""
    source = await tx.row("get_step", run.parent_run, step)
    if source is None or source["status"] != "recorded":
        raise NotFoundError(f"run {run.parent_run}, of which {run.run} is a replay, has no recorded step {step}")
    mine = resolve_plan(run.file, run.hyperparameters, step, 1, 0, run.total_steps)
    plan = ResolvedPlan.model_validate(source["plan"]).model_copy(
        update={name: getattr(mine, name) for name in REPLAYED}
    )
    dumped = plan.model_dump(mode="json")
    resources = (source["resources_id"], source["resources_version"])
    return dict(await tx.one("insert_replayed_step", run.run, step, dumped, *resources))


async def _insert_rollouts(
    tx: Transaction,
    run: RunRow,
    kind: str,
    step: int,
    planned: Sequence[PlannedRollout],
    version: int,
    fill_up: int = 0,
    resources: tuple[str | None, int | None] | None = None,
) -> None:
    """Plan rollouts, with the run's resources where no others are given."""
    evaluation = kind == "eval"
    await tx.execute(
        "insert_rollouts",
        [names.planned_rollout_id(run.run, step, rollout.group, rollout.sample, evaluation) for rollout in planned],
        run.run,
        step,
        kind,
        fill_up,
        run.eval_dataset if evaluation else run.train_dataset,
        "val" if evaluation else "train",
        *(resources or run.resources),
        run.file.rollout.model_dump(mode="json"),
        f"{run.file.seed}/eval/" if evaluation else f"{run.file.seed}/{step}/",
        version,
        [rollout.group for rollout in planned],
        [rollout.sample for rollout in planned],
        [rollout.position for rollout in planned],
        [rollout.batch for rollout in planned],
    )


async def _row_count(tx: Transaction, dataset_id: str | None) -> int:
    return int((await tx.one("get_dataset", dataset_id))["row_count"])


async def begin_update(db: Database, request: StepInput) -> None:
    """Record that a step's update begins or continues.

    Raises:
        PausedError: it has not begun yet, and the run is paused.
        SupersededError: the run has a newer epoch.
        CancelRequestedError: the run was cancelled.
    """
    async with db.transaction() as tx:
        run = await lock_wanted(tx, request.run, request.epoch)
        step = await tx.row("lock_step", request.run, request.step)
        if run.paused and step is not None and step["status"] in ("planned", "sampled"):
            raise PausedError
        await tx.execute("set_phase", request.run, "updating")


async def plan_evaluation(db: Database, request: StepInput) -> StepPlan:
    """Plan the evaluation of policy version `request.step`, or return its plan.

    Raises:
        PausedError: it is not planned yet, and the run is paused.
    """
    version = request.step
    async with db.transaction() as tx:
        run = await lock_running(tx, request.run, request.epoch)
        planned = await tx.value("count_rollouts", request.run, "eval", version)
        if not planned:
            if run.paused:
                raise PausedError
            await _write_evaluation(tx, run, version)
            planned = await tx.value("count_rollouts", request.run, "eval", version)
        batches = await tx.value("count_batches", request.run, "eval", version)
        await tx.execute("set_phase", request.run, "evaluating")
    return StepPlan(step=version, batches=int(batches), rollouts=int(planned))


async def _write_evaluation(tx: Transaction, run: RunRow, version: int) -> None:
    rows = await _row_count(tx, run.eval_dataset)
    rows = min(rows, run.file.evaluation.limit or rows)
    if version == 0:
        # Step 0 holds the values with which the given model is evaluated.
        plan = resolve_plan(run.file, run.hyperparameters, 0, rows, 0, run.total_steps).model_copy(
            update={"positions": [], "stream_end": 0}
        )
        columns = (plan.model_dump(mode="json"), *run.resources, 0)
        await tx.execute("insert_step", run.run, 0, "recorded", *columns)
    samples = run.file.evaluation.samples
    batches = groups_to_batches(rows, samples)
    planned = [PlannedRollout(group, index, group, batches[group]) for group in range(rows) for index in range(samples)]
    await _insert_rollouts(tx, run, "eval", version, planned, version=version)


async def record_evaluation(db: Database, request: StepInput) -> EvaluationResult:
    """Write the mean over real rewards, and the score, in which failures count (rule 9)."""
    async with db.transaction() as tx:
        run = await lock_running(tx, request.run, request.epoch)
        given = {kind.value: reward for kind, reward in run.file.failures.rewards.items()}
        limits = (given, run.file.evaluation.pass_threshold)
        rows = await tx.fetch("evaluation_figures", request.run, request.step, *limits)
        figures = {
            f"eval/{name}/{row['source']}" if row["source"] else f"eval/{name}": float(row[name])
            for row in rows
            for name in EVALUATION_FIGURES
            if row[name] is not None
        }
        columns = (list(figures), list(figures.values()))
        await tx.execute("insert_metrics", request.run, request.step, *columns)
    (whole,) = [row for row in rows if row["source"] is None]
    return EvaluationResult.model_validate({**dict(whole), "version": request.step})


async def advance_batch(db: Database, batch: NextRolloutsInput) -> NextRollouts:
    """The rollouts that are left to run in a batch; if none is left, it is filled up or closed."""
    key = (batch.run, batch.kind, batch.step, batch.batch)
    warnings: dict[str, str] | None = None
    async with db.transaction() as tx:
        run = await lock_running(tx, batch.run, batch.epoch)
        step = await tx.row("lock_step", batch.run, batch.step)
        if batch.fresh:
            await tx.execute("requeue_cancelled_batch", *key, names.CANCELLED_WORKFLOW)
        await _close_lost(tx, batch)
        if left := await _left(tx, key):
            return left
        failures = _failures(run, dict(step) if step else None)
        if held := await health.hold_batch(tx, run, batch.kind, batch.step, failures):
            return NextRollouts(held=held)
        if step is not None and batch.kind == "train":
            await _fill_up(tx, run, ResolvedPlan.model_validate(step["plan"]), key)
            if left := await _left(tx, key):
                return left
        await tx.execute("close_batch", *key)
        if batch.kind == "train" and await tx.row("step_sampled", batch.run, batch.step):
            warnings = await health.check_rewards(tx, batch.run, batch.step, failures)
        return NextRollouts(report=await _report(tx, key), warnings=warnings)


def _failures(run: RunRow, step: Mapping[str, Any] | None) -> Failures:
    """The `failures` section of the step's plan, or of the run file before the first step."""
    return Failures.model_validate(step["plan"]["failures"]) if step else run.file.failures


async def batch_report(db: Database, run: str, step: int, batch: int) -> BatchReport | None:
    """The report of a batch that has closed."""
    async with db.transaction() as tx:
        counts = await tx.row("batch_counts", run, "train", step, batch)
        if counts is None or counts["open"] or not counts["total"]:
            return None
        return await _report(tx, (run, "train", step, batch))


async def _close_lost(tx: Transaction, batch: NextRolloutsInput) -> None:
    if not batch.lost:
        return
    groups, indices = [group for group, _ in batch.lost], [index for _, index in batch.lost]
    key = (batch.run, batch.kind, batch.step, batch.batch)
    closed = await tx.fetch("close_lost", *key, groups, indices)
    ids = [row["rollout_id"] for row in closed]
    await tx.execute("close_attempts_of", ids, FailureClass.INFRASTRUCTURE.value, "its workflow ended")


async def _left(tx: Transaction, key: tuple[str, str, int, int]) -> NextRollouts | None:
    """The rollouts that are left to run in a batch."""
    rows = await tx.fetch("rollouts_left", *key)
    planned = [(row["group_number"], row["index_in_group"], row["next_try"]) for row in rows]
    tasks = {row["group_number"]: row["position"] for row in rows}
    return NextRollouts(rollouts=planned, tasks=tasks) if rows else None


async def _fill_up(tx: Transaction, run: RunRow, plan: ResolvedPlan, key: tuple[str, str, int, int]) -> None:
    """Plan one more sample for each that the platform failed, with the group's pins (rules 10 and 11)."""
    if plan.failures.short_groups != "fill_up":
        return
    _, kind, step, batch = key
    limits = (plan.group_size, plan.failures.fill_up_rounds)
    for group in await tx.fetch("short_groups", *key, *limits):
        first = group["last_index"] + 1
        planned = [
            PlannedRollout(group["group_number"], first + more, group["position"], batch)
            for more in range(group["lacking"])
        ]
        resources = (group["resources_id"], group["resources_version"])
        await _insert_rollouts(tx, run, kind, step, planned, step - 1, group["rounds"] + 1, resources)


async def _report(tx: Transaction, key: tuple[str, str, int, int]) -> BatchReport:
    counts = await tx.one("batch_counts", *key)
    failures = await tx.fetch("batch_failures", *key)
    by_class = {row["failure_class"]: row["number"] for row in failures}
    batch = dict(zip(("run", "kind", "step", "batch"), key, strict=True))
    return BatchReport.model_validate({**dict(counts), **batch, "failures": by_class})


async def cancel_rollout(db: Database, close: CloseRolloutInput) -> RolloutResult:
    """Close a rollout as cancelled, unless it has ended.

    Raises:
        SupersededError: another workflow drives the run now, and decides about the rollout.
    """
    # A signal of `temporal workflow signal` may hold any text.
    close = close.model_copy(update={"message": storable_text(close.message), "actor": storable_text(close.actor)})
    async with db.transaction() as tx:
        if close.run:
            await lock_epoch(tx, close.run, close.epoch)
        cancelled = await tx.row("cancel_rollout", close.rollout_id, close.message)
        if cancelled:
            reason = (FailureClass.CANCELLED.value, close.message)
            await tx.execute("close_attempts_of", [close.rollout_id], *reason)
            await _audit_cancel(tx, close)
        row = await tx.row("get_rollout_outcome", close.rollout_id)
    if row is None:
        raise NotFoundError(f"there is no rollout {close.rollout_id!r}")
    own = {"succeeded": row["status"] == "succeeded", "message": row["failure"] or ""}
    return RolloutResult.model_validate(dict(row) | own)


async def _audit_cancel(tx: Transaction, close: CloseRolloutInput) -> None:
    """Write who cancelled a single rollout; rollouts that end with their run have the run's audit row."""
    if close.message == names.CANCELLED_WORKFLOW:
        return
    row = await tx.one("get_rollout_outcome", close.rollout_id)
    key = f"cancel_rollout/{close.rollout_id}/{row['attempts']}"
    columns = (close.rollout_id, close.actor, names.CANCEL_ROLLOUT, None, "cancelled", row["step"], None, key)
    await tx.execute("insert_audit", close.run, *columns)
