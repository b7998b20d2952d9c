"""Snapshots of resources and their versions."""

from __future__ import annotations

import asyncio

import pytest

from relight.store.base import LightningStore
from relight.types.resources import LLM, PromptTemplate
from relight.types.rollout import AttemptedRollout, RolloutConfig
from tests.support.lightning_kit import LightningKit, prompts


async def test_ids_are_unique_and_history_is_in_order(store: LightningStore) -> None:
    """Invariant 21."""
    made = [(await store.add_resources(prompts(str(number)))).resources_id for number in range(4)]
    assert len(set(made)) == 4
    assert [row.resources_id for row in await store.query_resources()] == made


async def test_what_was_added_comes_back(store: LightningStore) -> None:
    """Invariant 21."""
    given = {
        "llm": LLM(endpoint="http://e/v1", model="m", api_key="k", sampling_parameters={"temperature": 0.5}),
        "prompt": PromptTemplate(template="{{ x }}", engine="jinja"),
    }
    added = await store.add_resources(given)  # type: ignore[arg-type]
    assert (added.version, added.resources) == (1, given)
    assert added.create_time == added.update_time
    assert await store.get_resources_by_id(added.resources_id) == added
    assert await store.get_latest_resources() == added


async def test_versions_of_ids_are_their_own(store: LightningStore) -> None:
    """Invariant 22."""
    a, b = await store.add_resources(prompts("a")), await store.add_resources(prompts("b"))
    assert [(await store.update_resources(a.resources_id, prompts(f"a{n}"))).version for n in range(3)] == [2, 3, 4]
    untouched = await store.get_resources_by_id(b.resources_id)
    assert untouched == b
    assert (await store.update_resources("rs-mine", prompts("new"))).version == 1


async def test_the_time_of_making_stays_and_that_of_change_grows(store: LightningStore) -> None:
    """Invariant 23."""
    added = await store.add_resources(prompts("a"))
    times = [added.update_time]
    for number in range(3):
        changed = await store.update_resources(added.resources_id, prompts(str(number)))
        assert changed.create_time == added.create_time
        assert changed.resources == prompts(str(number))
        times.append(changed.update_time)
    assert times == sorted(times)
    assert times[-1] > times[0]
    assert (await store.query_resources()).total == 1


async def test_the_newest_is_what_was_changed_last(store: LightningStore) -> None:
    """Invariant 23."""
    assert await store.get_latest_resources() is None
    a, b = await store.add_resources(prompts("a")), await store.add_resources(prompts("b"))
    newest = await store.get_latest_resources()
    assert newest == b
    changed = await store.update_resources(a.resources_id, prompts("a2"))
    assert await store.get_latest_resources() == changed


async def test_the_newest_is_known_elsewhere_too(kit: LightningKit) -> None:
    """Invariant 24."""
    await kit.store.add_resources(prompts("a"))
    added = await kit.store.add_resources(prompts("b"))
    async with kit.elsewhere() as other:
        assert await other.get_latest_resources() == added
        assert (await other.enqueue_rollout("x")).resources_id == added.resources_id


async def test_changes_at_once_all_land(store: LightningStore) -> None:
    """Invariant 26."""
    await asyncio.gather(*[store.update_resources("rs-shared", prompts(str(n))) for n in range(20)])
    shared = await store.get_resources_by_id("rs-shared")
    assert shared
    assert shared.version == 20
    await asyncio.gather(*[store.update_resources(f"rs-{n}", prompts(str(n))) for n in range(20)])
    assert (await store.query_resources(resources_id_contains="rs-")).total == 21


@pytest.mark.parametrize("unknown", ["rs-unknown", "latest "])
async def test_unknown_resources_are_none(store: LightningStore, unknown: str) -> None:
    """Invariant 50."""
    assert await store.get_resources_by_id(unknown) is None
    assert list(await store.query_resources(resources_id=unknown)) == []


async def test_resources_are_found(store: LightningStore) -> None:
    """Invariants 6, 7."""
    for name in ("rs-alpha", "rs-beta", "rs-alphabet"):
        await store.update_resources(name, prompts(name))
    one = await store.query_resources(resources_id="rs-beta")
    assert [row.resources_id for row in one] == ["rs-beta"]
    page = await store.query_resources(
        resources_id_contains="alpha", sort_by="resources_id", sort_order="desc", limit=1, offset=1
    )
    assert ([row.resources_id for row in page], page.total, page.limit, page.offset) == (["rs-alpha"], 2, 1, 1)
    either = await store.query_resources(resources_id="rs-beta", resources_id_contains="bet", filter_logic="or")
    assert {row.resources_id for row in either} == {"rs-beta", "rs-alphabet"}


