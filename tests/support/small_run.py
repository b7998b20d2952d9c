"""A small run from start to end: planning, attempts, model calls, ledger and versions are the real ones.

No Temporal, no model: what the workflows would call is called here in their order, so a database holds a finished run
after a tenth of a second. Its policy versions have files in `folder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from relight.adapter.training_rows import rows_of
from relight.datasets import load_tasks
from relight.operators.command_transactions import change_run
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.store.maintenance.partitions import ensure_partitions
from relight.store.runs import lifecycle
from relight.store.training import ledger, plans
from relight.store.training.ledger import PolicyVersion, Sample
from relight.store.training.plans import ResolvedPlan
from relight.types.payloads import BeginInput, ChangeInput, FinishInput, NextRolloutsInput, StepInput
from relight.types.rollout import FailureClass
from relight.types.run_file import parse_run_file
from relight.types.wire import DeliveryMark, OpenedAttempt
from tests.support.orchestration import run_file, write_tasks
from tests.support.seeds import seed_engine
from tests.support.store_kit import PostgresKit, call, failure, finish, opened, span

RUN = "small"
STEPS = 2


class SmallRun:
    """Plays a run of two steps with two groups of two, and an evaluation of the given model."""

    def __init__(self, database: Database, store: PostgresStore, folder: Path, run: str = RUN) -> None:
        self.database = database
        self.kit = PostgresKit(database, store)
        self.folder = folder
        self.run = run
        self.epoch = 1

    async def begin(self) -> None:
        """The run's row, its data, its engine with the given model."""
        write_tasks(self.folder, 4)
        file = parse_run_file(run_file(steps=STEPS, group_size=2, evaluation={"limit": 2}))
        train, held_out = (load_tasks(f"{name}.jsonl", self.folder) for name in ("train", "heldout"))
        await lifecycle.begin_run(self.database, BeginInput(run=self.run, driver="driver", file=file), train, held_out)
        await seed_engine(self.database, run=self.run)
        await self.publish(0)

    async def publish(self, version: int) -> None:
        """A version, with its files."""
        export = self.folder / f"{self.run}-{version}"
        export.mkdir(exist_ok=True)
        (export / "manifest.json").write_bytes(orjson.dumps({"version": version}))
        fence = await ledger.take_lease(self.database, f"policy/{self.run}", "small", 60)
        assert fence is not None
        made = PolicyVersion(version, f"w{version}", str(export), str(export))
        await ledger.record_version(self.database, self.run, made, (f"policy/{self.run}", "small", fence))
        await seed_engine(self.database, run=self.run, version=version)

    async def evaluate(self, version: int) -> None:
        """The held-out tasks."""
        step_input = StepInput(run=self.run, epoch=self.epoch, step=version)
        await plans.plan_evaluation(self.database, step_input)
        for rollout_id in await self.open_rollouts():
            await self.play(rollout_id)
        await plans.advance_batch(self.database, NextRolloutsInput(**step_input.model_dump(), kind="eval", batch=0))
        await plans.record_evaluation(self.database, step_input)

    async def sample(self, step: int) -> None:
        """Plan a step and play its rollouts; the first loses its process once, the last fails by itself."""
        step_input = StepInput(run=self.run, epoch=self.epoch, step=step)
        await plans.plan_step(self.database, step_input)
        *first, last = await self.open_rollouts()
        await opened(self.kit, first[0], execution="that dies")
        for rollout_id in first:
            await self.play(rollout_id)
        await finish(self.kit, await opened(self.kit, last), failure_class=FailureClass.AGENT_ERROR, message="no")
        await plans.advance_batch(self.database, NextRolloutsInput(**step_input.model_dump(), batch=0))

    async def open_rollouts(self) -> list[str]:
        """What is planned and has not ended."""
        rows = await self.database.pool.fetch(
            "select rollout_id from rollouts where run = $1 and status = 'queuing' order by rollout_id", self.run
        )
        return [row["rollout_id"] for row in rows]

    async def play(self, rollout_id: str) -> None:
        """An attempt with two calls and two spans that ends well; its first call failed on the platform's side once."""
        attempt = await opened(self.kit, rollout_id)
        await self.kit.store.record_call_failures([failure(attempt)])
        await self.kit.store.commit_generations([_call(attempt, 1), _call(attempt, 2)])
        await self.kit.store.mark_delivered([_mark(attempt, number) for number in (1, 2)])
        await self.kit.store.add_spans(rollout_id, attempt.attempt_id, attempt.fence, [span("one"), span("two")])
        await finish(self.kit, attempt, reward=float(int(rollout_id[-1]) % 2), output="done", output_bytes=4)

    async def update(self, step: int) -> None:
        """Ledger, version, step row: in the order of rule 13."""
        await self.write_ledger(step)
        await self.publish(step)
        await ledger.record_step(self.database, self.run, step, {"loss": 0.5}, {"update": 0.1})

    async def write_ledger(self, step: int) -> None:
        """What the step consumes."""
        plan = ResolvedPlan.model_validate((await ledger.get_step(self.database, self.run, step))["plan"])
        chosen = ledger.choose(await ledger.read_candidates(self.database, self.run, step, plan), 2, "fill_up")
        samples = [Sample(candidate, (candidate.reward or 0.0) - 0.5) for candidate in chosen]
        rows = await self._rows(step, samples)
        metrics = {"rollouts": float(len(samples)), "reward_mean": 0.5}
        await ledger.write_ledger(self.database, self.run, step, samples, rows, metrics)

    async def _rows(self, step: int, samples: Sequence[Sample]) -> list[Any]:
        attempts = [sample.candidate.attempt_id for sample in samples]
        calls = await ledger.read_generations(self.database, self.run, step, attempts)
        ids = [(sample.candidate.rollout_id, sample.candidate.attempt_id) for sample in samples]
        found = (row for rollout, attempt in ids for row in rows_of(rollout, attempt, calls[attempt], "transition"))
        return [row.model_copy(update={"weight": 1.0}) for row in found]

    async def change(self, action: str, value: Any) -> None:
        """An operator's command."""
        request = ChangeInput(
            run=self.run, epoch=self.epoch, action=action, value=value, actor="someone", request_key=action
        )
        await change_run(self.database, request)

    async def end(self) -> None:
        """The run is finished."""
        await lifecycle.finish_run(self.database, FinishInput(run=self.run, epoch=self.epoch, status="finished"))


def _call(attempt: OpenedAttempt, number: int) -> Any:
    """A call; the question is the same in all attempts, so bodies are shared."""
    return call(attempt, number, f"hash-{number}", delivered="unknown")


def _mark(attempt: OpenedAttempt, number: int) -> DeliveryMark:
    return DeliveryMark(
        rollout_id=attempt.rollout_id, attempt_id=attempt.attempt_id, call_number=number, delivered="yes"
    )


async def play_small_run(database: Database, folder: Path, run: str = RUN) -> SmallRun:
    """A finished run."""
    await ensure_partitions(database)
    small = SmallRun(database, await PostgresStore.create(database, "http://gateway"), folder, run)
    await small.begin()
    await small.change("set_hyperparameters", {"learning_rate": 1e-4})
    await small.evaluate(0)
    for step in range(1, STEPS + 1):
        await small.sample(step)
        await small.update(step)
    await small.end()
    return small
