"""The ledger's decisions: who trains, and what names a batch."""

from __future__ import annotations

import pytest

from relight.adapter.training_rows import TrainingRow
from relight.store.training.ledger import Candidate, Sample, batch_hash, choose


def candidate(group: int, index: int, reward: float | None) -> Candidate:
    name = f"g{group}i{index}"
    return Candidate(name, f"at-{name}", group, reward, "agent", None if reward is not None else "timeout")


FULL = [candidate(0, i, 1.0) for i in range(3)]
SHORT = [candidate(1, 0, 1.0), candidate(1, 1, None), candidate(1, 2, 0.0)]
LONELY = [candidate(2, 0, 1.0), candidate(2, 1, None), candidate(2, 2, None)]


@pytest.mark.parametrize("policy", ["fill_up", "train"])
def test_a_short_group_trains_with_two_real_rewards_and_not_with_one(policy: str) -> None:
    chosen = choose([*FULL, *SHORT, *LONELY], 3, policy)
    assert [member.rollout_id for member in chosen] == ["g0i0", "g0i1", "g0i2", "g1i0", "g1i2"]


def test_short_groups_are_dropped_where_the_run_says_so() -> None:
    assert [member.group for member in choose([*FULL, *SHORT], 3, "drop")] == [0, 0, 0]


def test_a_batchs_hash_covers_everything_that_trains_and_nothing_else() -> None:
    row = TrainingRow(
        rollout_id="r",
        attempt_id="a",
        calls=[1],
        prompt_ids=[1, 2],
        response_ids=[3, 4],
        mask=[1, 1],
        sampled_logprobs=[-0.5, -0.25],
        advantage=0.5,
        weight=1.0,
    )
    sample = Sample(candidate(0, 0, 1.0), 0.5)
    name = batch_hash([row], [sample])
    assert batch_hash([row.model_copy()], [sample]) == name
    for change in (
        {"attempt_id": "b"},
        {"calls": [2]},
        {"prompt_ids": [1]},
        {"response_ids": [3, 5]},
        {"mask": [1, 0]},
        {"advantage": 0.25},
        {"weight": 0.5},
        {"sampled_logprobs": [-0.5, -0.125]},
        {"temperature": 0.7},
        {"group": 1},
    ):
        assert batch_hash([row.model_copy(update=change)], [sample]) != name
    assert batch_hash([row], [Sample(candidate(0, 0, 0.0), 0.5)]) != name
