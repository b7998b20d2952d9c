"""The ledger: the attempts that a step consumed, the rows that it trained on, and the versions that it made.

It is written before the weights change (rule 13), so that a step can be repeated with the same rows. The tables' keys
keep an attempt from being trained on twice.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import orjson

from relight.adapter.training_rows import Generation, TrainingRow, temperature_of_logprobs
from relight.errors import LeaseLostError, NotFoundError
from relight.store.database import Database, Transaction
from relight.store.storable import finite
from relight.store.training.plans import ResolvedPlan
from relight.types.names import POLICY

_HASHED = sorted(set(TrainingRow.model_fields) - {"rollout_id"})


@dataclass(frozen=True)
class Candidate:
    """A rollout of the step, with the reward that it trains with; None if it has none."""

    rollout_id: str
    attempt_id: str
    group: int
    reward: float | None
    grader: str
    failure_class: str | None


@dataclass(frozen=True)
class Sample:
    """A candidate that trains, with its advantage."""

    candidate: Candidate
    advantage: float


@dataclass(frozen=True)
class PolicyVersion:
    """A published policy version."""

    version: int
    weights_hash: str
    export_path: str
    checkpoint_path: str | None
    policy: str = POLICY
    fence: int = 0
    """Of the lease under which it was made."""
    export_digest: str | None = None
    """The digest of all files in the manifest; None for the given model."""
    checkpoint_digest: str | None = None
    export_bytes: int = 0
    checkpoint_bytes: int = 0


def choose(candidates: Sequence[Candidate], group_size: int, short_groups: str) -> list[Candidate]:
    """The rollouts that train: whole groups, or short ones with at least 2 real rewards (rule 11)."""
    groups: dict[int, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        if candidate.reward is not None:
            groups[candidate.group].append(candidate)
    least = group_size if short_groups == "drop" else 2
    return [member for group in sorted(groups) if len(groups[group]) >= least for member in groups[group]]


def batch_hash(rows: Sequence[TrainingRow], samples: Sequence[Sample]) -> str:
    """SHA-256 over all that decides what is learned (rule 16): the samples with their rewards, and whole rows."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(orjson.dumps([sample.candidate.attempt_id, sample.candidate.reward, sample.advantage]))
    for row in rows:
        digest.update(orjson.dumps([getattr(row, name) for name in _HASHED]))
    return digest.hexdigest()


async def get_step(db: Database, run: str, step: int) -> Mapping[str, Any]:
    """A step's row.

    Raises:
        NotFoundError: it is not planned.
    """
    row = await db.row("get_step", run, step)
    if row is None:
        raise NotFoundError(f"run {run} has no step {step}")
    return dict(row)


async def read_candidates(db: Database, run: str, step: int, plan: ResolvedPlan) -> list[Candidate]:
    """The step's rollouts; a failure has a reward only if the run file gives its class one."""
    given = {failure.value: reward for failure, reward in plan.failures.rewards.items()}
    return [Candidate(**row) for row in await db.fetch("candidates", run, step, given)]


async def read_generations(db: Database, run: str, step: int, attempts: Sequence[str]) -> dict[str, list[Generation]]:
    """Delivered generations with token ids, by attempt, in order. One without ids is left out, never guessed."""
    days = [row["day"] for row in await db.fetch("days_of_step", run, step)]
    found: dict[str, list[Generation]] = defaultdict(list)
    for row in await db.fetch("delivered_generations", days, list(attempts), POLICY):
        values = dict(row)
        temperature = temperature_of_logprobs(values.pop("temperature"))
        found[values.pop("attempt_id")].append(Generation(**values, temperature=temperature))
    return found


async def count_left_out(db: Database, run: str, step: int, attempts: Sequence[str]) -> int:
    """Answers of the policy that `read_generations` leaves out: they came without token ids or logprobs."""
    days = [row["day"] for row in await db.fetch("days_of_step", run, step)]
    return int(await db.value("generations_left_out", days, list(attempts), POLICY))


async def write_ledger(
    db: Database, run: str, step: int, samples: Sequence[Sample], rows: Sequence[TrainingRow], metrics: dict[str, float]
) -> str:
    """Write what the step consumes and trains on, once; returns the batch's hash."""
    digest = batch_hash(rows, samples)
    async with db.transaction() as tx:
        current = await tx.row("lock_step", run, step)
        if current is None or current["status"] in ("ledgered", "recorded"):
            return str(current["batch_hash"]) if current else digest
        if samples:
            consumed = [
                (c.rollout_id, c.attempt_id, c.group, c.reward, c.grader, sample.advantage)
                for sample in samples
                for c in (sample.candidate,)
            ]
            columns = map(list, zip(*consumed, strict=True))
            await tx.execute("insert_step_rollouts", run, POLICY, step, *columns)
            numbered = [(run, POLICY, step, number, *dict(row).values()) for number, row in enumerate(rows)]
            await tx.execute_many("insert_training_row", numbered)
        await tx.execute("step_ledgered", run, step, digest, finite(metrics))
    return digest


