"""Spans and the numbers that put them in order."""

from __future__ import annotations

import asyncio

import pytest

from relight.errors import NotFoundError
from relight.store.base import LightningStore
from relight.types.rollout import AttemptStatus, RolloutStatus
from tests.support.lightning_kit import begin, claimed, newest, rollout_of, running, span_of


async def test_numbers_count_from_one_and_attempts_share_them(store: LightningStore) -> None:
    """Invariant 27."""
    first = await begin(store)
    ids = (first.rollout_id, first.attempt.attempt_id)
    assert [await store.get_next_span_sequence_id(*ids) for _ in range(3)] == [1, 2, 3]
    second = await store.start_attempt(first.rollout_id)
    assert await store.get_next_span_sequence_id(first.rollout_id, second.attempt.attempt_id) == 4
    assert await store.get_next_span_sequence_id(*ids) == 5


async def test_unknown_attempts_get_no_numbers(store: LightningStore) -> None:
    """Invariant 27."""
    rollout = await begin(store)
    with pytest.raises(NotFoundError):
        await store.get_next_span_sequence_id("ro-unknown", "at-unknown")
    with pytest.raises(NotFoundError):
        await store.get_many_span_sequence_ids(
            [(rollout.rollout_id, rollout.attempt.attempt_id), (rollout.rollout_id, "at-unknown")]
        )
    assert await store.get_next_span_sequence_id(rollout.rollout_id, rollout.attempt.attempt_id) == 1


async def test_numbers_of_a_mixed_batch_come_in_its_order(store: LightningStore) -> None:
    """Invariant 28."""
    a, b = await begin(store), await begin(store)
    ids_a, ids_b = (a.rollout_id, a.attempt.attempt_id), (b.rollout_id, b.attempt.attempt_id)
    assert await store.get_many_span_sequence_ids([ids_a, ids_b, ids_a, ids_a, ids_b]) == [1, 1, 2, 3, 2]
    assert await store.get_many_span_sequence_ids([]) == []
    assert await store.get_next_span_sequence_id(*ids_b) == 3


async def test_a_given_number_raises_the_counter(store: LightningStore) -> None:
    """Invariant 29."""
    rollout = await begin(store)
    ids = (rollout.rollout_id, rollout.attempt.attempt_id)
    await store.add_span(span_of(rollout, "a", 100))
    assert await store.get_next_span_sequence_id(*ids) == 101
    await store.add_span(span_of(rollout, "b", 7))
    assert await store.get_next_span_sequence_id(*ids) == 102
    await store.add_many_spans([span_of(rollout, "c", 200), span_of(rollout, "d", 150)])
    assert await store.get_next_span_sequence_id(*ids) == 201


async def test_thirty_spans_at_once_get_one_to_thirty(store: LightningStore) -> None:
    """Invariant 30."""
    rollout = await begin(store)
    ids = (rollout.rollout_id, rollout.attempt.attempt_id)

    async def add(number: int) -> None:
        sequence_id = await store.get_next_span_sequence_id(*ids)
        assert await store.add_span(span_of(rollout, f"s{number}", sequence_id))

    await asyncio.gather(*[add(number) for number in range(30)])
    spans = await store.query_spans(rollout.rollout_id)
    assert [span.sequence_id for span in spans] == list(range(1, 31))
    assert len({span.span_id for span in spans}) == 30


async def test_several_spans_may_share_a_number(store: LightningStore) -> None:
    """Invariant 29."""
    rollout = await begin(store)
    stored = await store.add_many_spans([span_of(rollout, name, 3) for name in ("a", "b", "c")])
    assert [span.sequence_id for span in stored] == [3, 3, 3]
    assert await store.get_next_span_sequence_id(rollout.rollout_id, rollout.attempt.attempt_id) == 4


async def test_a_duplicate_is_none_and_changes_nothing(store: LightningStore) -> None:
    """Invariant 31."""
    rollout = await begin(store)
    assert await store.add_span(span_of(rollout, "a", 1, name="first"))
    assert await store.add_span(span_of(rollout, "a", 2, name="second")) is None
    assert [span.name for span in await store.query_spans(rollout.rollout_id)] == ["first"]


async def test_attempts_may_use_the_same_span_id(store: LightningStore) -> None:
    """Invariant 31."""
    first = await begin(store)
    assert await store.add_span(span_of(first, "a", 1))
    second = await store.start_attempt(first.rollout_id)
    assert await store.add_span(span_of(second, "a", 2))
    assert len(await store.query_spans(first.rollout_id)) == 2


