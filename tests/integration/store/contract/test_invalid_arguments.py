"""What a caller may send wrong: each store refuses it before it writes, and names the field, the value and what is
valid. The rest comes back as it was sent."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from relight.errors import InvalidRequestError
from relight.store.base import LightningStore
from relight.types.store import EnqueueRolloutRequest
from tests.support.lightning_kit import LightningKit, begin, newest, rollout_of, span_of

INVALID_PAGES: list[tuple[dict[str, Any], str]] = [
    ({"limit": 2**63}, "limit"),
    ({"step": 2**40}, "step"),
    ({"run": "\0"}, "run"),
    ({"rollout_id_in": ["\0"]}, "rollout_id_in"),
    ({"rollout_id_contains": "\ud800"}, "rollout_id_contains"),
    ({"mode": "bogus"}, "mode: Input should be 'train', 'val' or 'test'"),
    ({"status_in": "queuing"}, "status_in"),
]


def nested(levels: int) -> Any:
    """A value nested so deeply."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def unchecked(**values: Any) -> EnqueueRolloutRequest:
    """A request that was never validated."""
    return EnqueueRolloutRequest.model_construct(**values)


class Sum(BaseModel):
    """A task as users write it."""

    question: str


async def test_a_pydantic_task_is_stored_as_its_fields(store: LightningStore) -> None:
    task: dict[str, Any] = {"sums": [Sum(question="2+3?")]}
    first = await store.enqueue_rollout(Sum(question="1+1?"))
    [second] = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=task)])
    assert [(await rollout_of(store, each.rollout_id)).input for each in (first, second)] == [
        {"question": "1+1?"},
        {"sums": [{"question": "2+3?"}]},
    ]


async def test_the_first_task_of_several_that_is_no_json_is_named_by_its_index(store: LightningStore) -> None:
    requests = [unchecked(input=1), unchecked(input={"x": object()})]
    with pytest.raises(InvalidRequestError, match=r"rollouts\.1\.input: .* JSON can't represent"):
        await store.enqueue_many_rollouts(requests)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (unchecked(input=1, mode="bogus"), "mode"),
        (unchecked(input=1, metadata=[1]), "metadata: must be an object"),
        (EnqueueRolloutRequest(input=nested(500)), "nested"),
    ],
    ids=["mode", "metadata", "nested"],
)
async def test_one_invalid_rollout_of_several_enqueues_none(
    store: LightningStore, wrong: EnqueueRolloutRequest, named: str
) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=0), wrong])
    assert (await store.query_rollouts()).total == 0


async def test_resources_that_are_none_are_refused_by_name(store: LightningStore) -> None:
    wrong: Any = {"x": 1}
    for add in (store.add_resources(wrong), store.update_resources("rs-1", wrong)):
        with pytest.raises(InvalidRequestError, match=r"x: .*1"):
            await add
    assert await store.get_latest_resources() is None


async def test_invalid_changes_are_refused_before_anything_is_written(store: LightningStore) -> None:
    made = await begin(store, metadata={"a": 1})
    before = await rollout_of(store, made.rollout_id)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"metadata": [1]}, "metadata"),
        ({"config": None}, "config"),
        ({"mode": "bogus"}, "mode"),
        ({"input": nested(500)}, "nested"),
    ]
    for wrong, named in changes:
        with pytest.raises(InvalidRequestError, match=named):
            await store.update_rollout(made.rollout_id, **wrong)
    for time in (float("nan"), 1e18, -1.0):
        with pytest.raises(InvalidRequestError, match="last_heartbeat_time"):
            await store.update_attempt(made.rollout_id, "latest", last_heartbeat_time=time)
    assert await rollout_of(store, made.rollout_id) == before


async def test_an_invalid_page_is_refused_with_its_argument(store: LightningStore) -> None:
    for wrong, named in INVALID_PAGES:
        with pytest.raises(InvalidRequestError, match=named):
            await store.query_rollouts(**wrong)


async def test_one_span_that_can_not_be_stored_refuses_those_beside_it(store: LightningStore) -> None:
    made = await begin(store)
    first = span_of(made, "first", 1)
    for wrong in (span_of(made, "large", 2**53 + 1), span_of(made, "deep", 2, attributes={"k": nested(500)})):
        with pytest.raises(InvalidRequestError, match=r"sequence_id|nested"):
            await store.add_many_spans([first, wrong])
    assert (await store.query_spans(made.rollout_id)).total == 0


async def test_statistics_that_are_no_object_are_refused(store: LightningStore) -> None:
    with pytest.raises(InvalidRequestError, match="heartbeat_stats"):
        await store.update_worker("w", [])  # type: ignore[arg-type]
    assert await store.get_worker_by_id("w") is None


async def test_what_json_can_not_represent_is_refused_by_the_stores_of_a_process(kit: LightningKit) -> None:
    if hasattr(kit, "service_url"):
        return  # the client sends a set as a list
    for value in ({1}, b"x", object()):
        with pytest.raises(InvalidRequestError, match=r"input: .* is of type"):
            await kit.store.enqueue_rollout(value)
        with pytest.raises(InvalidRequestError, match=r"metadata: .* is of type"):
            await kit.store.enqueue_rollout(1, metadata={"k": value})
    assert (await kit.store.query_rollouts()).total == 0


@pytest.mark.parametrize("number", [2**64 - 1, -(2**63), 1.5, 1e22, 5e-324, nested(100)], ids=lambda _: "value")
async def test_a_value_that_json_carries_comes_back_as_it_was_sent(store: LightningStore, number: Any) -> None:
    made = await store.enqueue_rollout(number, metadata={"k": number})
    assert (made.input, made.metadata) == (number, {"k": number})
    assert await rollout_of(store, made.rollout_id) == made


async def test_an_integer_beyond_64_bits_comes_back_as_text(store: LightningStore) -> None:
    assert (await store.enqueue_rollout([2**64, -(2**63) - 1])).input == [str(2**64), str(-(2**63) - 1)]


async def test_nul_in_an_id_is_another_character_in_every_store(store: LightningStore) -> None:
    made = await store.start_rollout("x", worker_id="w\0", resources_id="r\0")
    assert (made.attempt.worker_id, made.resources_id) == ("w\ufffd", "r\ufffd")
    assert (await newest(store, made.rollout_id)).worker_id == "w\ufffd"


async def test_an_empty_idempotency_key_is_one_in_every_store_of_a_process(kit: LightningKit) -> None:
    if hasattr(kit, "service_url"):
        return  # an empty header is none
    first, second = [await kit.store.enqueue_rollout("x", idempotency_key="") for _ in range(2)]
    assert first == second
