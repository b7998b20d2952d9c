"""The preflight: a rollout of each kind before the first step, to find failures that every rollout would have.

It runs the longest task of each set; if that fails, also the shortest one and one from the middle. Only a failure that
would repeat ends the run. A failure that a better policy might not have, or of a single task, is a warning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from relight.errors import PreflightError
from relight.store.database import Database, Transaction
from relight.store.runs import health
from relight.store.runs.lifecycle import lock_running
from relight.store.runs.rows import RunRow
from relight.types import names
from relight.types.payloads import PreflightState, RunRequest
from relight.types.rollout import FailureClass

SETS = {"train": "training", "val": "evaluation"}
"""The modes of its rollouts, and their names in messages."""
REPEATING = frozenset(
    {
        FailureClass.OUT_OF_MEMORY,
        FailureClass.INFRASTRUCTURE,
        FailureClass.GRADER_ERROR,
        FailureClass.NO_REWARD,
        FailureClass.INVALID_REWARD,
    }
)
"""Failures that do not depend on the policy's answers."""
MAX_TASKS = 3
"""The maximum number of tasks of a set that are run."""

Row = Mapping[str, Any]


class Finding(NamedTuple):
    """What is wrong with one rollout."""

    repeats: bool
    text: str


async def advance(db: Database, request: RunRequest) -> tuple[PreflightState, bool]:
    """The rollouts that have to run now, if any; and whether a warning was written.

    Raises:
        PreflightError: every rollout would fail; the message says why.
        SupersededError: another workflow drives the run.
    """
    async with db.transaction() as tx:
        run = await lock_running(tx, request.run, request.epoch)
        begun = await tx.value("step_was_planned", run.run, run.first_version)
        if begun or run.replays or not run.file.preflight:
            return PreflightState(), False
        rollouts = await _unfinished(tx, run)
        if rollouts:
            await tx.execute("set_phase", run.run, "preflight")
            tasks = {row["rollout_id"]: names.task_name(row["mode"], row["position"]) or "" for row in rollouts}
            return PreflightState(rollouts=list(tasks), tasks=tasks), False
        await tx.execute("close_preflight", run.run)
        problems, warning = _conclude(run, await _rows(tx, run.run))
        change = await tx.value("set_warning", run.run, health.PREFLIGHT, warning)
    if problems:
        raise PreflightError(problems)
    return PreflightState(), change is not None


async def _rows(tx: Transaction, run: str) -> list[Row]:
    return [dict(row) for row in await tx.fetch("preflight_rollouts", run, names.POLICY)]


async def _unfinished(tx: Transaction, run: RunRow) -> list[Row]:
    """Rollouts that have not ended, after planning those that are due."""
    rows = await _rows(tx, run.run)
    for mode, dataset, limit in _sets(run):
        mine = [row for row in rows if row["mode"] == mode]
        tried = [row for row in mine if row["batch"] == run.epoch]
        if any(_is_open(row) for row in mine) or any(finding(row) is None for row in mine):
            continue
        tasks = await tx.fetch("longest_tasks", dataset, limit)
        due = tasks[:1] if not tried else tasks[1:MAX_TASKS] if len(tried) == 1 else []
        for number, task in enumerate(due, len(mine) + 1):
            await _insert(tx, run, mode, number, dataset, task["position"])
    return [row for row in await _rows(tx, run.run) if _is_open(row)]


def _sets(run: RunRow) -> list[tuple[str, str, int]]:
    """Mode, data set and how many of its tasks are used."""
    wanted, sets = run.file.evaluation, [("train", run.train_dataset, 2**31 - 1)]
    if run.eval_dataset and (wanted.at_start or wanted.at_end or wanted.every):
        sets.append(("val", run.eval_dataset, wanted.limit or 2**31 - 1))
    return sets


async def _insert(tx: Transaction, run: RunRow, mode: str, number: int, dataset: str, position: int) -> None:
    kind = "train" if mode == "train" else "eval"
    await tx.execute(
        "insert_preflight",
        names.preflight_rollout_id(run.run, kind, number),
        run.run,
        run.first_version,
        run.epoch,
        list(SETS).index(mode),
        number,
        dataset,
        position,
        mode,
        *run.resources,
        run.file.rollout.model_dump(mode="json") | {"max_attempts": 1},
        f"{run.file.seed}/preflight/{kind}/{number}",
    )


def _is_open(row: Row) -> bool:
    return row["status"] not in ("succeeded", "failed", "cancelled")


def finding(row: Row) -> Finding | None:
    """What is wrong with a rollout that has ended; None if it succeeded."""
    if row["status"] == "succeeded":
        return None if row["usable"] or row["mode"] != "train" else Finding(True, _why_nothing_trains(row))
    kind = row["failure_class"] or row["status"]
    text = f"{kind}: {(row['failure'] or 'no message').splitlines()[0][: health.ERROR_LENGTH]}"
    if kind == FailureClass.CANCELLED:
        return Finding(False, text)
    before = "" if row["calls"] else ", before the model answered any call"
    return Finding(kind in REPEATING or not row["calls"], text + before)


def _why_nothing_trains(row: Row) -> str:
    if row["calls"]:
        return f"the engine returned no token ids and logprobs for its {row['calls']} model calls, so nothing can train"
    return (
        "the agent ended without calling the model that is trained, so nothing can train; it has to call the base URL "
        f"that it gets, with model {names.POLICY!r}"
    )


def _conclude(run: RunRow, rows: Sequence[Row]) -> tuple[str | None, str | None]:
    """The error that ends the run, and the warning, if any."""
    problems: list[str] = []
    warnings: list[str] = []
    for mode, name in SETS.items():
        mine = [row for row in rows if row["mode"] == mode]
        found = [(row, finding(row)) for row in mine if row["batch"] == run.epoch]
        bad = [(row, what) for row, what in found if what is not None]
        if not bad:
            continue
        sound = any(finding(row) is None for row in mine)
        row, what = bad[0]
        text = f"{name} rollout {row['rollout_id']} (task {row['position']}): {what.text}"
        if sound or not all(each.repeats for _, each in bad):
            warnings.append(f"{text} ({len(bad)} of {len(found)} rollouts failed)")
        else:
            problems.append(f"{text} ({len(bad)} of {len(found)} rollouts failed)")
    problem = (
        f"preflight: this would fail every time. {'; '.join(problems)}. Nothing was trained; "
        f"`relight rollouts show` has the details. Fix it, then `relight resume {run.run}`; "
        "`preflight: false` in the run file turns the preflight off"
    )
    return (problem if problems else None), ("; ".join(warnings)[: health.REASON_LENGTH] or None)
