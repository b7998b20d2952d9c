"""One set of tables in memory behind both protocols: what is written by one is read, and moved on, by the other."""

from __future__ import annotations

import asyncio

import pytest

from relight.errors import ConflictError
from relight.store.attempts.attempt_tokens import attempt_token, token_hash
from relight.store.memory.attempts import MemoryAttemptStore
from relight.store.memory.lightning import InMemoryLightningStore
from relight.store.memory.tables import Tables
from relight.types.resources import PromptTemplate
from relight.types.rollout import FailureClass, RolloutConfig
from relight.types.store import Dispatch
from relight.types.wire import FinishRequest, OpenedAttempt, OpenRequest, ResolveRequest, WorkerReport
from tests.support.lightning_kit import claimed, newest, retrying, rollout_of, span_of
from tests.support.store_kit import call, span

WORKFLOW = Dispatch(by="workflow", agent="a")


@pytest.fixture
def outside() -> InMemoryLightningStore:
    """0.3's protocol."""
    return InMemoryLightningStore(Tables())


@pytest.fixture
def inside(outside: InMemoryLightningStore) -> MemoryAttemptStore:
    """That of runners and the gateway, over the same tables."""
    return MemoryAttemptStore("http://gateway", outside.tables)


async def opened(store: MemoryAttemptStore, rollout_id: str, try_number: int = 1) -> OpenedAttempt:
    """An attempt that a runner opens."""
    request = OpenRequest(rollout_id=rollout_id, try_number=try_number, execution="x", worker_id="runner-1")
    attempt = (await store.open_attempt(request)).attempt
    assert attempt is not None
    return attempt


async def finish(store: MemoryAttemptStore, attempt: OpenedAttempt, **fields: object) -> None:
    """Its end, as a runner reports it."""
    values = {"attempt_id": attempt.attempt_id, "fence": attempt.fence} | fields
    await store.finish_attempt(FinishRequest.model_validate(values))


async def test_what_was_enqueued_for_a_workflow_is_opened_finished_and_waited_for(
    outside: InMemoryLightningStore, inside: MemoryAttemptStore
) -> None:
    resources = await outside.add_resources({"prompt": PromptTemplate(template="{x}?")})
    made = await outside.enqueue_rollout(
        {"x": 1}, "val", metadata={"a": 1}, dispatch=Dispatch(by="workflow", agent="a")
    )
    assert await outside.dequeue_rollout() is None
    attempt = await opened(inside, made.rollout_id)
    assert (attempt.input, attempt.mode, attempt.metadata) == ({"x": 1}, "val", {"a": 1})
    assert (attempt.resources_id, attempt.resources) == (resources.resources_id, resources.resources)
    waiting = asyncio.create_task(outside.wait_for_rollouts(rollout_ids=[made.rollout_id], timeout=30))
    await inside.add_spans(made.rollout_id, attempt.attempt_id, attempt.fence, [span()])
    assert (await rollout_of(outside, made.rollout_id)).status == "running"
    await finish(inside, attempt, reward=0.5)
    (ended,) = await waiting
    assert (ended.status, ended.reward) == ("succeeded", 0.5)
    assert (await newest(outside, made.rollout_id)).worker_id == "runner-1"


async def test_both_give_spans_numbers_of_one_sequence(
    outside: InMemoryLightningStore, inside: MemoryAttemptStore
) -> None:
    made = await outside.enqueue_rollout("x", dispatch=WORKFLOW)
    attempt = await opened(inside, made.rollout_id)
    await inside.add_spans(made.rollout_id, attempt.attempt_id, attempt.fence, [span("first"), span("first")])
    assert await outside.get_next_span_sequence_id(made.rollout_id, attempt.attempt_id) == 2
    shown = await newest(outside, made.rollout_id)
    await outside.add_span(span_of(shown, "second", 2))
    assert (
        await inside.add_spans(made.rollout_id, attempt.attempt_id, attempt.fence, [span("second"), span("third")]) == 1
    )
    spans = await outside.query_spans(made.rollout_id)
    assert [(one.span_id, one.sequence_id) for one in spans] == [("first", 1), ("second", 2), ("third", 3)]


