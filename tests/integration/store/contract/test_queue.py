"""The queue: what goes in, what comes out, in which order, and to whom."""

from __future__ import annotations

import asyncio
from itertools import chain

import pytest

from relight.errors import InvalidRequestError, NotFoundError
from relight.store.base import LightningStore
from relight.types.resources import PromptTemplate
from relight.types.rollout import AttemptedRollout, AttemptStatus, RolloutStatus
from relight.types.store import Dispatch, EnqueueRolloutRequest, ResourcesUpdate
from tests.support.lightning_kit import begin, claimed, config, newest, prompts, retrying, rollout_of


async def test_a_rollout_keeps_what_it_was_enqueued_with(store: LightningStore) -> None:
    """Invariant 1."""
    given = config(timeout_seconds=30.5, max_attempts=3, retry_condition=["timeout"])
    made = await store.enqueue_rollout({"q": [1, None, "é"]}, "val", None, given, {"tag": {"a": 1}})
    assert (made.input, made.mode, made.config, made.metadata) == (
        {"q": [1, None, "é"]},
        "val",
        given,
        {"tag": {"a": 1}},
    )
    assert made.status == "queuing"
    assert made.end_time is None
    assert await rollout_of(store, made.rollout_id) == made


async def test_no_metadata_is_an_empty_dictionary(store: LightningStore) -> None:
    """Invariant 1."""
    assert (await store.enqueue_rollout("x")).metadata == {}
    assert (await store.start_rollout("x")).metadata == {}


@pytest.mark.parametrize("value", [None, 0, "text", [1, 2], {"a": {"b": []}}, 1.5, False])
async def test_any_json_is_an_input(store: LightningStore, value: object) -> None:
    """Invariant 1."""
    made = await store.enqueue_rollout(value)
    assert (await rollout_of(store, made.rollout_id)).input == value


async def test_what_the_caller_changes_later_does_not_reach_the_store(store: LightningStore) -> None:
    """Invariant 1."""
    metadata, input = {"a": 1}, {"q": [1]}
    made = await store.enqueue_rollout(input, metadata=metadata)
    metadata["a"] = 2
    input["q"].append(2)
    made.metadata["a"] = 3
    kept = await rollout_of(store, made.rollout_id)
    assert (kept.metadata, kept.input) == ({"a": 1}, {"q": [1]})


async def test_a_started_rollout_is_never_queued(store: LightningStore) -> None:
    """Invariant 2."""
    started = await store.start_rollout("x", "train", config=config(max_attempts=2), metadata={"a": 1}, worker_id="w")
    assert (started.status, started.attempt.status) == ("preparing", "preparing")
    assert (started.attempt.sequence_id, started.attempt.worker_id) == (1, "w")
    assert (started.mode, started.metadata, started.config.max_attempts) == ("train", {"a": 1}, 2)
    assert await store.dequeue_rollout() is None


async def test_a_rollout_without_an_attempt_is_a_plain_one_and_others_carry_the_newest(store: LightningStore) -> None:
    """Invariant 3."""
    made = await store.enqueue_rollout("x")
    assert not isinstance(await store.get_rollout_by_id(made.rollout_id), AttemptedRollout)
    first = await claimed(store)
    second = await store.start_attempt(made.rollout_id)
    assert first.attempt.attempt_id != second.attempt.attempt_id
    found = await store.get_rollout_by_id(made.rollout_id)
    listed = (await store.query_rollouts())[0]
    for rollout in (found, listed):
        assert isinstance(rollout, AttemptedRollout)
        assert rollout.attempt.attempt_id == second.attempt.attempt_id


async def test_the_queue_is_first_in_first_out(store: LightningStore) -> None:
    """Invariant 8."""
    made = [(await store.enqueue_rollout(number)).rollout_id for number in range(5)]
    assert [(await claimed(store)).rollout_id for _ in range(5)] == made