async def read_rows(db: Database, run: str, step: int) -> list[TrainingRow]:
    """The rows of a ledgered step, as they were written."""
    return [
        TrainingRow(**{name: row[name] for name in TrainingRow.model_fields})
        for row in await db.fetch("training_rows_of", run, POLICY, step)
    ]


async def get_version(db: Database, run: str, version: int) -> PolicyVersion | None:
    """A published version, or None."""
    return _version(await db.row("get_version", run, POLICY, version))


async def newest_version(db: Database, run: str) -> PolicyVersion | None:
    """The newest published version, or None."""
    return _version(await db.row("newest_version", run, POLICY))


async def newest_checkpoint(db: Database, run: str, up_to: int) -> PolicyVersion | None:
    """The newest version up to `up_to` from which training can continue; version 0 is the given model."""
    return _version(await db.row("newest_checkpoint", run, POLICY, up_to))


def _version(row: Any) -> PolicyVersion | None:
    if row is None:
        return None
    return PolicyVersion(**{field.name: row[field.name] for field in fields(PolicyVersion)})


async def record_version(
    db: Database,
    run: str,
    version: PolicyVersion,
    lease: tuple[str, str, int],
    metrics: Mapping[str, float] | None = None,
    *,
    unchanged: bool = False,
) -> None:
    """Record a version whose files are complete, if the lease under which they were written still holds.

    Its metrics are stored with it, and whether its weights are those of the version before, since another worker may
    close the step.

    Raises:
        LeaseLostError: the lease was lost; files that were written under it do not count (rule 15).
    """
    async with db.transaction() as tx:
        await check_lease(tx, *lease)
        files = (version.weights_hash, version.export_path, version.checkpoint_path)
        await tx.execute("insert_version", run, version.policy, version.version, lease[2], *files)
        measured = finite(metrics or {})
        await tx.execute("step_trained", run, version.version, measured, unchanged)
        await _describe_files(tx, run, version)


async def replace_export(db: Database, run: str, version: PolicyVersion, lease: tuple[str, str, int]) -> None:
    """Record an export that was written again because the one before was damaged.

    Raises:
        LeaseLostError: the lease was lost.
    """
    async with db.transaction() as tx:
        await check_lease(tx, *lease)
        columns = (version.weights_hash, version.export_path)
        await tx.execute("replace_export", run, version.policy, version.version, *columns)
        await _describe_files(tx, run, version)


async def _describe_files(tx: Transaction, run: str, version: PolicyVersion) -> None:
    digests = (version.export_digest, version.checkpoint_digest)
    sizes = (version.export_bytes, version.checkpoint_bytes)
    await tx.execute("describe_files", run, version.policy, version.version, *digests, *sizes)


async def check_lease(tx: Transaction, name: str, holder: str, fence: int) -> None:
    """Check that a lease is held, and keep it until this transaction ends.

    Raises:
        LeaseLostError: the lease was lost.
    """
    row = await tx.row("lock_lease", name, POLICY)
    if row is None or row["fence"] != fence or row["holder"] != holder:
        raise LeaseLostError(f"lease {name} (fence {fence}) was lost{' to ' + str(row['holder']) if row else ''}")


async def record_step(
    db: Database, run: str, step: int, metrics: Mapping[str, float], seconds: Mapping[str, float]
) -> None:
    """Close a step: its metrics and the seconds of its phases. Closing it twice changes nothing."""
    clean = finite(metrics)
    async with db.transaction() as tx:
        row = await tx.row("step_recorded", run, step, clean, finite(seconds))
        if row is None:
            return
        times = {"rollouts": row["sampling"], "total": row["total"]}
        await tx.execute("add_step_seconds", run, step, finite(times))
        known: dict[str, float] = row["metrics"]
        names = ["train/reward" if name == "reward_mean" else f"train/{name}" for name in known]
        values = [float(value) for value in known.values()]
        await tx.execute("insert_metrics", run, step, names, values)


async def write_trainer_logprobs(db: Database, run: str, step: int, logprobs: Sequence[Sequence[float]]) -> None:
    """Store the trainer's logprobs of the rows beside the sampler's."""
    rows = [(run, POLICY, step, number, list(values)) for number, values in enumerate(logprobs)]
    await db.execute_many("set_trainer_logprobs", rows)


async def take_lease(db: Database, name: str, holder: str, seconds: float) -> int | None:
    """Take a lease with a new fence; None while another process holds it."""
    fence = await db.value("take_lease", name, POLICY, holder, seconds)
    return None if fence is None else int(fence)


async def renew_lease(db: Database, name: str, holder: str, fence: int, seconds: float) -> bool:
    """Renew a lease; False if it was lost."""
    return await db.value("renew_lease", name, POLICY, holder, fence, seconds) is not None


async def release_lease(db: Database, name: str, holder: str, fence: int) -> None:
    """Release a lease."""
    await db.execute("release_lease", name, POLICY, holder, fence)
