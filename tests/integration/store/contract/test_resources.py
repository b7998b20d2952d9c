"""Snapshots of resources and their versions."""

from __future__ import annotations

import asyncio

import pytest

from relight.store.lightning import LightningStore
from relight.types.resources import LLM, PromptTemplate
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