AGAIN = RolloutConfig(max_attempts=3, retry_condition=["failed"], backoff_seconds=0.0)  # type: ignore[list-item]


async def claimed(store: LightningStore) -> AttemptedRollout:
    """The next rollout of the queue; its attempt fails, so that it is tried again."""
    claim = await store.dequeue_rollout()
    assert claim is not None
    await store.update_attempt(claim.rollout_id, claim.attempt.attempt_id, status="failed")  # type: ignore[arg-type]
    return claim


async def seen(store: LightningStore, claim: AttemptedRollout) -> object:
    """The resources that a claim is pinned to."""
    assert claim.resources_id is not None
    update = await store.get_resources_by_id(claim.resources_id, claim.resources_version)
    return update and update.resources


async def test_a_version_that_was_replaced_can_still_be_read(store: LightningStore) -> None:
    added = await store.add_resources(prompts("a"))
    changed = await store.update_resources(added.resources_id, prompts("b"))
    assert await store.get_resources_by_id(added.resources_id, 1) == added
    assert await store.get_resources_by_id(added.resources_id, 2) == changed
    assert await store.get_resources_by_id(added.resources_id) == changed
    assert await store.get_resources_by_id(added.resources_id, 3) is None
    assert (await store.query_resources()).total == 1


async def test_a_rollout_keeps_the_version_that_it_was_enqueued_with_through_its_retries(
    store: LightningStore,
) -> None:
    added = await store.add_resources(prompts("a"))
    rollout = await store.enqueue_rollout("x", resources_id=added.resources_id, config=AGAIN)
    assert rollout.resources_version == 1
    found: list[object] = []
    for text in ("b", "c"):
        await store.update_resources(added.resources_id, prompts(text))
        found.append(await seen(store, await claimed(store)))
    assert found == [prompts("a"), prompts("a")]
    assert (await store.enqueue_rollout("y", resources_id=added.resources_id)).resources_version == 3


async def test_a_rollout_that_names_no_resources_is_pinned_when_it_is_first_opened(store: LightningStore) -> None:
    rollout = await store.enqueue_rollout("x", config=AGAIN)
    assert (rollout.resources_id, rollout.resources_version) == (None, None)
    added = await store.add_resources(prompts("a"))
    await store.update_resources(added.resources_id, prompts("b"))
    first = await claimed(store)
    assert (first.resources_id, first.resources_version) == (added.resources_id, 2)
    await store.update_resources(added.resources_id, prompts("c"))
    await store.add_resources(prompts("d"))
    again = await claimed(store)
    assert await seen(store, again) == await seen(store, first) == prompts("b")


async def test_a_rollout_whose_resources_are_added_behind_its_first_attempt_keeps_those_that_its_next_one_sees(
    store: LightningStore,
) -> None:
    rollout = await store.enqueue_rollout("x", resources_id="rs-later", config=AGAIN)
    assert (await claimed(store)).resources_version is None
    await store.update_resources("rs-later", prompts("a"))
    second = await claimed(store)
    await store.update_resources("rs-later", prompts("b"))
    third = await claimed(store)
    assert [claim.rollout_id for claim in (second, third)] == [rollout.rollout_id] * 2
    assert await seen(store, third) == await seen(store, second) == prompts("a")


async def test_a_rollout_that_is_given_other_resources_is_pinned_to_their_newest_version(store: LightningStore) -> None:
    old, new = await store.add_resources(prompts("a")), await store.add_resources(prompts("b"))
    rollout = await store.enqueue_rollout("x", resources_id=old.resources_id, config=AGAIN)
    await store.update_resources(new.resources_id, prompts("b2"))
    changed = await store.update_rollout(rollout.rollout_id, resources_id=new.resources_id)
    assert (changed.resources_id, changed.resources_version) == (new.resources_id, 2)
    await store.update_resources(new.resources_id, prompts("b3"))
    assert await seen(store, await claimed(store)) == prompts("b2")
