"""Health of runs: detects that too many rollouts of a step failed, that nothing can be learned, or that nothing
progresses.

The result is a pause, with an audit row by `relight`, or a warning in the run's row. The pause comes before the batch
is closed, so that failed rollouts can still be tried again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from relight.store.database import Database, Transaction
from relight.store.runs.rows import RunRow, get_run
from relight.types import names
from relight.types.rollout import PLATFORM_FAILURES, FailureClass
from relight.types.run_file import Failures

ACTOR = "relight"
EQUAL_REWARDS = "equal_rewards"
STALLED = "stalled"
PREFLIGHT = "preflight"
REASON_LENGTH = 1000
ERROR_LENGTH = 300


class TooManyFailures(NamedTuple):
    """Why a step pauses its run."""

    classes: list[str]
    """The failure classes that caused it."""
    text: str


def assess_failures(failures: Failures, ended: Mapping[str, int]) -> TooManyFailures | None:
    """Whether these failures pause a run; `ended` counts rollouts by failure class, '' for successful ones.

    Cancelled rollouts are not counted, and a failure whose class has a reward counts as a success.
    """
    counted = {name: number for name, number in ended.items() if number and name != FailureClass.CANCELLED}
    total = sum(counted.values())
    failed = {name: number for name, number in counted.items() if name and name not in failures.rewards}
    if not failed:
        return None
    share = f"{sum(failed.values())} of {total} rollouts failed ({_counts(failed)})"
    if failures.pause_without_reward and sum(failed.values()) == total:
        return TooManyFailures(sorted(failed), f"not one real reward: {share}")
    for group, limit in (("platform", failures.pause_above.platform), ("agent", failures.pause_above.agent)):
        mine = {name: number for name, number in failed.items() if (name in PLATFORM_FAILURES) == (group == "platform")}
        if limit is not None and mine and sum(mine.values()) > limit * total:
            return TooManyFailures(
                sorted(mine), f"{share}, more than `failures.pause_above.{group}` ({limit:g}) allows"
            )
    return None


def _counts(failed: Mapping[str, int]) -> str:
    return ", ".join(
        f"{name} {number}" for name, number in sorted(failed.items(), key=lambda item: (-item[1], item[0]))
    )


async def hold_batch(tx: Transaction, run: RunRow, kind: str, step: int, failures: Failures) -> str | None:
    """Why a batch without rollouts left to run must not be closed; None if it may be.

    A step pauses its run once, and again each time after an operator retried its failed rollouts.
    """
    rows = await tx.fetch("ended_by_class", run.run, kind, step)
    too_many = assess_failures(failures, {row["failure_class"]: row["number"] for row in rows})
    if too_many is None:
        return None
    retries = await tx.value("retries_asked", run.run, step)
    key = f"{ACTOR}/pause/{run.run}/{kind}-{step}/{retries}"
    if await tx.row("audit_of_request", key):
        return (run.pause_reason or "the run is paused") if run.paused else None
    reason = await _reason(tx, run.run, kind, step, too_many)
    await pause(tx, run, reason, step, key)
    return reason


async def _reason(tx: Transaction, run: str, kind: str, step: int, too_many: TooManyFailures) -> str:
    example = await tx.one("example_failure", run, kind, step, too_many.classes)
    where = f"step {step}" if kind == "train" else f"the evaluation of version {step}"
    error = example["failure"].splitlines()[0][:ERROR_LENGTH]
    return (
        f"{where}: {too_many.text}; for example {example['rollout_id']}: {error}. {_advice(run, too_many.classes)}"
    )[:REASON_LENGTH]


def _advice(run: str, classes: list[str]) -> str:
    platform = all(name in PLATFORM_FAILURES for name in classes)
    what = "what fails (`relight status` shows the parts)" if platform else "the agent, and start its runner again"
    return f"Fix {what}, then `relight retry {run} --failed` runs them again once the run is resumed"


async def pause(tx: Transaction, run: RunRow, reason: str, step: int | None, key: str) -> None:
    """Pause a run automatically, with an audit row."""
    await tx.execute("set_paused", run.run, True, reason)
    after = {"paused": True, "reason": reason}
    columns = (None, ACTOR, names.PAUSE, run.paused, after, step, None, key)
    await tx.execute("insert_audit", run.run, *columns)


async def check_rewards(tx: Transaction, run: str, step: int, failures: Failures) -> dict[str, str] | None:
    """Add or remove the warning that all rewards of each group of the last steps are equal; returns all warnings if any
    changed.
    """
    steps = failures.warn_equal_rewards
    text = None
    if steps is not None and await _are_flat(tx, run, step, steps, failures):
        which = f"steps {step - steps + 1} to {step}" if steps > 1 else f"step {step}"
        text = (
            f"in every group of {which} all rewards were equal, so every advantage is 0 and nothing is learned; "
            f"look at `relight rollouts {run}`, the temperature, and whether the tasks are too easy or too hard"
        )
    return await tx.value("set_warning", run, EQUAL_REWARDS, text)


async def _are_flat(tx: Transaction, run: str, step: int, steps: int, failures: Failures) -> bool:
    given = {kind.value: reward for kind, reward in failures.rewards.items()}
    last = await tx.fetch("groups_of_equal_rewards", run, step, step, given)
    if step < steps or not last or last[0]["flat"] < last[0]["groups"]:
        return False  # most steps end here, without a check of earlier ones
    rows = await tx.fetch("groups_of_equal_rewards", run, step - steps + 1, step, given)
    return len(rows) == steps and all(row["flat"] == row["groups"] for row in rows)


class Stall(NamedTuple):
    """The result of a check of a run that makes no progress, or makes progress again."""

    run: str
    epoch: int
    paused: bool
    warnings: dict[str, str]


async def find_stalls(db: Database) -> list[Stall]:
    """Add warnings to runs without progress, pause them if their file says so, and remove warnings of the others."""
    found: list[Stall] = []
    for run in await db.fetch("runs_without_progress"):
        failures = Failures.model_validate(run["failures"] or {})
        limit = failures.stalled_after_seconds
        is_still = limit is not None and run["seconds"] > limit
        if is_still or STALLED in run["warnings"]:
            stall = await _note_stall(db, dict(run), failures.pause_when_stalled, is_still)
            found += [stall] if stall else []
    return found


async def _note_stall(db: Database, run: Mapping[str, Any], wants_pause: bool, is_still: bool) -> Stall | None:
    async with db.transaction() as tx:
        row = await get_run(tx, run["run"], lock=True)
        if row.status != "running" or row.paused or row.epoch != run["epoch"]:
            return None
        text = await _stall_text(tx, run) if is_still else None
        warnings = await tx.value("set_warning", run["run"], STALLED, text)
        if is_still and wants_pause:
            assert text is not None
            key = f"{ACTOR}/stalled/{run['run']}/{run['moved_at'].isoformat()}"
            await pause(tx, row, text, None, key)
            warnings = warnings or row.warnings
    return None if warnings is None else Stall(run["run"], run["epoch"], is_still and wants_pause, warnings)


async def _stall_text(tx: Transaction, run: Mapping[str, Any]) -> str:
    oldest = await tx.row("under_way", run["run"])
    text = f"nothing has ended since {run['moved_at']:%Y-%m-%d %H:%M:%S} UTC (phase: {run['phase']})"
    if oldest is None:
        return f"{text}; no attempt is under way"
    return f"{text}; {oldest['number']} attempts are under way, the oldest is of {oldest['rollout_id']}"
