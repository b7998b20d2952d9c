"""Training rows as a file, and how much each of them counts.

One JSON object a line; no pickle. A row is one model call, or a chain of calls whose tokens continue each other.
Torch-free: the GPU worker writes these files, the trainer process reads them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from relight.errors import TrainerError


class TrainRow(BaseModel):
    """What the trainer learns from: a prompt, what followed it, and what that is worth."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rollout_id: str
    prompt_ids: list[int] = Field(min_length=1)
    response_ids: list[int] = Field(min_length=1)
    """All tokens after the prompt: the model's own, and in a chain of calls also what came back to it."""
    mask: list[int]
    """1 for each response token that the model wrote, else 0."""
    advantage: float
    """The rollout's advantage; every trained token of the row gets it."""
    weight: float | None = Field(default=None, ge=0)
    """How many times the row counts in verl's loss; `rollout_weights` gives the usual values, which None stands for."""
    sampled_logprobs: list[float] = Field(default_factory=list[float])
    """The sampler's logprob of each response token (0 where the mask is 0); empty: unknown."""
    temperature: float | None = Field(default=None, gt=0)
    """What the row was sampled at, if not at the temperature of the hyper-parameters."""

    @model_validator(mode="after")
    def _lengths_agree(self) -> TrainRow:
        wanted = len(self.response_ids)
        if len(self.mask) != wanted:
            raise ValueError(f"mask has {len(self.mask)} entries for {wanted} response tokens")
        if set(self.mask) - {0, 1}:
            raise ValueError("mask may hold 0 and 1 only")
        if self.sampled_logprobs and len(self.sampled_logprobs) != wanted:
            raise ValueError(f"sampled_logprobs has {len(self.sampled_logprobs)} entries for {wanted} response tokens")
        return self

    @property
    def trained_tokens(self) -> int:
        return sum(self.mask)


def write_rows(path: Path, rows: Iterable[TrainRow]) -> None:
    """Write rows for `TrainerProcess.train`."""
    with path.open("wb") as file:
        file.writelines(orjson.dumps(row.model_dump(), option=orjson.OPT_APPEND_NEWLINE) for row in rows)


def read_rows(path: Path) -> list[TrainRow]:
    """Read what `write_rows` wrote.

    Raises:
        TrainerError: naming the line and field at fault.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise TrainerError(f"rows file {path} can't be read: {error}") from error
    return [_read_row(path, number, line) for number, line in enumerate(lines, 1)]


def _read_row(path: Path, number: int, line: bytes) -> TrainRow:
    try:
        return TrainRow.model_validate(orjson.loads(line))
    except (orjson.JSONDecodeError, ValidationError) as error:
        raise TrainerError(f"rows file {path}, line {number}: {error}") from error


def rollout_weights(rows: Sequence[TrainRow], loss_agg_mode: str) -> list[float]:
    """Weights by which each rollout counts the same, whether it has one row or ten.

    With them the loss is the mean over rollouts of what verl's loss is on the rows of that rollout alone; the mode
    says how a rollout's rows and tokens share its part. A weight w says that verl's loss takes the row w times:
    numerators are multiplied by it, and the rows and tokens that verl's aggregation divides by are counted with it.
    With n rows and N trained tokens in the row's rollout, and M the mean of N over the batch's rollouts:

    - `token-mean`: verl lets a row pull by its tokens, so w = M/N. Tokens of a rollout count alike.
    - `seq-mean-token-mean`: verl lets rows pull alike, so w = 1/n. Rows of a rollout count alike.
    - `seq-mean-token-sum`, `-norm`: w = 1/n too; that long answers pull harder is what these modes are chosen for.

    Where each rollout has one row, all but `token-mean` are verl's own loss, and that is, too, if the rollouts have
    equally many tokens. A row with no trained token weighs nothing.
    """
    tokens: Counter[str] = Counter()
    rows_of: Counter[str] = Counter()
    for row in rows:
        if row.trained_tokens:
            tokens[row.rollout_id] += row.trained_tokens
            rows_of[row.rollout_id] += 1
    if loss_agg_mode == "token-mean":
        mean_tokens = tokens.total() / max(1, len(tokens))
        return [mean_tokens / tokens[row.rollout_id] if row.trained_tokens else 0.0 for row in rows]
    return [1 / rows_of[row.rollout_id] if row.trained_tokens else 0.0 for row in rows]