async def test_a_claim_makes_the_first_attempt(store: LightningStore) -> None:
    """Invariant 8."""
    rollout = await begin(store)
    assert rollout.status == "preparing"
    attempt = rollout.attempt
    assert (attempt.status, attempt.sequence_id, attempt.end_time) == ("preparing", 1, None)
    assert attempt.rollout_id == rollout.rollout_id
    assert await newest(store, rollout.rollout_id) == attempt


async def test_a_claim_on_an_empty_queue_returns_nothing(store: LightningStore) -> None:
    """Invariant 9."""
    assert await store.dequeue_rollout() is None
    assert await store.dequeue_many_rollouts(3) == []


async def test_cancelled_and_updated_rollouts_are_passed_over(store: LightningStore) -> None:
    """Invariant 10."""
    cancelled, moved, kept = [await store.enqueue_rollout(number) for number in range(3)]
    await store.update_rollout(cancelled.rollout_id, status=RolloutStatus.CANCELLED)
    await store.update_rollout(moved.rollout_id, status=RolloutStatus.SUCCEEDED)
    assert (await claimed(store)).rollout_id == kept.rollout_id
    assert await store.dequeue_rollout() is None


async def test_requeuing_gives_the_same_rollout_a_second_attempt(store: LightningStore) -> None:
    """Invariant 11."""
    rollout = await begin(store, config=retrying("failed"))
    await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status=AttemptStatus.FAILED)
    assert (await rollout_of(store, rollout.rollout_id)).status == "requeuing"
    again = await claimed(store)
    assert (again.rollout_id, again.attempt.sequence_id) == (rollout.rollout_id, 2)
    assert again.attempt.attempt_id != rollout.attempt.attempt_id


async def test_what_is_requeued_goes_to_the_end(store: LightningStore) -> None:
    """Invariants 8, 11."""
    rollout = await begin(store, config=retrying("failed"))
    other = await store.enqueue_rollout("other")
    await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status=AttemptStatus.FAILED)
    assert [(await claimed(store)).rollout_id for _ in range(2)] == [other.rollout_id, rollout.rollout_id]


async def test_requeuing_by_hand_queues_once(store: LightningStore) -> None:
    """Invariant 11."""
    rollout = await begin(store)
    for _ in range(3):
        await store.update_rollout(rollout.rollout_id, status=RolloutStatus.REQUEUING)
    assert (await claimed(store)).attempt.sequence_id == 2
    assert await store.dequeue_rollout() is None


async def test_many_rollouts_are_enqueued_in_order(store: LightningStore) -> None:
    """Invariant 12."""
    resources = await store.add_resources(prompts())
    requests = [EnqueueRolloutRequest(input=n, mode="train", metadata={"n": n}) for n in range(6)]
    made = await store.enqueue_many_rollouts(requests)
    assert [rollout.input for rollout in made] == list(range(6))
    assert {rollout.resources_id for rollout in made} == {resources.resources_id}
    taken = await store.dequeue_many_rollouts(10)
    assert [(rollout.rollout_id, rollout.metadata) for rollout in taken] == [
        (rollout.rollout_id, {"n": n}) for n, rollout in enumerate(made)
    ]


async def test_an_empty_list_enqueues_nothing(store: LightningStore) -> None:
    """Invariant 12."""
    assert await store.enqueue_many_rollouts([]) == []


async def test_a_batch_with_one_that_is_refused_enqueues_none(store: LightningStore) -> None:
    """Invariant 12."""
    by_workflow = Dispatch(by="workflow", agent="calculator")
    requests = [
        EnqueueRolloutRequest(input=1),
        EnqueueRolloutRequest(input=2, resources_id="rs-unknown", dispatch=by_workflow),
    ]
    with pytest.raises(NotFoundError):
        await store.enqueue_many_rollouts(requests)
    assert len(await store.query_rollouts()) == 0


@pytest.mark.parametrize(("limit", "expected"), [(2, 2), (3, 3), (9, 3), (0, 0), (-1, 0)])
async def test_no_more_are_claimed_than_requested(store: LightningStore, limit: int, expected: int) -> None:
    """Invariant 13."""
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(3)])
    taken = await store.dequeue_many_rollouts(limit)
    assert [rollout.input for rollout in taken] == list(range(expected))
    assert len({rollout.attempt.attempt_id for rollout in taken}) == expected


