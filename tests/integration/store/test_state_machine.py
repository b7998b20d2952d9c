"""Opens, finishes, deaths, fences, calls and spans in any order: Postgres answers like the twin, and the rules hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from relight.errors import RelightError
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.types.rollout import FailureClass
from relight.types.wire import DeliveryMark, OpenedAttempt, ResolveRequest
from tests.support.examples import examples
from tests.support.postgres import create_database
from tests.support.store_kit import (
    AttemptState,
    MemoryKit,
    PostgresKit,
    RolloutState,
    StoreKit,
    call,
    failure,
    finish,
    open_,
    span,
)

TRIES = st.sampled_from([1, 1, 1, 2, 2, 3])
EXECUTIONS = st.sampled_from(["x1", "x2", "x3"])
PICK = st.integers(0, 20)
CALLS = st.integers(1, 3)
HASHES = st.sampled_from(["a", "b"])
PROMPTS = st.sampled_from([[1], [1], None])
DELIVERED = st.sampled_from(["unknown", "unknown", "unknown", "yes"])
CLASSES = st.sampled_from([None, None, None, *[FailureClass.AGENT_ERROR] * 3, *FailureClass])
RETRIES = st.sampled_from([[], ["agent_error"], ["agent_error", "engine_error", "timeout"], ["no_reward"]])
SNAPSHOT = """
select (select array[status, failure_class, reward::text, deaths::text, attempts::text]
        from rollouts where rollout_id = $1),
       (select json_agg(json_build_array(status, failure_class, reward, ended_at is not null, spans_dropped)
                        order by sequence_id)
        from attempts where rollout_id = $1),
       (select json_agg(json_build_array(sequence_id, attempt_id, span_id) order by sequence_id)
        from spans where rollout_id = $1),
       (select json_agg(json_build_array(attempt_id, call_number, delivered) order by created_at, call_number)
        from generations where rollout_id = $1)
