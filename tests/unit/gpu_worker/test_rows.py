"""Training rows as a file, and their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.errors import TrainerError
from relight.gpu_worker.rows import TrainRow, read_rows, rollout_weights, write_rows


def row(rollout: str = "r", tokens: int = 3, **more: Any) -> TrainRow:
    fields: dict[str, Any] = {
        "rollout_id": rollout,
        "prompt_ids": [1],
        "response_ids": [2] * tokens,
        "mask": [1] * tokens,
        "advantage": 0.5,
    }
    return TrainRow(**(fields | more))


def test_rows_survive_their_file(tmp_path: Path) -> None:
    rows = [row(), row("s", sampled_logprobs=[-0.1, -1 / 3, 0.0], weight=0.25, temperature=0.7)]
    write_rows(tmp_path / "rows", rows)
    assert read_rows(tmp_path / "rows") == rows


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"mask": [1, 1]}, "mask has 2 entries for 3"),
        ({"mask": [1, 1, 2]}, "0 and 1 only"),
        ({"prompt_ids": []}, "prompt_ids"),
        ({"nonsense": 1}, "nonsense"),
        ({"sampled_logprobs": [0.0]}, "sampled_logprobs has 1"),
    ],
)
def test_a_row_at_fault_is_named_by_its_line(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    path = tmp_path / "rows"
    write_rows(path, [row()])
    path.write_bytes(path.read_bytes() + orjson.dumps(row().model_dump() | change))
    with pytest.raises(TrainerError, match=rf"(?s)line 2.*{complaint}"):
        read_rows(path)


shapes = st.lists(st.lists(st.integers(min_value=1, max_value=9), min_size=1, max_size=10), min_size=1, max_size=8)


@given(shapes, st.sampled_from(["token-mean", "seq-mean-token-mean"]))
def test_every_rollout_pulls_the_same_however_many_rows_and_tokens_it_has(shape: list[list[int]], mode: str) -> None:
    rows = [row(str(k), tokens) for k, lengths in enumerate(shape) for tokens in lengths]
    pull: dict[str, float] = {}
    for entry, weight in zip(rows, rollout_weights(rows, mode), strict=True):
        own = weight * entry.trained_tokens if mode == "token-mean" else weight
        pull[entry.rollout_id] = pull.get(entry.rollout_id, 0.0) + own
    assert len(pull) == len(shape)
    assert list(pull.values()) == pytest.approx([next(iter(pull.values()))] * len(shape))


def test_rollouts_of_one_row_weigh_one() -> None:
    rows = [row("a", 2), row("b", 5)]
    assert rollout_weights(rows, "seq-mean-token-mean") == [1.0, 1.0]
    assert rollout_weights(rows, "seq-mean-token-sum") == [1.0, 1.0]
    assert rollout_weights([row("a"), row("b")], "token-mean") == [1.0, 1.0]


def test_a_row_without_a_trained_token_weighs_nothing_and_counts_for_nobody() -> None:
    rows = [row("a"), row("a", mask=[0, 0, 0]), row("b")]
    assert rollout_weights(rows, "seq-mean-token-mean") == [1.0, 0.0, 1.0]
    assert rollout_weights(rows, "token-mean") == [1.0, 0.0, 1.0]
