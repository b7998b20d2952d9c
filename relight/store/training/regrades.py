"""Regrading: another grader grades a run's attempts, and its rewards are stored beside the trained ones.

The run itself does not change: its ledger names the grader whose rewards it used. A replay with `grader` set to the new
one trains on the new rewards.
"""

from __future__ import annotations

from relight.errors import ConfigError
from relight.semconv import PRIMARY_REWARD
from relight.store.database import Database
from relight.store.runs.rows import get_run
from relight.store.storable import LARGEST_REWARD, storable_text
from relight.types.payloads import NamedRewards, RegradedRewards, RegradeInput, RegradePage
from relight.types.run_file import OWN_REWARD

PAGE = 50
"""The maximum number of attempts in one payload."""


async def check_regrade(db: Database, asked: RegradeInput) -> str:
    """The grader that the run trained on, if its attempts may be graded by another one.

    Raises:
        NotFoundError: there is no such run.
        ConfigError: the grader's rewards were trained on.
    """
    own = (await get_run(db, asked.run)).file.grader or OWN_REWARD
    if asked.grader in (own, OWN_REWARD):
        raise ConfigError(
            f"grader {asked.grader!r}: its rewards are those that run {asked.run} trained on and stay as they are; "
            "serve the changed grader under another name"
        )
    return own


async def begin_regrade(db: Database, asked: RegradeInput, own: str, request_key: str) -> int:
    """Count what there is to grade, and write the audit row."""
    async with db.transaction() as tx:
        count = int(await tx.value("count_ungraded", asked.run, asked.grader, asked.step))
        after = {"grader": asked.grader, "attempts": count}
        columns = (None, asked.actor, "regrade", {"grader": own}, after, asked.step, None, request_key)
        await tx.execute("insert_audit", asked.run, *columns)
    return count


async def list_ungraded(db: Database, asked: RegradeInput) -> RegradePage:
    """The next attempts that this grader has not graded."""
    rows = await db.fetch("list_ungraded", asked.run, asked.grader, asked.step, asked.after, PAGE)
    return RegradePage(attempts=[(row["rollout_id"], row["attempt_id"]) for row in rows])


async def record_regrades(db: Database, given: RegradedRewards) -> int:
    """Store the rewards that are numbers; returns how many. Idempotent."""
    real = [(rollout, attempt, value) for rollout, attempt, value in given.rewards if abs(value) <= LARGEST_REWARD]
    rows = [row for reward in real for row in _rows(*reward, given.named.get(reward[1], NamedRewards()))]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(6)]
    await db.execute("insert_rewards", given.grader, *columns)
    return len(real)


def _rows(
    rollout: str, attempt: str, value: float, named: NamedRewards
) -> list[tuple[str, str, float, str, bool, str | None]]:
    """The reward that counts, and the others."""
    (first, _), *others = named.dimensions.items() or [(PRIMARY_REWARD, value)]
    feedback = named.feedback and storable_text(named.feedback)
    beside = [(name, number) for name, number in others if abs(number) <= LARGEST_REWARD]
    return [
        (rollout, attempt, value, storable_text(first), True, feedback),
        *((rollout, attempt, number, storable_text(name), False, None) for name, number in beside),
    ]