async def test_fifty_at_once_get_different_ids(store: LightningStore) -> None:
    """Invariant 14."""
    made = await asyncio.gather(*[store.enqueue_rollout(number) for number in range(50)])
    assert len({rollout.rollout_id for rollout in made}) == 50
    assert (await store.query_rollouts(limit=0)).items == []
    assert (await store.query_rollouts(limit=1)).total == 50


async def test_thirty_claims_at_once_take_each_of_twenty_once(store: LightningStore) -> None:
    """Invariant 15."""
    made = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(20)])
    taken = await asyncio.gather(*[store.dequeue_rollout() for _ in range(30)])
    ids = [rollout.rollout_id for rollout in taken if rollout]
    assert sorted(ids) == sorted(rollout.rollout_id for rollout in made)


async def test_batches_claimed_at_once_share_nothing(store: LightningStore) -> None:
    """Invariant 15."""
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(20)])
    taken = list(chain(*await asyncio.gather(*[store.dequeue_many_rollouts(3) for _ in range(10)])))
    assert sorted(rollout.input for rollout in taken) == list(range(20))


async def test_new_rollouts_pin_the_newest_resources(store: LightningStore) -> None:
    """Invariant 25."""
    assert (await store.enqueue_rollout("before")).resources_id is None
    old = await store.add_resources(prompts("old"))
    first = await store.enqueue_rollout("x")
    new = await store.add_resources(prompts("new"))
    assert first.resources_id == old.resources_id
    assert (await rollout_of(store, first.rollout_id)).resources_id == old.resources_id
    assert (await store.enqueue_rollout("x")).resources_id == new.resources_id
    assert (await store.start_rollout("x")).resources_id == new.resources_id
    assert (await store.enqueue_rollout("x", resources_id=old.resources_id)).resources_id == old.resources_id


async def test_resources_may_be_named_before_they_are_added(store: LightningStore) -> None:
    """Invariant 25."""
    moved = await store.update_rollout((await begin(store)).rollout_id, resources_id="rs-later")
    queued = await store.enqueue_rollout("x", resources_id="rs-later")
    started = await store.start_rollout("y", resources_id="rs-later")
    assert [rollout.resources_id for rollout in (queued, started, moved)] == ["rs-later"] * 3
    assert await store.get_resources_by_id("rs-later") is None
    added = await store.update_resources("rs-later", prompts("late"))
    taken = await claimed(store)
    assert (taken.rollout_id, taken.resources_id) == (queued.rollout_id, "rs-later")
    assert await store.get_resources_by_id("rs-later") == added


async def test_a_workflow_is_not_given_resources_that_were_never_added(store: LightningStore) -> None:
    """Invariant 25: no process of the caller's stands between the queue and the attempt that would add them."""
    by_workflow = Dispatch(by="workflow", agent="calculator")
    with pytest.raises(NotFoundError, match="rs-unknown"):
        await store.enqueue_rollout("x", resources_id="rs-unknown", dispatch=by_workflow)
    known = await store.add_resources(prompts("known"))
    made = await store.enqueue_rollout("x", resources_id=known.resources_id, dispatch=by_workflow)
    assert made.resources_id == known.resources_id


async def test_a_repeated_call_with_its_key_enqueues_once(store: LightningStore) -> None:
    """Ours: keys."""
    first = await store.enqueue_rollout("x", idempotency_key="k1")
    again = await store.enqueue_rollout("x", idempotency_key="k1")
    other = await store.enqueue_rollout("x", idempotency_key="k2")
    assert first.rollout_id == again.rollout_id != other.rollout_id
    requests = [EnqueueRolloutRequest(input=n) for n in range(3)]
    many = await store.enqueue_many_rollouts(requests, idempotency_key="k3")
    same = await store.enqueue_many_rollouts(requests, idempotency_key="k3")
    assert [rollout.rollout_id for rollout in many] == [rollout.rollout_id for rollout in same]
    assert (await store.query_rollouts()).total == 5


