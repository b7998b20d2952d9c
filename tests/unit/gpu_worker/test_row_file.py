"""Training rows as a file, and their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.adapter.training_rows import TrainingRow
from relight.errors import TrainerError
from relight.gpu_worker.row_file import count_sequences, read_rows, row_weights, write_rows
from relight.types.hyperparameters import LossSequence


def row(rollout: str = "r", tokens: int = 3, **more: Any) -> TrainingRow:
    fields: dict[str, Any] = {
        "rollout_id": rollout,
        "prompt_ids": [1],
        "response_ids": [2] * tokens,
        "mask": [1] * tokens,
        "advantage": 0.5,
    }
    return TrainingRow(**(fields | more))


def test_rows_are_unchanged_by_their_file(tmp_path: Path) -> None:
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
def test_an_invalid_row_is_named_by_its_line(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    path = tmp_path / "rows"
    write_rows(path, [row()])
    path.write_bytes(path.read_bytes() + orjson.dumps(row().model_dump() | change))
    with pytest.raises(TrainerError, match=rf"(?s)line 2.*{complaint}"):
        read_rows(path)


MODES = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"]
shapes = st.lists(st.lists(st.integers(min_value=1, max_value=9), min_size=1, max_size=10), min_size=1, max_size=8)


def coefficients(rows: list[TrainingRow], mode: str, sequence: LossSequence) -> dict[str, list[float]]:
    """What a token's loss is multiplied by on its way into verl's batch loss, for each row of each rollout."""
    sequences = count_sequences(rows, sequence)
    divisors = {
        "token-mean": lambda row: sum(other.trained_tokens for other in rows),
        "seq-mean-token-mean": lambda row: row.trained_tokens * sequences,
        "seq-mean-token-sum": lambda row: sequences,
    }
    found: dict[str, list[float]] = {}
    for entry, weight in zip(rows, row_weights(rows, mode, sequence), strict=True):
        found.setdefault(entry.rollout_id, []).append(weight / divisors[mode](entry))
    return found


@given(shapes, st.sampled_from(MODES))
def test_a_rollout_is_one_sequence_however_its_tokens_are_cut_into_rows(shape: list[list[int]], mode: str) -> None:
    cut = [row(str(k), tokens) for k, lengths in enumerate(shape) for tokens in lengths]
    whole = [row(str(k), sum(lengths)) for k, lengths in enumerate(shape)]
    wanted = coefficients(whole, mode, "rollout")
    for name, values in coefficients(cut, mode, "rollout").items():
        assert values == pytest.approx(wanted[name] * len(values))


@given(shapes, st.sampled_from(MODES))
def test_rows_for_sequences_weigh_one_as_in_verls_own_loss(shape: list[list[int]], mode: str) -> None:
    rows = [row(str(k), tokens) for k, lengths in enumerate(shape) for tokens in lengths]
    assert row_weights(rows, mode, "row") == [1.0] * len(rows)
    assert count_sequences(rows, "row") == len(rows)


@given(shapes)
def test_in_the_token_mean_every_token_counts_alike(shape: list[list[int]]) -> None:
    rows = [row(str(k), tokens) for k, lengths in enumerate(shape) for tokens in lengths]
    assert len({value for values in coefficients(rows, "token-mean", "rollout").values() for value in values}) == 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sequence", get_args(LossSequence))
def test_a_row_without_a_trained_token_weighs_nothing_and_is_no_sequence(mode: str, sequence: LossSequence) -> None:
    rows = [row("a"), row("a", mask=[0, 0, 0]), row("b"), row("c", mask=[0, 0, 0])]
    assert row_weights(rows, mode, sequence) == [1.0, 0.0, 1.0, 0.0]
    assert count_sequences(rows, sequence) == 2
