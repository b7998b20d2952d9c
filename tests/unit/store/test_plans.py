"""Plans: which tasks a step plays, in which batches, with which values."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from relight.store.training.plans import (
    ROLLOUTS_PER_BATCH,
    epoch_order,
    groups_to_batches,
    resolve_plan,
    stable_seed,
    take_positions,
)
from relight.types.run_file import RunFile

FILE = RunFile.model_validate({"agent": "a", "model": "m", "data": "t.jsonl", "batch_size": 3, "seed": 5})
rows = st.integers(1, 40)
seeds = st.integers(0, 5)


@given(rows=rows, seed=seeds, cuts=st.lists(st.integers(1, 17), min_size=1, max_size=12), shuffle=st.booleans())
def test_batches_of_any_size_use_every_task_once_an_epoch(rows: int, seed: int, cuts: list[int], shuffle: bool) -> None:
    taken: list[int] = []
    for count in cuts:
        taken += take_positions(rows, len(taken), count, seed, shuffle)
    assert taken == take_positions(rows, 0, sum(cuts), seed, shuffle)
    for start in range(0, len(taken) - rows + 1, rows):
        assert sorted(taken[start : start + rows]) == list(range(rows))


@given(rows=st.integers(5, 60), seed=seeds)
def test_epochs_differ_and_are_the_same_every_time(rows: int, seed: int) -> None:
    first = epoch_order(rows, 0, seed, shuffle=True)
    assert first == epoch_order(rows, 0, seed, shuffle=True)
    assert any(epoch_order(rows, epoch, seed, shuffle=True) != first for epoch in range(1, 4))


def test_seeds_are_pinned_because_stored_rollouts_depend_on_them() -> None:
    assert stable_seed(7, "epoch", 0) == 7360061628599604859
    assert 0 <= stable_seed("x") < 2**63


@given(groups=st.integers(1, 300), group_size=st.integers(1, 400))
def test_a_batch_holds_whole_groups_and_not_many_more_than_200_rollouts(groups: int, group_size: int) -> None:
    batches = groups_to_batches(groups, group_size)
    assert batches == sorted(batches)
    assert set(batches) == set(range(max(batches) + 1))
    largest = max(Counter(batches).values())
    assert largest == 1 or largest * group_size <= ROLLOUTS_PER_BATCH


def test_changes_override_the_run_file() -> None:
    changes = {"learning_rate": 0.5, "temperature": 0.7, "group_size": 4, "batch_size": 2}
    plan = resolve_plan(FILE, changes, step=3, rows=10, stream_start=6, total_steps=9)
    assert plan.algorithm.learning_rate == 0.5
    assert plan.sampling.temperature == 0.7
    assert (plan.group_size, plan.batch_size, plan.stream_end) == (4, 2, 8)
    assert len(plan.positions) == 2
