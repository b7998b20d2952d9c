"""The file format of training rows, and the weight of each row in the loss.

One JSON object a line; no pickle. A row is one model call, or a chain of calls whose tokens continue each other.
Torch-free: the GPU worker writes these files, the trainer process reads them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import orjson
from pydantic import ValidationError

from relight.adapter.training_rows import TrainingRow
from relight.errors import TrainerError
from relight.types.hyperparameters import LossSequence


def write_rows(path: Path, rows: Iterable[TrainingRow]) -> None:
    """Write rows for `TrainerProcess.train`."""
    with path.open("wb") as file:
        file.writelines(orjson.dumps(row.model_dump(), option=orjson.OPT_APPEND_NEWLINE) for row in rows)


def read_rows(path: Path) -> list[TrainingRow]:
    """Read what `write_rows` wrote.

    Raises:
        TrainerError: naming the line and the wrong field.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise TrainerError(f"rows file {path} can't be read: {error}") from error
    return [_read_row(path, number, line) for number, line in enumerate(lines, 1)]


def _read_row(path: Path, number: int, line: bytes) -> TrainingRow:
    try:
        return TrainingRow.model_validate(orjson.loads(line))
    except (orjson.JSONDecodeError, ValidationError) as error:
        raise TrainerError(f"rows file {path}, line {number}: {error}") from error


def row_weights(rows: Sequence[TrainingRow], loss_agg_mode: str, sequence: LossSequence) -> list[float]:
    """The factor of each row's losses, with which verl's aggregation over rows becomes that over sequences.

    verl takes each row for a sequence. With `sequence: rollout` all trained tokens of a rollout are one sequence,
    however they are cut into rows, and `count_sequences` is what the sum over sequences is divided by:

    - `seq-mean-token-mean`: a row of n trained tokens, of N in its rollout, has the factor n/N.
    - `seq-mean-token-sum`, `seq-mean-token-sum-norm`: sums add up, the factor is 1.
    - `token-mean`: every trained token has the same weight, in any sequence; the factor is 1.

    With `sequence: row`, and wherever each rollout has one row, all factors are 1: the loss is verl's own. A row with
    no trained token has the factor 0.
    """
    tokens: Counter[str] = Counter()
    for row in rows:
        tokens[row.rollout_id] += row.trained_tokens
    if loss_agg_mode == "seq-mean-token-mean" and sequence == "rollout":
        return [row.trained_tokens / tokens[row.rollout_id] if row.trained_tokens else 0.0 for row in rows]
    return [1.0 if row.trained_tokens else 0.0 for row in rows]


def count_sequences(rows: Iterable[TrainingRow], sequence: LossSequence) -> int:
    """Sequences with a trained token: what the `seq-mean` modes divide by."""
    trained = [row.rollout_id for row in rows if row.trained_tokens]
    return len(set(trained)) if sequence == "rollout" else len(trained)
