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
from relight.store.database import Connection, Database
from relight.store.runs import health
from relight.store.runs.lifecycle import lock_epoch, lock_running, lock_wanted
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

ROLLOUTS_PER_BATCH = 200
ALGORITHM_KEYS = frozenset(Algorithm.model_fields)
REPLAYED = ("algorithm", "learning_rate", "failures", "trainer_seed", "verl")
"""Values of a replayed step that come from the replay and not from its parent."""
SAMPLING_KEYS = frozenset(Sampling.model_fields)
EVALUATION_FIGURES = (
    "score",
    "reward",
    "rewarded",
    "failed",
    "tasks",
    "samples",
    "spread",
    "pass_at_k",
    "seconds",
)
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


async def plan_step(db: Database, place: StepInput) -> StepPlan:
    """Plan a training step, or return its plan.

    Raises:
        SupersededError: the run has a newer epoch.
    """
    async with db.transaction() as connection:
        run = await lock_running(db, connection, place.run, place.epoch)
        row = await db.row("lock_step", place.run, place.step, connection=connection)
        if row is None:
            if run["paused"]:
                return StepPlan(run=place.run, step=place.step, state="paused")
            if run["stop_after_step"] is not None and run["stop_after_step"] < place.step:
                return StepPlan(run=place.run, step=place.step, state="stopped")
            row = await _write_plan(db, connection, run, place.step)
        await db.execute("set_phase", place.run, "sampling", connection=connection)
        rollouts = await db.value("count_rollouts", place.run, "train", place.step, connection=connection)
    plan = ResolvedPlan.model_validate(row["plan"])
    return StepPlan(
        run=place.run,
        step=place.step,
        state="recorded" if row["status"] == "recorded" else "planned",
        batches=row["batches"],
        rollouts=int(rollouts),
        learning_rate=plan.scheduled_rate,
    )


async def _write_plan(db: Database, connection: Connection, run: Mapping[str, Any], step: int) -> Mapping[str, Any]:
    if run["replays"]:
        return await _write_replayed(db, connection, run, step)
    file = RunFile.model_validate(run["file"])
    stream_start = await _stream_end(db, connection, run)
    rows = await _row_count(db, connection, run["train_dataset"])
    plan = resolve_plan(file, run["hyperparameters"], step, rows, stream_start, run["total_steps"])
    batches = groups_to_batches(len(plan.positions), plan.group_size)
    await db.execute(
        "insert_step",
        run["run"],
        step,
        "planned",
        plan.model_dump(mode="json"),
        run["resources_id"],
        run["resources_version"],
        max(batches) + 1,
        connection=connection,
    )
    places = [
        PlannedRollout(group, index, position, batches[group])
        for group, position in enumerate(plan.positions)
        for index in range(plan.group_size)
    ]
    await _insert_rollouts(db, connection, run, file, "train", step, places, version=step - 1)
    row = await db.row("lock_step", run["run"], step, connection=connection)
    assert row is not None
    return dict(row)


async def _stream_end(db: Database, connection: Connection, run: Mapping[str, Any]) -> int:
    """The number of tasks that a run has taken so far; a fork continues from its parent's."""
    row = await db.row("last_planned_step", run["run"], connection=connection)
    while row is None and run["parent_run"] and run["parent_step"]:
        parent = await db.row("get_run", run["parent_run"], connection=connection)
        assert parent is not None
        row = await db.row("get_step", parent["run"], run["parent_step"], connection=connection)
        run = dict(parent)
    return int(row["plan"]["stream_end"]) if row else 0