async def test_what_is_new_in_a_batch_with_duplicates_is_stored(store: LightningStore) -> None:
    """Invariant 32."""
    rollout = await begin(store)
    await store.add_span(span_of(rollout, "b", 2))
    batch = [span_of(rollout, name, number) for number, name in enumerate("abcac", 1)]
    stored = await store.add_many_spans(batch)
    assert [span.span_id for span in stored] == ["a", "c"]
    assert [span.span_id for span in await store.query_spans(rollout.rollout_id)] == ["a", "b", "c"]
    assert await store.add_many_spans(batch) == []
    assert await store.add_many_spans([]) == []


async def test_a_batch_may_span_several_rollouts(store: LightningStore) -> None:
    """Invariant 32."""
    a, b = await begin(store), await begin(store)
    stored = await store.add_many_spans([span_of(a, "a"), span_of(b, "a"), span_of(a, "b", 2)])
    assert [(span.rollout_id, span.span_id) for span in stored] == [
        (a.rollout_id, "a"),
        (b.rollout_id, "a"),
        (a.rollout_id, "b"),
    ]
    assert (await rollout_of(store, b.rollout_id)).status == "running"


async def test_a_batch_with_a_span_of_an_unknown_attempt_stores_nothing(store: LightningStore) -> None:
    """Invariants 32, 33."""
    rollout = await begin(store)
    unknown = span_of(rollout, "b", 2).model_copy(update={"attempt_id": "at-unknown"})
    with pytest.raises(NotFoundError):
        await store.add_many_spans([span_of(rollout, "a"), unknown, span_of(rollout, "c", 3)])
    assert list(await store.query_spans(rollout.rollout_id)) == []
    assert (await rollout_of(store, rollout.rollout_id)).status == "preparing"


async def test_a_number_below_zero_asks_for_the_next(store: LightningStore) -> None:
    """Invariant 29."""
    rollout = await begin(store)
    batch = [span_of(rollout, name, number) for name, number in (("a", -1), ("b", 5), ("c", -1), ("d", 2), ("e", -7))]
    stored = await store.add_many_spans(batch)
    assert [span.sequence_id for span in stored] == [1, 5, 6, 2, 7]


async def test_a_span_of_an_unknown_attempt_is_refused(store: LightningStore) -> None:
    """Invariant 33."""
    a, b = await begin(store), await begin(store)
    for update in (
        {"rollout_id": "ro-unknown"},
        {"attempt_id": "at-unknown"},
        {"attempt_id": b.attempt.attempt_id},
    ):
        with pytest.raises(NotFoundError) as caught:
            await store.add_span(span_of(a).model_copy(update=update))
        assert isinstance(caught.value, ValueError)


async def test_the_first_span_sets_the_attempt_running(store: LightningStore) -> None:
    """Invariant 34."""
    rollout = await begin(store)
    assert await store.add_span(span_of(rollout, "a"))
    attempt = await newest(store, rollout.rollout_id)
    assert attempt.status == "running"
    assert attempt.last_heartbeat_time is not None
    assert attempt.last_heartbeat_time >= rollout.attempt.start_time
    assert (await rollout_of(store, rollout.rollout_id)).status == "running"


async def test_each_span_extends_the_deadline(store: LightningStore) -> None:
    """Invariant 34."""
    rollout = await running(store)
    long_ago = rollout.attempt.start_time - 100
    attempt = await store.update_attempt(rollout.rollout_id, "latest", last_heartbeat_time=long_ago)
    assert attempt.last_heartbeat_time == pytest.approx(long_ago, abs=1e-3)
    await store.add_span(span_of(rollout, "b", 2))
    after = await newest(store, rollout.rollout_id)
    assert after.last_heartbeat_time is not None
    assert after.last_heartbeat_time >= rollout.attempt.start_time


async def test_heartbeats_and_metadata_do_not_overwrite_each_other(store: LightningStore) -> None:
    """Invariant 37."""
    rollout = await begin(store)
    ids = (rollout.rollout_id, rollout.attempt.attempt_id)
    spans = [store.add_span(span_of(rollout, f"s{number}", number)) for number in range(1, 11)]
    changes = [store.update_attempt(*ids, metadata={"n": number}) for number in range(5)]
    labels = [store.update_rollout(ids[0], metadata={"label": "kept"}) for _ in range(5)]
    await asyncio.gather(*spans, *changes, *labels)
    attempt = await newest(store, rollout.rollout_id)
    assert attempt.status == "running"
    assert attempt.metadata in [{"n": number} for number in range(5)]
    assert attempt.last_heartbeat_time is not None
    after = await rollout_of(store, rollout.rollout_id)
    assert (after.status, after.metadata) == ("running", {"label": "kept"})
    assert (await store.query_spans(rollout.rollout_id)).total == 10