async def test_of_different_resources_that_one_key_brings_at_once_one_are_added(store: LightningStore) -> None:
    """Ours: keys."""

    async def add(number: int) -> ResourcesUpdate:
        return await store.add_resources(
            {"p": PromptTemplate(template=f"{number}", engine="f-string")}, idempotency_key="k"
        )

    ended = await asyncio.gather(*map(add, range(8)), return_exceptions=True)
    (made,) = [one for one in ended if isinstance(one, ResourcesUpdate)]
    refused = [one for one in ended if isinstance(one, InvalidRequestError)]
    assert (len(refused), str(refused[0])) == (7, "Idempotency-Key: k was sent with another request; send another key")
    assert made.version == 1
    assert await store.get_resources_by_id(made.resources_id) == made
    assert isinstance(prompt := made.resources["p"], PromptTemplate)
    assert await add(int(prompt.template)) == made


async def test_a_repeated_start_with_its_key_starts_once(store: LightningStore) -> None:
    """Ours: keys."""
    first = await store.start_rollout("x", idempotency_key="k")
    again = await store.start_rollout("x", idempotency_key="k")
    assert (first.rollout_id, first.attempt.attempt_id) == (again.rollout_id, again.attempt.attempt_id)
    assert (await store.query_rollouts()).total == 1


async def test_a_claim_whose_answer_was_lost_loses_no_rollout(store: LightningStore) -> None:
    """Ours: keys."""
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(4)])
    first = await store.dequeue_rollout("w", idempotency_key="k1")
    again = await store.dequeue_rollout("w", idempotency_key="k1")
    assert first
    assert again
    assert (first.rollout_id, first.attempt.attempt_id) == (again.rollout_id, again.attempt.attempt_id)
    many = await store.dequeue_many_rollouts(2, "w", idempotency_key="k2")
    same = await store.dequeue_many_rollouts(2, "w", idempotency_key="k2")
    assert [rollout.input for rollout in many] == [1, 2]
    assert [rollout.attempt.attempt_id for rollout in many] == [rollout.attempt.attempt_id for rollout in same]
    assert (await claimed(store)).input == 3


async def test_the_key_of_another_request_is_refused(store: LightningStore) -> None:
    """Ours: keys."""
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(4)], idempotency_key="k")
    await store.start_rollout({"a": 1, "b": 2}, metadata={"m": 1}, worker_id="w", idempotency_key="k")
    assert await store.dequeue_many_rollouts(2, "w", idempotency_key="k")
    same = await store.start_rollout({"b": 2, "a": 1}, metadata={"m": 1}, worker_id="w", idempotency_key="k")
    assert same.input == {"a": 1, "b": 2}
    others = [
        lambda: store.enqueue_rollout(0, idempotency_key="k"),
        lambda: store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(5)], idempotency_key="k"),
        lambda: store.start_rollout({"a": 1}, metadata={"m": 1}, worker_id="w", idempotency_key="k"),
        lambda: store.start_rollout({"a": 1, "b": 2}, metadata={"m": 2}, worker_id="w", idempotency_key="k"),
        lambda: store.start_rollout({"a": 1, "b": 2}, metadata={"m": 1}, worker_id="v", idempotency_key="k"),
        lambda: store.dequeue_many_rollouts(1, "w", idempotency_key="k"),
        lambda: store.dequeue_many_rollouts(2, "v", idempotency_key="k"),
    ]
    for other in others:
        with pytest.raises(InvalidRequestError, match="Idempotency-Key: k was sent with another request"):
            await other()
    assert (await store.query_rollouts()).total == 5


async def test_the_same_call_twice_at_once_enqueues_once(store: LightningStore) -> None:
    """Ours: keys."""
    made = await asyncio.gather(*[store.enqueue_rollout("x", idempotency_key="k") for _ in range(8)])
    assert len({rollout.rollout_id for rollout in made}) == 1
    assert (await store.query_rollouts()).total == 1