async def _write_replayed(db: Database, connection: Connection, run: Mapping[str, Any], step: int) -> Mapping[str, Any]:
    """Plan a step that trains on the parent's rollouts: as they were sampled, with this run's algorithm."""
    source = await db.row("get_step", run["parent_run"], step, connection=connection)
    if source is None or source["status"] != "recorded":
        raise NotFoundError(f"run {run['parent_run']}, of which {run['run']} is a replay, has no recorded step {step}")
    file = RunFile.model_validate(run["file"])
    mine = resolve_plan(file, run["hyperparameters"], step, 1, 0, run["total_steps"])
    plan = ResolvedPlan.model_validate(source["plan"]).model_copy(
        update={name: getattr(mine, name) for name in REPLAYED}
    )
    dumped = plan.model_dump(mode="json")
    resources = (source["resources_id"], source["resources_version"])
    await db.execute("insert_replayed_step", run["run"], step, dumped, *resources, connection=connection)
    row = await db.row("lock_step", run["run"], step, connection=connection)
    assert row is not None
    return dict(row)


async def _insert_rollouts(
    db: Database,
    connection: Connection,
    run: Mapping[str, Any],
    file: RunFile,
    kind: str,
    step: int,
    places: Sequence[PlannedRollout],
    version: int,
    fill_up: int = 0,
    pins: Mapping[str, Any] | None = None,
) -> None:
    """Plan rollouts, with the resources of `pins`, the run's own where none are given."""
    pins = pins or run
    evaluation = kind == "eval"
    await db.execute(
        "insert_rollouts",
        [names.planned_rollout_id(run["run"], step, place.group, place.sample, evaluation) for place in places],
        run["run"],
        step,
        kind,
        fill_up,
        run["eval_dataset"] if evaluation else run["train_dataset"],
        "val" if evaluation else "train",
        pins["resources_id"],
        pins["resources_version"],
        file.rollout.model_dump(mode="json"),
        f"{file.seed}/eval/" if evaluation else f"{file.seed}/{step}/",
        version,
        [place.group for place in places],
        [place.sample for place in places],
        [place.position for place in places],
        [place.batch for place in places],
        connection=connection,
    )


async def _row_count(db: Database, connection: Connection, dataset_id: str) -> int:
    row = await db.row("get_dataset", dataset_id, connection=connection)
    assert row is not None
    return int(row["row_count"])


async def begin_update(db: Database, place: StepInput) -> None:
    """Record that a step's update begins or continues.

    Raises:
        PausedError: it has not begun yet, and the run is paused.
        SupersededError: the run has a newer epoch.
        CancelRequestedError: the run was cancelled.
    """
    async with db.transaction() as connection:
        run = await lock_wanted(db, connection, place.run, place.epoch)
        step = await db.row("lock_step", place.run, place.step, connection=connection)
        if run["paused"] and step is not None and step["status"] in ("planned", "sampled"):
            raise PausedError
        await db.execute("set_phase", place.run, "updating", connection=connection)


async def plan_evaluation(db: Database, place: StepInput) -> StepPlan:
    """Plan the evaluation of policy version `place.step`, or return its plan.

    Raises:
        PausedError: it is not planned yet, and the run is paused.
    """
    version = place.step
    async with db.transaction() as connection:
        run = await lock_running(db, connection, place.run, place.epoch)
        planned = await db.value("count_rollouts", place.run, "eval", version, connection=connection)
        if not planned:
            if run["paused"]:
                raise PausedError
            await _write_evaluation(db, connection, run, version)
            planned = await db.value("count_rollouts", place.run, "eval", version, connection=connection)
        batches = await db.value("count_batches", place.run, "eval", version, connection=connection)
        await db.execute("set_phase", place.run, "evaluating", connection=connection)
    return StepPlan(run=place.run, step=version, batches=int(batches), rollouts=int(planned))


async def _write_evaluation(db: Database, connection: Connection, run: Mapping[str, Any], version: int) -> None:
    file = RunFile.model_validate(run["file"])
    rows = await _row_count(db, connection, run["eval_dataset"])
    rows = min(rows, file.evaluation.limit or rows)
    if version == 0:
        # Step 0 holds the values with which the given model is evaluated.
        plan = resolve_plan(file, run["hyperparameters"], 0, rows, 0, run["total_steps"]).model_copy(
            update={"positions": [], "stream_end": 0}
        )
        columns = (plan.model_dump(mode="json"), run["resources_id"], run["resources_version"], 0)
        await db.execute("insert_step", run["run"], 0, "recorded", *columns, connection=connection)
    samples = file.evaluation.samples
    batches = groups_to_batches(rows, samples)
    places = [PlannedRollout(group, index, group, batches[group]) for group in range(rows) for index in range(samples)]
    await _insert_rollouts(db, connection, run, file, "eval", version, places, version=version)