async def test_spans_of_an_older_attempt_are_kept_and_move_nothing(store: LightningStore) -> None:
    """Invariant 38."""
    first = await running(store)
    await store.update_rollout(first.rollout_id, status=RolloutStatus.REQUEUING)
    second = await claimed(store)
    assert await store.add_span(span_of(first, "late", 9))
    rollout = await rollout_of(store, first.rollout_id)
    assert rollout.status == "preparing"
    assert await newest(store, first.rollout_id) == second.attempt
    assert [span.span_id for span in await store.query_spans(first.rollout_id)] == ["first", "late"]


async def test_a_span_comes_back_as_it_was_sent(store: LightningStore) -> None:
    """Invariant 31."""
    rollout = await begin(store)
    sent = span_of(
        rollout,
        "a",
        4,
        parent_id="p",
        name="openai.chat.completion",
        status={"status_code": "ERROR", "description": "bad"},
        attributes={"gen_ai.prompt": "hi", "n": 3, "f": 0.5, "list": ["a", "b"], "ok": True},
        events=[{"name": "e", "attributes": {"x": 1}, "timestamp": 1.5}],
        links=[{"context": {"trace_id": "t", "span_id": "s"}, "attributes": {}}],
        resource={"attributes": {"service.name": "x"}, "schema_url": ""},
        start_time=1700000000.25,
        end_time=1700000001.5,
    )
    stored = await store.add_span(sent)
    (read,) = await store.query_spans(rollout.rollout_id)
    for span in (stored, read):
        assert span is not None
        assert span.model_dump(exclude_none=True) == sent.model_dump(exclude_none=True)


async def test_the_last_reward_span_is_the_rollouts_reward(store: LightningStore) -> None:
    """Ours: rewards of rollouts from outside are read from their spans."""
    rollout = await begin(store)
    for number, value in enumerate((0.25, 0.75), 1):
        reward = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": value}
        await store.add_span(
            span_of(rollout, f"r{number}", number, name="agentlightning.annotation", attributes=reward)
        )
    await store.update_attempt(rollout.rollout_id, "latest", status=AttemptStatus.SUCCEEDED)
    assert (await rollout_of(store, rollout.rollout_id)).reward == 0.75
    assert (await newest(store, rollout.rollout_id)).reward == 0.75
    found = await store.query_rollouts(reward_min=0.5)
    assert [row.rollout_id for row in found] == [rollout.rollout_id]
    assert len(await store.query_rollouts(reward_max=0.5)) == 0


async def test_old_spans_are_not_dropped_for_new_ones(store: LightningStore) -> None:
    """Invariants 55, 56: nothing is evicted."""
    old = await running(store)
    new = await begin(store)
    await store.add_many_spans([span_of(new, f"s{n}", n, attributes={"text": "x" * 1000}) for n in range(1, 301)])
    assert [span.span_id for span in await store.query_spans(old.rollout_id)] == ["first"]
    assert "eviction_threshold_bytes" not in await store.statistics()


async def test_an_opentelemetry_span_is_converted(store: LightningStore) -> None:
    """Invariant 30."""
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    rollout = await begin(store)
    tracer = trace.TracerProvider().get_tracer("test")
    with tracer.start_as_current_span("outer") as outer, tracer.start_as_current_span("inner") as inner:
        inner.set_attribute("n", 1)
        inner.add_event("happened", {"why": "test"})
    for span in (outer, inner):
        assert await store.add_otel_span(rollout.rollout_id, rollout.attempt.attempt_id, span)
    assert await store.add_otel_span(rollout.rollout_id, rollout.attempt.attempt_id, inner) is None
    first, second = await store.query_spans(rollout.rollout_id)
    assert (first.name, second.name, second.parent_id) == ("outer", "inner", first.span_id)
    assert (first.sequence_id, second.sequence_id) == (1, 2)
    assert second.trace_id == format(inner.get_span_context().trace_id, "032x")
    assert second.attributes == {"n": 1}
    assert second.events[0].name == "happened"
    assert second.start_time == pytest.approx(inner.start_time / 1e9)
