"""Anything in any order, done to the twin and to Postgres: they answer alike, and the rules hold.

Deadlines are so short that a look finds them passed, or so long that none does; so no clock decides what happens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from pydantic import BaseModel

from relight.errors import RelightError
from relight.store.database import Database
from relight.store.postgres import PostgresLightningStore
from relight.store.queue.rules import ENDED
from relight.types.rollout import Attempt, AttemptStatus, RolloutConfig, RolloutStatus
from relight.types.store import EnqueueRolloutRequest, PaginatedResult
from tests.support.examples import examples
from tests.support.lightning_kit import LightningKit, MemoryLightningKit, PostgresLightningKit, prompts, span_of
from tests.support.postgres import create_database, delete_rows

NEVER, AT_ONCE, LATER = None, 1e-6, 1000.0
PICK = st.integers(0, 9)
WORKERS = st.sampled_from([None, "w1", "w2"])
KEYS = st.sampled_from([None, None, "k1", "k2"])
METADATA = st.sampled_from([None, {}, {"a": 1}])
CONFIGS = st.builds(
    RolloutConfig,
    timeout_seconds=st.sampled_from([NEVER, NEVER, AT_ONCE, LATER]),
    unresponsive_seconds=st.sampled_from([NEVER, AT_ONCE, LATER]),
    max_attempts=st.integers(1, 3),
    retry_condition=st.lists(st.sampled_from(["agent_error", "timeout", "unresponsive"]), unique=True),
    backoff_seconds=st.sampled_from([0.0, 0.0, 0.0, LATER]),
)

REWARD = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 0.5}
STATUSES = [*AttemptStatus, AttemptStatus.SUCCEEDED, AttemptStatus.FAILED]


@dataclass
class Side:
    """One of the two stores, and what it handed out, in order."""

    kit: LightningKit
    rollouts: list[str] = field(default_factory=list)
    attempts: list[tuple[str, str]] = field(default_factory=list)
    resources: list[str] = field(default_factory=list)

    @property
    def store(self) -> Any:
        return self.kit.store

    def rollout(self, number: int) -> str:
        """Any of its rollouts, the newest ones most often; rarely one that is not there."""
        return self.rollouts[-1 - number] if number < len(self.rollouts) else "ro-unknown"

    def attempt(self, number: int) -> tuple[str, str]:
        """Any of its attempts."""
        return self.attempts[-1 - number] if number < len(self.attempts) else (self.rollout(0), "at-unknown")

    def learn(self, answer: Any) -> None:
        """Remember the ids of what it handed out."""
        for item in answer if isinstance(answer, list | PaginatedResult) else [answer]:
            if (rollout_id := getattr(item, "rollout_id", None)) and rollout_id not in self.rollouts:
                self.rollouts.append(rollout_id)
            attempt = getattr(item, "attempt", None)
            if attempt and (attempt.rollout_id, attempt.attempt_id) not in self.attempts:
                self.attempts.append((attempt.rollout_id, attempt.attempt_id))
            resources_id = getattr(item, "resources_id", None)
            if resources_id and resources_id not in self.resources:
                self.resources.append(resources_id)

    def plain(self, value: Any) -> Any:
        """An answer without what differs between stores: ids become their order, times whether they are there."""
        if isinstance(value, BaseModel):
            return self.plain(value.model_dump(mode="json"))
        if isinstance(value, PaginatedResult):
            return [self.plain(value.items), value.limit, value.offset, value.total]
        if isinstance(value, dict):
            return {key: item is not None if key.endswith("_time") else self.plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.plain(item) for item in value]
        return self._order(value) if isinstance(value, str) else value

    def _order(self, text: str) -> Any:
        known = [self.rollouts, [attempt for _, attempt in self.attempts], self.resources]
        return next((ids.index(text) for ids in known if text in ids), text)


class LightningMachine(RuleBasedStateMachine):
    """Does the same to both."""

    runner: asyncio.Runner
    database: Database
    kit: PostgresLightningKit

    @initialize()
    def begin(self) -> None:
        self.run(self._empty())
        self.sides = [Side(MemoryLightningKit()), Side(self.kit)]

    async def _empty(self) -> None:
        async with self.database.pool.acquire() as connection:
            await delete_rows(connection)

    def run(self, work: Awaitable[Any]) -> Any:
        async def it() -> Any:
            return await work

        return self.runner.run(it())

    def both(self, act: Callable[[Side], Awaitable[Any]]) -> None:
        """Do it to both; their answers, or the types of their errors, must be alike."""

        async def one(side: Side) -> Any:
            try:
                answer = await act(side)
            except (RelightError, TypeError) as error:
                return type(error)
            side.learn(answer)
            return side.plain(answer)

        twin, real = (self.run(one(side)) for side in self.sides)
        assert real == twin, f"Postgres says {real}, its twin {twin}"

    @rule(mode=st.sampled_from([None, "train", "val"]), config=CONFIGS, metadata=METADATA, key=KEYS)
    def enqueues(self, mode: Any, config: RolloutConfig, metadata: Any, key: str | None) -> None:
        self.both(lambda side: side.store.enqueue_rollout("x", mode, None, config, metadata, idempotency_key=key))

    @rule(configs=st.lists(CONFIGS, max_size=3), unknown=st.sampled_from([False, False, False, True]))
    def enqueues_many(self, configs: list[RolloutConfig], unknown: bool) -> None:
        requests = [EnqueueRolloutRequest(input=number, config=config) for number, config in enumerate(configs)]
        if unknown:
            requests.append(EnqueueRolloutRequest(input="y", resources_id="rs-unknown"))
        self.both(lambda side: side.store.enqueue_many_rollouts(requests))

    @rule(config=CONFIGS, worker=WORKERS, key=KEYS)
    def starts(self, config: RolloutConfig, worker: str | None, key: str | None) -> None:
        self.both(lambda side: side.store.start_rollout("x", config=config, worker_id=worker, idempotency_key=key))

    @rule(limit=st.integers(0, 3), worker=WORKERS, key=KEYS)
    def dequeues(self, limit: int, worker: str | None, key: str | None) -> None:
        self.both(lambda side: side.store.dequeue_many_rollouts(limit, worker, idempotency_key=key))

    @rule(worker=WORKERS)
    def dequeues_one(self, worker: str | None) -> None:
        self.both(lambda side: side.store.dequeue_rollout(worker))

    @rule(number=PICK, worker=WORKERS)
    def starts_an_attempt(self, number: int, worker: str | None) -> None:
        self.both(lambda side: side.store.start_attempt(side.rollout(number), worker))

    @rule(number=PICK, status=st.sampled_from(STATUSES), latest=st.booleans())
    def gives_an_attempt_a_status(self, number: int, status: AttemptStatus, latest: bool) -> None:
        async def act(side: Side) -> Any:
            rollout_id, attempt_id = side.attempt(number)
            return await side.store.update_attempt(rollout_id, "latest" if latest else attempt_id, status=status)

        self.both(act)

    @rule(
        number=PICK,
        changes=st.fixed_dictionaries(
            {},
            optional={
                "worker_id": st.sampled_from(["w1", "w3"]),
                "metadata": METADATA,
                "status": st.sampled_from(STATUSES),
            },
        ),
        beat=st.sampled_from([None, -2 * LATER, 2 * LATER]),
    )
    def changes_an_attempt(self, number: int, changes: dict[str, Any], beat: float | None) -> None:
        given = changes | ({} if beat is None else {"last_heartbeat_time": round(time.time() + beat, 3)})
        self.both(lambda side: side.store.update_attempt(*side.attempt(number), **given))

    @rule(number=PICK, status=st.sampled_from([*RolloutStatus]))
    def gives_a_rollout_a_status(self, number: int, status: RolloutStatus) -> None:
        self.both(lambda side: side.store.update_rollout(side.rollout(number), status=status))

    @rule(
        number=PICK,
        changes=st.fixed_dictionaries(
            {},
            optional={
                "input": st.sampled_from([None, 1, {"q": "é"}]),
                "mode": st.sampled_from([None, "test"]),
                "resources_id": st.none(),
                "metadata": METADATA,
                "config": CONFIGS,
            },
        ),
    )
    def changes_a_rollout(self, number: int, changes: dict[str, Any]) -> None:
        self.both(lambda side: side.store.update_rollout(side.rollout(number), **changes))

    @rule(
        number=PICK,
        spans=st.lists(st.tuples(st.sampled_from("abc"), st.integers(-1, 6), st.booleans()), min_size=1, max_size=4),
        stray=st.sampled_from([False, False, False, False, True]),
    )
    def adds_spans(self, number: int, spans: list[tuple[str, int, bool]], stray: bool) -> None:
        async def act(side: Side) -> Any:
            attempts = [side.attempt(number)] * len(spans) + ([("ro-unknown", "at-unknown")] if stray else [])
            given = [*spans, ("z", 1, False)][: len(attempts)]
            return await side.store.add_many_spans(
                [_span(ids, *values) for ids, values in zip(attempts, given, strict=True)]
            )

        self.both(act)

    @rule(numbers=st.lists(PICK, max_size=4))
    def takes_numbers(self, numbers: list[int]) -> None:
        self.both(lambda side: side.store.get_many_span_sequence_ids([side.attempt(number) for number in numbers]))

    @rule(number=PICK)
    def cancels(self, number: int) -> None:
        self.both(lambda side: side.store.cancel_rollout(side.rollout(number)))

    @rule(number=PICK)
    def deletes(self, number: int) -> None:
        self.both(lambda side: side.store.delete_rollout(side.rollout(number)))

    @rule()
    def sweeps(self) -> None:
        before = self.requeued()
        for side in self.sides:
            self.run(side.kit.sweep())
        for number in sorted(self.requeued() - before)[1:]:  # in which order one look queues them is open
            self.both(lambda side, n=number: side.store.update_rollout(side.rollouts[n], status=RolloutStatus.FAILED))

    def requeued(self) -> set[int]:
        """Which rollouts wait for another try."""
        found = self.run(self.sides[0].store.query_rollouts(status_in=[RolloutStatus.REQUEUING]))
        return {self.sides[0].rollouts.index(rollout.rollout_id) for rollout in found}

    @rule(worker=st.sampled_from(["w1", "w4"]), stats=st.sampled_from([None, {}, {"cpu": 0.5}]))
    def a_worker_beats(self, worker: str, stats: Any) -> None:
        self.both(lambda side: side.store.update_worker(worker, stats))

    @rule(number=st.integers(0, 3), template=st.sampled_from("pq"))
    def resources_change(self, number: int, template: str) -> None:
        async def act(side: Side) -> Any:
            if number < len(side.resources):
                return await side.store.update_resources(side.resources[number], prompts(template))
            return await side.store.add_resources(prompts(template))

        self.both(act)

    @rule(
        filters=st.fixed_dictionaries(
            {"filter_logic": st.sampled_from(["and", "or"])},
            optional={
                "status_in": st.lists(st.sampled_from([*RolloutStatus]), unique=True),
                "mode": st.sampled_from(["train", "val", "test"]),
                "failure_class": st.sampled_from(["agent_error", "timeout", "cancelled"]),
                "reward_min": st.sampled_from([0.25, 0.75]),
                "reward_max": st.sampled_from([0.25, 0.75]),
                "limit": st.integers(-1, 3),
                "offset": st.integers(0, 3),
                "sort_by": st.sampled_from(["start_time", "mode", "reward", "failure_class", "colour"]),
                "sort_order": st.sampled_from(["asc", "desc"]),
            },
        ),
        numbers=st.none() | st.lists(PICK, max_size=3),
    )
    def asks_for_rollouts(self, filters: dict[str, Any], numbers: list[int] | None) -> None:
        async def act(side: Side) -> Any:
            ids = None if numbers is None else [side.rollout(number) for number in numbers]
            return await side.store.query_rollouts(rollout_id_in=ids, **filters)

        self.both(act)

    @rule(number=PICK, attempt=st.sampled_from([None, "latest", "its"]), name=st.sampled_from([None, "a", "b"]))
    def asks_for_spans(self, number: int, attempt: str | None, name: str | None) -> None:
        async def act(side: Side) -> Any:
            rollout_id, attempt_id = side.attempt(number)
            wanted = attempt_id if attempt == "its" else attempt
            query = side.store.query_spans
            found = await query(rollout_id, wanted, name=name, span_id_contains="b", filter_logic="or")
            return _sorted(side.plain(found.items)), found.total

        self.both(act)

    @rule(numbers=st.lists(PICK, max_size=4))
    def waits_no_time(self, numbers: list[int]) -> None:
        async def act(side: Side) -> Any:
            ids = [side.rollout(number) for number in numbers]
            found = await side.store.wait_for_rollouts(rollout_ids=ids, timeout=0)
            return sorted((rollout.rollout_id for rollout in found), key=side.rollouts.index)

        self.both(act)

    @invariant()
    def both_hold_the_same(self) -> None:
        if not hasattr(self, "sides"):
            return
        twin, real = (self.run(self._snapshot(side)) for side in self.sides)
        for name, rows in twin.items():
            assert real[name] == rows, f"{name}: Postgres has {real[name]}, its twin {rows}"
        for rollout, attempts in zip(twin["rollouts"], twin["attempts"], strict=True):
            self._check(rollout, attempts)

    async def _snapshot(self, side: Side) -> dict[str, Any]:
        rollouts = await side.store.query_rollouts()
        ids = [rollout.rollout_id for rollout in rollouts]
        statistics = await side.store.statistics()
        everything = {
            "rollouts": rollouts.items,
            "attempts": [(await side.store.query_attempts(rollout_id)).items for rollout_id in ids],
            "spans": [_sorted(side.plain((await side.store.query_spans(rollout_id)).items)) for rollout_id in ids],
            "resources": (await side.store.query_resources(sort_by="resources_id")).total,
            "latest": await side.store.get_latest_resources(),
            "workers": (await side.store.query_workers(sort_by="worker_id")).items,
            "statistics": {key: value for key, value in statistics.items() if key.startswith("total_")},
        }
        return side.plain(everything)

    def _check(self, rollout: dict[str, Any], attempts: list[dict[str, Any]]) -> None:
        """What holds whatever happened."""
        assert (rollout["status"] in ENDED) == rollout["end_time"]
        assert [attempt["sequence_id"] for attempt in attempts] == list(range(1, len(attempts) + 1))
        assert all(attempt["end_time"] for attempt in attempts[:-1])
        for attempt in attempts:
            assert (attempt["status"] in ("preparing", "running")) != attempt["end_time"]


def _sorted(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Two attempts may have spans of one id and number: the order of those is open."""
    return sorted(spans, key=lambda span: (span["sequence_id"], span["span_id"], span["attempt_id"]))