async def record_evaluation(db: Database, place: StepInput) -> EvaluationResult:
    """Write the mean over real rewards, and the score, in which failures count (rule 9)."""
    async with db.transaction() as connection:
        run = await lock_running(db, connection, place.run, place.epoch)
        file = RunFile.model_validate(run["file"])
        given = {kind.value: reward for kind, reward in file.failures.rewards.items()}
        limits = (given, file.evaluation.pass_threshold)
        rows = await db.fetch("evaluation_figures", place.run, place.step, *limits, connection=connection)
        figures = {
            f"eval/{name}/{row['source']}" if row["source"] else f"eval/{name}": float(row[name])
            for row in rows
            for name in EVALUATION_FIGURES
            if row[name] is not None
        }
        columns = (list(figures), list(figures.values()))
        await db.execute("insert_metrics", place.run, place.step, *columns, connection=connection)
    (whole,) = [row for row in rows if row["source"] is None]
    return EvaluationResult(
        version=place.step,
        score=whole["score"],
        reward=whole["reward"],
        rewarded=whole["rewarded"],
        failed=whole["failed"],
    )


async def advance_batch(db: Database, batch: NextRolloutsInput) -> NextRollouts:
    """The rollouts that are left to run in a batch; if none is left, it is filled up or closed."""
    key = (batch.run, batch.kind, batch.step, batch.batch)
    warnings: dict[str, str] | None = None
    async with db.transaction() as connection:
        run = await lock_running(db, connection, batch.run, batch.epoch)
        step = await db.row("lock_step", batch.run, batch.step, connection=connection)
        if batch.fresh:
            await db.execute("requeue_cancelled_batch", *key, names.CANCELLED_WORKFLOW, connection=connection)
        await _close_lost(db, connection, batch)
        if left := await _left(db, connection, key):
            return left
        failures = _failures(run, dict(step) if step else None)
        if held := await health.hold_batch(db, connection, run, batch.kind, batch.step, failures):
            return NextRollouts(held=held)
        if step is not None and batch.kind == "train":
            await _fill_up(db, connection, run, ResolvedPlan.model_validate(step["plan"]), key)
            if left := await _left(db, connection, key):
                return left
        await db.execute("close_batch", *key, connection=connection)
        if batch.kind == "train" and await db.row("step_sampled", batch.run, batch.step, connection=connection):
            warnings = await health.check_rewards(db, connection, batch.run, batch.step, failures)
        return NextRollouts(report=await _report(db, connection, key), warnings=warnings)


def _failures(run: Mapping[str, Any], step: Mapping[str, Any] | None) -> Failures:
    """The `failures` section of the step's plan, or of the run file before the first step."""
    return Failures.model_validate((step["plan"] if step else run["file"])["failures"])


async def batch_report(db: Database, run: str, step: int, batch: int) -> BatchReport | None:
    """The report of a batch that has closed."""
    async with db.transaction() as connection:
        counts = await db.row("batch_counts", run, "train", step, batch, connection=connection)
        if counts is None or counts["open"] or not counts["total"]:
            return None
        return await _report(db, connection, (run, "train", step, batch))


async def _close_lost(db: Database, connection: Connection, batch: NextRolloutsInput) -> None:
    if not batch.lost:
        return
    groups, indices = [group for group, _ in batch.lost], [index for _, index in batch.lost]
    key = (batch.run, batch.kind, batch.step, batch.batch)
    closed = await db.fetch("close_lost", *key, groups, indices, connection=connection)
    ids = [row["rollout_id"] for row in closed]
    await db.execute(
        "close_attempts_of", ids, FailureClass.INFRASTRUCTURE.value, "its workflow ended", connection=connection
    )