async def test_a_claimed_attempts_token_serves_its_model_calls(
    outside: InMemoryLightningStore, inside: MemoryAttemptStore
) -> None:
    await outside.enqueue_rollout("x")
    rollout = await claimed(outside, "w")
    token = attempt_token(outside.tables.key, rollout.attempt.attempt_id)
    context = await inside.resolve(
        ResolveRequest(rollout_id=rollout.rollout_id, attempt_id=rollout.attempt.attempt_id, token=token)
    )
    assert (context.run, context.next_call_number) == (None, 1)
    row = inside.attempt(rollout.attempt.attempt_id)
    record = call(OpenedAttempt.model_construct(rollout_id=row.rollout_id, attempt_id=row.attempt_id, token=token))
    assert record.token_hash == row.token_hash == token_hash(token)
    (result,) = await inside.commit_generations([record])
    assert result.state == "committed"
    assert (await newest(outside, rollout.rollout_id)).status == "running"


async def test_a_retry_goes_back_to_the_queue_whichever_protocol_ends_the_try(
    outside: InMemoryLightningStore, inside: MemoryAttemptStore
) -> None:
    made = await outside.enqueue_rollout("x", config=retrying("failed", tries=2))
    await finish(inside, await opened(inside, made.rollout_id), failure_class=FailureClass.AGENT_ERROR)
    again = await claimed(outside, "w")
    assert (again.rollout_id, again.attempt.sequence_id) == (made.rollout_id, 2)
    await outside.update_attempt(made.rollout_id, "latest", status="failed")  # type: ignore[arg-type]
    ended = await rollout_of(outside, made.rollout_id)
    assert (ended.status, ended.failure_class) == ("failed", "agent_error")
    request = OpenRequest(rollout_id=made.rollout_id, try_number=2, execution="x", worker_id="runner-1")
    assert (await inside.open_attempt(request)).state == "finished"


async def test_a_newer_attempt_of_either_fences_off_the_older(
    outside: InMemoryLightningStore, inside: MemoryAttemptStore
) -> None:
    made = await outside.enqueue_rollout("x", config=RolloutConfig())
    first = await opened(inside, made.rollout_id)
    await outside.start_attempt(made.rollout_id)
    with pytest.raises(ConflictError):
        await finish(inside, first, reward=1.0)
    statuses = [attempt.status for attempt in await outside.query_attempts(made.rollout_id)]
    assert statuses == ["failed", "preparing"]


async def test_attempts_wait_until_each_policy_of_their_run_has_an_engine(
    outside: InMemoryLightningStore, inside: MemoryAttemptStore
) -> None:
    inside.add_engine("e1", run="demo")
    inside.add_engine("e2", run="demo", policy="second", state="starting")
    inside.add_rollout("r1", run="demo")
    queued = await outside.enqueue_rollout("x", run="demo")
    request = OpenRequest(rollout_id="r1", try_number=1, execution="x", worker_id="w")
    answer = await inside.open_attempt(request)
    assert (answer.state, answer.reason) == ("wait", "no engine is ready")
    assert await outside.dequeue_rollout() is None
    inside.add_engine("e2", run="demo", policy="second")
    assert (await inside.open_attempt(request)).state == "opened"
    assert (await claimed(outside)).rollout_id == queued.rollout_id


async def test_a_planned_rollout_and_a_runners_report_are_seen_from_outside(
    outside: InMemoryLightningStore, inside: MemoryAttemptStore
) -> None:
    inside.add_rollout("r1", run="demo", step=3, resources={"prompt": PromptTemplate(template="{x}")})
    await inside.register_worker(WorkerReport(worker_id="runner-1", kind="runner", host="h", serves=["a"]))
    (found,) = await outside.query_rollouts(run="demo", step=3)
    assert found.rollout_id == "r1"
    worker = await outside.get_worker_by_id("runner-1")
    assert worker is not None
    assert (worker.kind, worker.serves) == ("runner", ["a"])
    with pytest.raises(ConflictError):
        await outside.start_attempt("r1")


async def test_what_an_agent_raised_is_kept_with_its_attempt(
    outside: InMemoryLightningStore, inside: MemoryAttemptStore
) -> None:
    made = await outside.enqueue_rollout("7*8?", dispatch=WORKFLOW)
    attempt = await opened(inside, made.rollout_id)
    error = {"type": "KeyError", "message": "3", "traceback": ""}
    end = {"error": error}
    await finish(inside, attempt, failure_class=FailureClass.AGENT_ERROR, message="KeyError: 3", end=end)
    ended = await outside.get_latest_attempt(made.rollout_id)
    assert ended is not None
    assert ended.error == error
