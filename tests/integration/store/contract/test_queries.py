"""Filters, order and pages."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from relight.errors import InvalidRequestError
from relight.store.base import LightningStore
from relight.types.rollout import RolloutStatus
from tests.support.lightning_kit import LightningKit, begin, ended, running, span_of

QUEUING, RUNNING, SUCCEEDED = RolloutStatus.QUEUING, RolloutStatus.RUNNING, RolloutStatus.SUCCEEDED


async def three(store: LightningStore) -> list[str]:
    """One that has ended, one that runs, one in the queue."""
    done, under_way = await ended(store), await running(store)
    waiting = await store.enqueue_rollout("x", "val")
    return [done.rollout_id, under_way.rollout_id, waiting.rollout_id]


async def test_rollouts_come_in_the_order_of_their_making(store: LightningStore) -> None:
    """Invariant 7."""
    ids = await three(store)
    assert [rollout.rollout_id for rollout in await store.query_rollouts()] == ids


async def test_an_empty_list_matches_nothing(store: LightningStore) -> None:
    """Invariant 4."""
    await three(store)
    for page in (await store.query_rollouts(status_in=[]), await store.query_rollouts(rollout_id_in=[])):
        assert (list(page), page.total) == ([], 0)


async def test_deprecated_parameter_names_are_refused(store: LightningStore) -> None:
    """Invariant 5: one name for one filter."""
    names = set(inspect.signature(store.query_rollouts).parameters)
    assert {"status_in", "rollout_id_in"} <= names
    assert not {"status", "rollout_ids"} & names


async def test_filters_are_anded_or_ored(store: LightningStore) -> None:
    """Invariant 6."""
    done, under_way, waiting = await three(store)
    both = await store.query_rollouts(status_in=[SUCCEEDED, QUEUING], rollout_id_in=[done, under_way])
    assert [rollout.rollout_id for rollout in both] == [done]
    either = await store.query_rollouts(status_in=[QUEUING], rollout_id_in=[done], filter_logic="or")
    assert [rollout.rollout_id for rollout in either] == [done, waiting]
    part = await store.query_rollouts(rollout_id_contains=under_way[2:])
    assert [rollout.rollout_id for rollout in part] == [under_way]
    assert len(await store.query_rollouts(filter_logic="or")) == 3


async def test_sql_wildcards_are_matched_literally(store: LightningStore) -> None:
    """Invariant 6."""
    await three(store)
    for text in ("%", "_", "ro%", "\\", "'"):
        assert list(await store.query_rollouts(rollout_id_contains=text)) == []


async def test_or_never_shows_spans_of_other_rollouts(store: LightningStore) -> None:
    """Invariant 6."""
    a, b = await begin(store), await begin(store)
    for rollout in (a, b):
        await store.add_many_spans([span_of(rollout, "s1", 1, name="one"), span_of(rollout, "s2", 2, name="two")])
    found = await store.query_spans(a.rollout_id, name="one", span_id="s2", filter_logic="or")
    assert [(span.rollout_id, span.span_id) for span in found] == [(a.rollout_id, "s1"), (a.rollout_id, "s2")]
    none = await store.query_spans(a.rollout_id, b.attempt.attempt_id, name="one", filter_logic="or")
    assert list(none) == []


async def test_spans_are_found_by_each_of_their_ids(store: LightningStore) -> None:
    """Invariant 6."""
    rollout = await begin(store)
    await store.add_many_spans(
        [
            span_of(rollout, "aa11", 1, trace_id="t-one", name="root"),
            span_of(rollout, "bb22", 2, trace_id="t-one", name="child", parent_id="aa11"),
            span_of(rollout, "cc33", 3, trace_id="t-two", name="other child", parent_id="bb22"),
        ]
    )

    async def ids(**filters: str) -> list[str]:
        return [span.span_id for span in await store.query_spans(rollout.rollout_id, **filters)]  # type: ignore[arg-type]

    assert await ids(trace_id="t-one") == ["aa11", "bb22"]
    assert await ids(trace_id_contains="two") == ["cc33"]
    assert await ids(span_id="bb22") == ["bb22"]
    assert await ids(span_id_contains="3") == ["cc33"]
    assert await ids(parent_id="aa11") == ["bb22"]
    assert await ids(parent_id_contains="b") == ["cc33"]
    assert await ids(name="child") == ["bb22"]
    assert await ids(name_contains="child") == ["bb22", "cc33"]
    assert await ids(name_contains="child", trace_id="t-two") == ["cc33"]
    assert await ids(name="root", trace_id="t-two", filter_logic="or") == ["aa11", "cc33"]


async def test_spans_of_an_attempt_or_of_all(store: LightningStore) -> None:
    """Invariant 40."""
    first = await running(store)
    second = await store.start_attempt(first.rollout_id)
    await store.add_span(span_of(second, "second", 2))

    async def ids(attempt_id: str | None) -> list[str]:
        return [span.span_id for span in await store.query_spans(first.rollout_id, attempt_id)]

    assert await ids(None) == ["first", "second"]
    assert await ids(first.attempt.attempt_id) == ["first"]
    assert await ids("latest") == ["second"]


async def test_pages_have_their_offset_and_total(store: LightningStore) -> None:
    """Invariant 7."""
    made = [(await store.enqueue_rollout(number)).rollout_id for number in range(5)]
    page = await store.query_rollouts(limit=2, offset=1)
    assert [rollout.rollout_id for rollout in page] == made[1:3]
    assert (page.limit, page.offset, page.total, len(page)) == (2, 1, 5, 2)
    everything = await store.query_rollouts()
    assert (len(everything), everything.limit, everything.offset, everything.total) == (5, -1, 0, 5)
    past = await store.query_rollouts(limit=2, offset=9)
    assert (list(past), past.total) == ([], 5)
    assert list(await store.query_rollouts(limit=0)) == []
    assert [rollout.rollout_id for rollout in await store.query_rollouts(offset=3)] == made[3:]


async def test_attempts_and_spans_come_in_pages_too(store: LightningStore) -> None:
    """Invariant 7."""
    rollout = await begin(store)
    for _ in range(3):
        await store.start_attempt(rollout.rollout_id)
    attempts = await store.query_attempts(rollout.rollout_id, sort_order="desc", limit=2, offset=1)
    assert ([attempt.sequence_id for attempt in attempts], attempts.total) == ([3, 2], 4)
    await store.add_many_spans([span_of(rollout, f"s{n}", n) for n in range(1, 6)])
    spans = await store.query_spans(rollout.rollout_id, sort_order="desc", limit=2, offset=1)
    assert ([span.sequence_id for span in spans], spans.total) == ([4, 3], 5)
    nothing = await store.query_attempts(rollout.rollout_id, limit=0)
    assert (list(nothing), nothing.limit, nothing.total) == ([], 0, 4)


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_a_cursor_pages_rollouts_to_the_end_though_rows_come_and_go(store: LightningStore, order: Any) -> None:
    """Ours: cursors."""
    made = [(await store.enqueue_rollout(number, "train")).rollout_id for number in range(7)]
    await store.enqueue_rollout("another", "val")
    expected = made if order == "asc" else made[::-1]
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = await store.query_rollouts(mode="train", sort_order=order, limit=2, cursor=cursor)
        assert (page.limit, page.offset) == (2, 0)
        seen += [rollout.rollout_id for rollout in page]
        cursor = page.next
        if len(seen) == 2:  # what is gone shifts nothing, and what is new comes where its order puts it
            await store.cancel_rollout(seen[0])
            await store.delete_rollout(seen[0])
            late = (await store.enqueue_rollout("late", "train")).rollout_id
            expected = [*expected, late] if order == "asc" else expected
        assert len(seen) <= len(expected)
    assert seen == expected


async def test_a_cursors_page_counts_all_that_match(store: LightningStore) -> None:
    """Ours: cursors."""
    for number in range(3):
        await store.enqueue_rollout(number)
    first = await store.query_rollouts(limit=2, cursor="")
    assert first.next is not None
    last = await store.query_rollouts(limit=2, cursor=first.next)
    assert ([len(first), len(last)], [first.total, last.total]) == ([2, 1], [3, 3])
    assert last.next is None
    assert (await store.query_rollouts()).next is None
    assert (await store.query_rollouts(cursor="")).next is None


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_a_cursor_pages_spans_that_share_numbers(store: LightningStore, order: Any) -> None:
    """Ours: cursors."""
    first = await begin(store)
    second = await store.start_attempt(first.rollout_id)
    given = [(rollout, name, number) for rollout in (first, second) for name, number in (("a", 1), ("b", 1), ("c", 2))]
    await store.add_many_spans([span_of(rollout, name, number) for rollout, name, number in given])
    seen: list[tuple[str, str, int]] = []
    cursor: str | None = ""
    while cursor is not None:
        page = await store.query_spans(first.rollout_id, sort_order=order, limit=1, cursor=cursor)
        seen += [(span.attempt_id, span.span_id, span.sequence_id) for span in page]
        cursor = page.next
        assert len(seen) <= len(given)
    assert sorted(seen) == sorted((rollout.attempt.attempt_id, name, number) for rollout, name, number in given)
    assert [number for _, _, number in seen] == sorted((n for _, _, n in seen), reverse=order == "desc")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"cursor": "x"}, "cursor"),
        ({"cursor": "WyJhIl0"}, "cursor"),
        ({"cursor": "", "offset": 1}, "offset"),
        ({"cursor": "", "sort_by": "status"}, "sort_by"),
        ({"cursor": "", "limit": 0}, "limit"),
    ],
)
async def test_a_cursor_that_is_invalid_is_named(store: LightningStore, wrong: dict[str, Any], named: str) -> None:
    """Ours: cursors."""
    rollout = await begin(store)
    with pytest.raises(InvalidRequestError, match=named):
        await store.query_rollouts(**wrong)
    with pytest.raises(InvalidRequestError, match=named):
        await store.query_spans(rollout.rollout_id, **wrong)


async def test_none_comes_first_upwards_and_last_downwards(store: LightningStore) -> None:
    """Invariant 51."""
    done, under_way, waiting = await three(store)
    up = [row.rollout_id for row in await store.query_rollouts(sort_by="end_time")]
    down = [row.rollout_id for row in await store.query_rollouts(sort_by="end_time", sort_order="desc")]
    assert (set(up[:2]), up[2]) == ({under_way, waiting}, done)
    assert (down[0], set(down[1:])) == (done, {under_way, waiting})
    rollout = await begin(store)
    await store.add_many_spans([span_of(rollout, "a", 1, end_time=5.0), span_of(rollout, "b", 2, end_time=None)])
    assert [span.span_id for span in await store.query_spans(rollout.rollout_id, sort_by="end_time")] == ["b", "a"]


async def test_rollouts_are_sorted_by_their_fields(store: LightningStore) -> None:
    """Invariant 51."""
    made = [await store.enqueue_rollout(n, mode) for n, mode in enumerate(("val", "train", "test"))]
    by_id = sorted((row.rollout_id for row in made), reverse=True)
    page = await store.query_rollouts(sort_by="rollout_id", sort_order="desc")
    assert [row.rollout_id for row in page] == by_id
    assert [row.mode for row in await store.query_rollouts(sort_by="mode")] == ["test", "train", "val"]
    newest_first = await store.query_rollouts(sort_by="start_time", sort_order="desc")
    assert [row.rollout_id for row in newest_first] == [row.rollout_id for row in reversed(made)]


async def test_an_unknown_field_to_sort_by_is_named(store: LightningStore) -> None:
    """Invariant 52."""
    rollout = await running(store)
    for query in (
        lambda: store.query_rollouts(sort_by="colour"),
        lambda: store.query_attempts(rollout.rollout_id, sort_by="colour"),
        lambda: store.query_spans(rollout.rollout_id, sort_by="colour"),
        lambda: store.query_resources(sort_by="colour"),
        lambda: store.query_workers(sort_by="colour"),
    ):
        with pytest.raises(InvalidRequestError, match="colour"):
            await query()


async def test_rollouts_are_found_by_mode_and_failure(store: LightningStore) -> None:
    """Ours: filters."""
    await store.enqueue_rollout(1, "train")
    await store.enqueue_rollout(2, "val")
    await ended(store, "failed", mode="test")
    assert [row.input for row in await store.query_rollouts(mode="val")] == [2]
    failed = await store.query_rollouts(failure_class="agent_error")
    assert [row.failure_class for row in failed] == ["agent_error"]
    narrow = await store.query_rollouts(status_in=[QUEUING], rollout_id_contains="o", filter_logic="or", mode="val")
    assert {row.mode for row in narrow} <= {"val"}


async def test_rollouts_are_found_by_run_and_step(kit: LightningKit) -> None:
    """Ours: filters."""
    await kit.plan("demo-1", 1)
    await kit.plan("demo-2", 2)
    await kit.store.enqueue_rollout("outside")
    assert [row.rollout_id for row in await kit.store.query_rollouts(run="demo", sort_by="rollout_id")] == [
        "demo-1",
        "demo-2",
    ]
    assert [row.rollout_id for row in await kit.store.query_rollouts(run="demo", step=2)] == ["demo-2"]
    assert list(await kit.store.query_rollouts(run="other")) == []


async def test_statistics_count_what_is_there(store: LightningStore) -> None:
    """Invariant 61."""
    await three(store)
    await store.update_worker("w", {})
    numbers = await store.statistics()
    assert numbers["name"]
    assert numbers["uptime"] >= 0
    counted = {key: count for key, count in numbers.items() if key.startswith("total_")}
    assert counted == {
        "total_rollouts": 3,
        "total_attempts": 2,
        "total_spans": 1,
        "total_resources": 0,
        "total_workers": 1,
    }