async def _left(db: Database, connection: Connection, key: tuple[str, str, int, int]) -> NextRollouts | None:
    """The rollouts that are left to run in a batch."""
    rows = await db.fetch("open_places", *key, connection=connection)
    places = [(row["group_number"], row["index_in_group"], row["next_try"]) for row in rows]
    tasks = {row["group_number"]: row["position"] for row in rows}
    return NextRollouts(rollouts=places, tasks=tasks) if rows else None


async def _fill_up(
    db: Database,
    connection: Connection,
    run: Mapping[str, Any],
    plan: ResolvedPlan,
    key: tuple[str, str, int, int],
) -> None:
    """Plan one more sample for each that the platform failed, with the group's pins (rules 10 and 11)."""
    if plan.failures.short_groups != "fill_up":
        return
    _, kind, step, batch = key
    file = RunFile.model_validate(run["file"])
    limits = (plan.group_size, plan.failures.fill_up_rounds)
    for group in await db.fetch("short_groups", *key, *limits, connection=connection):
        first = group["last_index"] + 1
        places = [
            PlannedRollout(group["group_number"], first + more, group["position"], batch)
            for more in range(group["lacking"])
        ]
        await _insert_rollouts(
            db, connection, run, file, kind, step, places, step - 1, group["rounds"] + 1, dict(group)
        )


async def _report(db: Database, connection: Connection, key: tuple[str, str, int, int]) -> BatchReport:
    counts = await db.row("batch_counts", *key, connection=connection)
    assert counts is not None
    failures = await db.fetch("batch_failures", *key, connection=connection)
    run, kind, step, batch = key
    return BatchReport(
        run=run,
        step=step,
        kind="eval" if kind == "eval" else "train",
        batch=batch,
        succeeded=counts["succeeded"],
        failed=counts["failed"],
        retried=counts["retried"],
        reward_sum=counts["reward_sum"],
        rewarded=counts["rewarded"],
        failures={row["failure_class"]: row["number"] for row in failures},
    )


async def cancel_rollout(db: Database, close: CloseRolloutInput) -> RolloutResult:
    """Close a rollout as cancelled, unless it has ended.

    Raises:
        SupersededError: another workflow drives the run now, and decides about the rollout.
    """
    # A signal of `temporal workflow signal` may hold any text.
    close = close.model_copy(update={"message": storable_text(close.message), "actor": storable_text(close.actor)})
    async with db.transaction() as connection:
        if close.run:
            await lock_epoch(db, connection, close.run, close.epoch)
        cancelled = await db.row("cancel_rollout", close.rollout_id, close.message, connection=connection)
        if cancelled:
            reason = (FailureClass.CANCELLED.value, close.message)
            await db.execute("close_attempts_of", [close.rollout_id], *reason, connection=connection)
            await _audit_cancel(db, connection, close)
        row = await db.row("get_rollout_outcome", close.rollout_id, connection=connection)
    if row is None:
        raise NotFoundError(f"there is no rollout {close.rollout_id!r}")
    return RolloutResult(
        rollout_id=close.rollout_id,
        succeeded=row["status"] == "succeeded",
        failure_class=row["failure_class"],
        reward=row["reward"],
        message=row["failure"] or "",
    )


async def _audit_cancel(db: Database, connection: Connection, close: CloseRolloutInput) -> None:
    """Write who cancelled a single rollout; rollouts that end with their run have the run's audit row."""
    if close.message == names.CANCELLED_WORKFLOW:
        return
    row = await db.row("get_rollout_outcome", close.rollout_id, connection=connection)
    assert row is not None
    key = f"cancel_rollout/{close.rollout_id}/{row['attempts']}"
    columns = (close.rollout_id, close.actor, names.CANCEL_ROLLOUT, None, "cancelled", row["step"], None, key)
    await db.execute("insert_audit", close.run, *columns, connection=connection)
