"""Makes training rows from generations.

Transition level: one row for each model call. Trajectory level: a call whose prompt continues the tokens of a row of
its attempt is merged into the longest such row, with mask 0 on tokens that the model did not write; any other call
starts a row. So alternating sub-agents get a row each, and of several choices the one that the agent continued is
extended. Advantages and weights are set later, when the whole step is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Level = Literal["transition", "trajectory"]
_LOWEST_TEMPERATURE = 0.01


@dataclass(frozen=True)
class Generation:
    """A sampled answer that was delivered to the agent."""

    call_number: int
    choice: int
    prompt_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    """One for each of `token_ids`, natural logarithm, as processed for sampling."""
    temperature: float | None = None
    """The temperature of the logprobs; None: that of the step."""


class TrainingRow(BaseModel):
    """One row of training data: prompt, response, and the response's advantage. The lists below `response_ids` have its
    length.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    rollout_id: str
    attempt_id: str = ""
    calls: list[int] = Field(default_factory=list[int])
    """Numbers of the model calls that it was made of."""
    prompt_ids: list[int] = Field(min_length=1)
    response_ids: list[int] = Field(min_length=1)
    """All tokens after the prompt: the model's, and in a chain of calls also the messages between them."""
    mask: list[int]
    """1 for each response token that the model wrote, else 0."""
    advantage: float = 0.0
    """The rollout's advantage; every trained token of the row gets it."""
    weight: float | None = Field(default=None, ge=0)
    """Factor of the row's losses; None: what `row_file.row_weights` gives."""
    sampled_logprobs: list[float] = Field(default_factory=list[float])
    """The sampler's logprob of each response token (0 where the mask is 0); empty: unknown."""
    temperature: float | None = Field(default=None, gt=0)
    """The temperature of all its calls; None: that of the step."""
    group: int | None = None
    """Rollouts of a group share a mini-batch; None: the rollout is a group of its own."""

    @model_validator(mode="after")
    def _lengths_agree(self) -> TrainingRow:
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


def temperature_of_logprobs(asked: float | None) -> float | None:
    """The temperature of an engine's logprobs. vLLM raises very low temperatures to 0.01; at 0 it takes the likeliest
    token and returns its logprob at temperature 1.
    """
    if asked is None:
        return None
    return max(asked, _LOWEST_TEMPERATURE) if asked > 0 else 1.0


def rows_of(rollout_id: str, attempt_id: str, generations: Sequence[Generation], level: Level) -> list[TrainingRow]:
    """The rows of one attempt, in the order of its calls; `generations` have to be in this order too."""
    rows: list[TrainingRow] = []
    for generation in generations:
        open_rows = range(len(rows)) if level == "trajectory" else ()
        matching = [index for index in open_rows if _continues(rows[index], generation)]
        if matching:
            longest = max(matching, key=lambda index: _length(rows[index]))
            rows[longest] = _merged(rows[longest], generation)
        else:
            rows.append(_row(rollout_id, attempt_id, generation))
    return rows


def _row(rollout_id: str, attempt_id: str, generation: Generation) -> TrainingRow:
    return TrainingRow(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        calls=[generation.call_number],
        prompt_ids=generation.prompt_ids,
        response_ids=generation.token_ids,
        mask=[1] * len(generation.token_ids),
        sampled_logprobs=generation.logprobs,
        temperature=generation.temperature,
    )


def _continues(row: TrainingRow, generation: Generation) -> bool:
    prompt, start, end = generation.prompt_ids, len(row.prompt_ids), _length(row)
    return (
        generation.temperature == row.temperature
        and prompt[end - 1 : end] == row.response_ids[-1:]  # one token rules out most rows that don't match
        and prompt[:start] == row.prompt_ids
        and prompt[start:end] == row.response_ids
    )


def _length(row: TrainingRow) -> int:
    return len(row.prompt_ids) + len(row.response_ids)


def _merged(row: TrainingRow, generation: Generation) -> TrainingRow:
    """The row, extended by the tokens between the calls (mask 0) and the generation (mask 1)."""
    between = generation.prompt_ids[len(row.prompt_ids) + len(row.response_ids) :]
    return row.model_copy(
        update={
            "calls": [*row.calls, generation.call_number],
            "response_ids": row.response_ids + between + generation.token_ids,
            "mask": row.mask + [0] * len(between) + [1] * len(generation.token_ids),
            "sampled_logprobs": row.sampled_logprobs + [0.0] * len(between) + generation.logprobs,
        }
    )


def merge_breaks(rows: Iterable[TrainingRow]) -> int:
    """The number of rows beyond the first of each attempt: changed tokens, other conversations, other choices."""
    listed = [row.attempt_id for row in rows]
    return len(listed) - len(set(listed))