"""


@dataclass
class Side:
    """One of the two stores, and the attempts that it handed out, by their order."""

    kit: StoreKit
    rollout_id: str = ""
    attempts: list[OpenedAttempt] = field(default_factory=list)

    def number(self, attempt_id: str) -> int:
        """Ids differ between the stores; the order in which they were made does not."""
        return [attempt.attempt_id for attempt in self.attempts].index(attempt_id)


class StoreMachine(RuleBasedStateMachine):
    """Does the same to both, one rollout an example."""

    runner: asyncio.Runner
    database: Database
    store: PostgresStore
    lives = 0
    ended = False

    @initialize(max_attempts=st.integers(1, 3), retry=RETRIES)
    def begin(self, max_attempts: int, retry: list[str]) -> None:
        type(self).lives += 1
        self.sides = [Side(MemoryKit()), Side(PostgresKit(self.database, self.store))]
        self.run(self._begin(max_attempts, retry))
        self.opens(1, "x1")

    @precondition(lambda self: self.ended)
    @rule(max_attempts=st.integers(1, 3), retry=RETRIES)
    def a_new_rollout_begins(self, max_attempts: int, retry: list[str]) -> None:
        self.begin(max_attempts, retry)

    async def _begin(self, max_attempts: int, retry: list[str]) -> None:
        await self.sides[0].kit.start()
        await self.sides[1].kit.set_run()
        for side in self.sides:
            side.rollout_id = f"r{self.lives}"
            await side.kit.add_rollout(side.rollout_id, max_attempts=max_attempts, retry_condition=retry)

    def run(self, work: Awaitable[Any]) -> Any:
        async def it() -> Any:
            return await work

        return self.runner.run(it())

    def both(self, act: Any) -> None:
        """Do `act(side)` to both; their answers, or the types of their errors, must be equal."""

        async def one(side: Side) -> Any:
            try:
                return await act(side)
            except RelightError as error:
                return type(error)

        twin, real = (self.run(one(side)) for side in self.sides)
        assert real == twin

    def pick(self, side: Side, number: int) -> OpenedAttempt | None:
        """The newest, most of the time."""
        if number > 3:
            return side.attempts[-1] if side.attempts else None
        return side.attempts[number % len(side.attempts)] if side.attempts else None

    @rule(try_number=TRIES, execution=EXECUTIONS)
    def opens(self, try_number: int, execution: str) -> None:
        async def act(side: Side) -> Any:
            answer = await open_(side.kit, side.rollout_id, try_number, execution)
            if answer.attempt and answer.attempt not in side.attempts:
                assert all(answer.attempt.fence > older.fence for older in side.attempts)
                side.attempts.append(answer.attempt)
            attempt = answer.attempt and (side.number(answer.attempt.attempt_id), answer.attempt.alone)
            outcome = answer.outcome and answer.outcome.model_dump(exclude={"attempt_id"})
            return answer.state, answer.reason, attempt, outcome

        self.both(act)

    @rule(
        number=PICK,
        failure_class=CLASSES,
        reward=st.sampled_from([None, 0.5, float("nan")]),
        wrong=st.booleans(),
        died=st.booleans(),
    )
    def finishes(
        self, number: int, failure_class: FailureClass | None, reward: float | None, wrong: bool, died: bool
    ) -> None:
        async def act(side: Side) -> Any:
            if attempt := self.pick(side, number):
                fence = attempt.fence + (1_000_000 if wrong and number % 5 == 4 else 0)
                end = {"failure_class": failure_class, "reward": reward, "died": died}
                outcome = await finish(side.kit, attempt, **end, fence=fence, spans=[span("end")])
                return outcome.model_dump(exclude={"attempt_id"})
            return None

        self.both(act)

    @rule(
        number=PICK,
        call_number=CALLS,
        request_hash=HASHES,
        prompt=PROMPTS,
        delivered=DELIVERED,
    )
    def commits(
        self, number: int, call_number: int, request_hash: str, prompt: list[int] | None, delivered: str
    ) -> None:
        async def act(side: Side) -> Any:
            if attempt := self.pick(side, number):
                record = call(attempt, call_number, request_hash, prompt_token_ids=prompt, delivered=delivered)
                return await side.kit.store.commit_generations([record])
            return None

        self.both(act)

    @rule(number=PICK, call_number=CALLS, request_hash=HASHES)
    def fails_a_call(self, number: int, call_number: int, request_hash: str) -> None:
        async def act(side: Side) -> Any:
            if attempt := self.pick(side, number):
                await side.kit.store.record_call_failures([failure(attempt, call_number, request_hash)])

        self.both(act)

    @rule(number=PICK, call_number=CALLS, delivered=st.sampled_from(["yes", "no"]))
    def marks(self, number: int, call_number: int, delivered: Literal["yes", "no"]) -> None:
        async def act(side: Side) -> Any:
            if attempt := self.pick(side, number):
                mark = DeliveryMark(
                    rollout_id=side.rollout_id,
                    attempt_id=attempt.attempt_id,
                    call_number=call_number,
                    delivered=delivered,
                )
                await side.kit.store.mark_delivered([mark])

        self.both(act)

    @rule(number=PICK, ids=st.lists(st.sampled_from(["s1", "s2", "s3"]), min_size=1, max_size=3), fenced=st.booleans())
    def adds_spans(self, number: int, ids: list[str], fenced: bool) -> None:
        async def act(side: Side) -> Any:
            if attempt := self.pick(side, number):
                fence = attempt.fence if fenced else None
                spans = [span(id_) for id_ in ids]
                return await side.kit.store.add_spans(side.rollout_id, attempt.attempt_id, fence, spans)
            return None

        self.both(act)

    @rule(number=PICK)
    def beats_and_resolves(self, number: int) -> None:
        async def beat(side: Side) -> Any:
            if attempt := self.pick(side, number):
                await side.kit.store.heartbeat(attempt.attempt_id, attempt.fence, "runner")

        async def resolve(side: Side) -> Any:
            if attempt := self.pick(side, number):
                request = ResolveRequest(rollout_id=side.rollout_id, attempt_id=attempt.attempt_id, token=attempt.token)
                context = await side.kit.store.resolve(request)
                return context.next_call_number, context.undelivered, context.seed_base.rsplit("/", 1)[1]
            return None

        self.both(beat)
        self.both(resolve)

    @rule(paused=st.booleans(), status=st.sampled_from(["running", "running", "interrupted"]), execution=EXECUTIONS)
    def is_asked_while_the_run_changes(self, paused: bool, status: str, execution: str) -> None:
        self.both(lambda side: side.kit.set_run(paused=paused, status=status))
        self.opens(1, execution)
        self.both(lambda side: side.kit.set_run())

    @rule(chance=st.integers(0, 19))
    def cancels_or_closes(self, chance: int) -> None:
        if chance == 11:
            self.both(lambda side: self._cancel(side))
        elif chance == 7:
            self.both(lambda side: side.kit.close(side.rollout_id))

    async def _cancel(self, side: Side) -> None:
        state = await side.kit.rollout(side.rollout_id)
        if state.status not in ("succeeded", "failed", "cancelled"):
            await side.kit.cancel(side.rollout_id)

    @invariant()
    def the_rules_hold(self) -> None:
        if hasattr(self, "sides"):
            twin, real = (self.run(self._snapshot(side)) for side in self.sides)
            assert real == twin
            self._check(*real[:2])
            self.ended = real[0].status in ("succeeded", "failed", "cancelled")

    async def _snapshot(self, side: Side) -> Any:
        if isinstance(side.kit, PostgresKit):
            row = await self.database.pool.fetchrow(SNAPSHOT, side.rollout_id)
            status, failure_class, reward, deaths, made = row[0]
            rollout = RolloutState(status, failure_class, reward and float(reward), int(deaths), int(made))
            attempts, spans, calls = [AttemptState(*values) for values in row[1] or []], row[2] or [], row[3] or []
        else:
            rollout, attempts = await side.kit.rollout(side.rollout_id), await side.kit.attempts(side.rollout_id)
            spans, calls = await side.kit.spans(side.rollout_id), []
            for attempt in side.attempts:
                found = await side.kit.deliveries(attempt.attempt_id)
                calls += [(attempt.attempt_id, number, delivered) for number, delivered in found.items()]
        spans = [(number, side.number(attempt), span_id) for number, attempt, span_id in spans]
        return rollout, attempts, spans, sorted((side.number(id_), number, state) for id_, number, state in calls)

    def _check(self, rollout: Any, attempts: list[Any]) -> None:
        assert sum(not attempt.ended for attempt in attempts) <= 1
        assert all(attempt.ended for attempt in attempts[:-1])
        assert sum(attempt.status == "succeeded" for attempt in attempts) <= 1
        assert rollout.deaths <= sum(attempt.failure_class == "infrastructure" for attempt in attempts)
        if rollout.status == "succeeded":
            assert attempts[-1].status == "succeeded"
            assert attempts[-1].reward == rollout.reward


@pytest.fixture
def machine(postgres_url: str) -> Any:
    with asyncio.Runner() as runner:
        url = runner.run(create_database(postgres_url))
        database = runner.run(Database.connect(url, max_size=1))
        store = runner.run(PostgresStore.create(database, "http://gateway"))
        runner.run(PostgresKit(database, store).start())
        yield type("Machine", (StoreMachine,), {"runner": runner, "database": database, "store": store})
        runner.run(database.close())


@pytest.mark.hypothesis
def test_postgres_and_the_memory_store_agree_on_any_sequence_of_calls(machine: Any) -> None:
    limits = settings(
        max_examples=examples(40),
        stateful_step_count=50,
        suppress_health_check=list[Any](HealthCheck),
    )
    run_state_machine_as_test(machine, settings=limits)