def _span(ids: tuple[str, str], name: str, sequence_id: int, rewarded: bool) -> Any:
    fields: dict[str, Any] = {"name": "agentlightning.annotation", "attributes": REWARD} if rewarded else {"name": name}
    attempt = Attempt(rollout_id=ids[0], attempt_id=ids[1], sequence_id=1, start_time=0.0)
    return span_of(attempt, name, sequence_id, **fields)


@pytest.fixture
def machine(postgres_url: str) -> Any:
    with asyncio.Runner() as runner:
        url = runner.run(create_database(postgres_url))
        database = runner.run(Database.connect(url, max_size=3))
        store = runner.run(PostgresLightningStore.create(database))
        kit = PostgresLightningKit(database, store, url)
        yield type("Machine", (LightningMachine,), {"runner": runner, "database": database, "kit": kit})
        runner.run(store.aclose())
        runner.run(database.close())


@pytest.mark.hypothesis
def test_postgres_and_the_memory_store_agree_on_any_sequence_of_calls(machine: Any) -> None:
    limits = settings(
        max_examples=examples(30),
        stateful_step_count=40,
        phases=(Phase.explicit, Phase.generate),  # shrinking takes minutes; the steps are printed as they were
        report_multiple_bugs=False,
        suppress_health_check=list[Any](HealthCheck),
    )
    run_state_machine_as_test(machine, settings=limits)
