"""A run whose rollouts a test plays by hand, on the real store: no Temporal, no model."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from relight.datasets import load_tasks
from relight.operators.command_transactions import change_run
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.store.runs import lifecycle
from relight.store.training import ledger, plans
from relight.store.training.ledger import PolicyVersion
from relight.store.training.plans import ResolvedPlan
from relight.types.payloads import (
    BeginInput,
    ChangeInput,
    ChangeResult,
    NextRollouts,
    NextRolloutsInput,
    StepInput,
    StepPlan,
)
from relight.types.rollout import FailureClass
from relight.types.run_file import RunFile, parse_run_file
from relight.types.wire import AttemptOutcome, FinishRequest, OpenAnswer, OpenedAttempt, OpenRequest
from tests.support.orchestration import run_file, write_tasks
from tests.support.seeds import seed_engine
from tests.support.store_kit import call

_keys = itertools.count(1)


class ManualRun:
    """What workflows, runner and GPU worker would ask of the store, by hand."""

    def __init__(self, database: Database, store: PostgresStore, name: str, file: RunFile) -> None:
        self.database = database
        self.store = store
        self.name = name
        self.file = file
        self.epoch = 1

    def step_input(self, step: int) -> StepInput:
        return StepInput(run=self.name, epoch=self.epoch, step=step)

    async def plan(self, step: int) -> StepPlan:
        return await plans.plan_step(self.database, self.step_input(step))

    async def change(self, action: str, value: Any) -> ChangeResult:
        request = ChangeInput(
            run=self.name,
            epoch=self.epoch,
            action=action,
            value=value,
            actor="someone",
            request_key=f"key-{next(_keys)}",
        )
        return await change_run(self.database, request)

    async def open(self, rollout_id: str, *, number: int = 1, execution: str = "") -> OpenAnswer:
        request = OpenRequest(
            rollout_id=rollout_id,
            try_number=number,
            execution=execution or f"execution-{next(_keys)}",
            worker_id="by hand",
        )
        return await self.store.open_attempt(request)

    async def opened(self, rollout_id: str, *, number: int = 1, execution: str = "") -> OpenedAttempt:
        answer = await self.open(rollout_id, number=number, execution=execution)
        assert answer.attempt is not None, answer.reason
        return answer.attempt

    async def end(
        self, attempt: OpenedAttempt, reward: float | None = None, failure: FailureClass | None = None
    ) -> AttemptOutcome:
        request = FinishRequest(
            attempt_id=attempt.attempt_id,
            fence=attempt.fence,
            reward=reward,
            failure_class=failure,
            message="on purpose" if failure else "",
        )
        return await self.store.finish_attempt(request)

    async def play(
        self, rollout_id: str, reward: float | None = 1.0, failure: FailureClass | None = None
    ) -> AttemptOutcome:
        """One attempt with a model call, from opening to its end."""
        attempt = await self.opened(rollout_id)
        await self.store.commit_generations([call(attempt, 1, delivered="yes")])
        return await self.end(attempt, None if failure else reward, failure)

    async def play_all(self, step: int, kind: str = "train") -> None:
        """Every rollout of a step that is open; those with an even index are right."""
        for row in await self.rollouts(step, kind):
            if row["ended_at"] is None:
                await self.play(row["rollout_id"], float(row["index_in_group"] % 2 == 0))

    async def advance(self, step: int, batch: int = 0, kind: Any = "train") -> NextRollouts:
        question = NextRolloutsInput(run=self.name, epoch=self.epoch, step=step, kind=kind, batch=batch)
        return await plans.advance_batch(self.database, question)

    async def update(self, step: int) -> None:
        """Ledger, version, step row: in the order of rule 13."""
        plan = ResolvedPlan.model_validate((await ledger.get_step(self.database, self.name, step))["plan"])
        candidates = await ledger.read_candidates(self.database, self.name, step, plan)
        chosen = ledger.choose(candidates, plan.group_size, plan.failures.short_groups)
        samples = [ledger.Sample(candidate, candidate.reward or 0.0) for candidate in chosen]
        await ledger.write_ledger(self.database, self.name, step, samples, [], {"trained": float(len(samples))})
        fence = await ledger.take_lease(self.database, f"policy/{self.name}", "by hand", 60)
        assert fence is not None
        lease = (f"policy/{self.name}", "by hand", fence)
        version = PolicyVersion(step, f"w{step}", "nowhere", None)
        await ledger.record_version(self.database, self.name, version, lease, unchanged=not samples)
        await ledger.record_step(self.database, self.name, step, {}, {})

    async def rollouts(self, step: int, kind: str = "train") -> list[dict[str, Any]]:
        """The rows of a step, in order."""
        text = "select * from rollouts where run = $1 and step = $2 and kind = $3 order by group_number, index_in_group"
        return [dict(row) for row in await self.database.pool.fetch(text, self.name, step, kind)]

    async def value(self, column: str) -> Any:
        return await self.database.pool.fetchval(f"select {column} from runs where run = $1", self.name)


async def begin(database: Database, folder: Path, name: str, **changes: Any) -> ManualRun:
    """A run with its data and an engine that holds the given model."""
    write_tasks(folder)
    file = parse_run_file(run_file(**changes))
    train, held_out = (load_tasks(f"{part}.jsonl", folder) for part in ("train", "heldout"))
    await lifecycle.begin_run(database, BeginInput(run=name, driver="driver", file=file), train, held_out)
    await seed_engine(database, f"engine-of-{name}", name)
    return ManualRun(database, await PostgresStore.create(database, "http://gateway"), name, file)
