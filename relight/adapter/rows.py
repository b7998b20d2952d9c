"""Generations to training rows.

Transition level: a row a model call. Trajectory level: a call whose prompt continues the tokens of a row of its attempt
is merged into the longest such row, with mask 0 on what the model did not write; any other starts a row. So sub-agents
that take turns have a row each, and of several choices the one that the agent went on with is continued. Advantages and
weights are set later, when the whole step is known.
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
    """A sampled answer that the agent received."""

    call_number: int
    choice: int
    prompt_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    """Of the sampled tokens, as processed for sampling."""
    temperature: float | None = None
    """At which the logprobs hold; None: at that of the step."""


class TrainingRow(BaseModel):
    """What the learner consumes: a prompt, what followed it, and what that is worth."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rollout_id: str
    attempt_id: str = ""
    calls: list[int] = Field(default_factory=list[int])
    """Numbers of the model calls that it was made of."""
    prompt_ids: list[int] = Field(min_length=1)
    response_ids: list[int] = Field(min_length=1)
    """All tokens after the prompt: the model's own, and in a chain of calls also what came back to it."""
    mask: list[int]
    """1 for each response token that the model wrote, else 0."""
    advantage: float = 0.0
    """The rollout's advantage; every trained token of the row gets it."""
    weight: float | None = Field(default=None, ge=0)
    """Factor of the row's losses; None: what `training_rows.row_weights` gives."""
    sampled_logprobs: list[float] = Field(default_factory=list[float])
    """The sampler's logprob of each response token (0 where the mask is 0); empty: unknown."""
    temperature: float | None = Field(default=None, gt=0)
    """At which all its calls were sampled; None: that of the step."""
    group: int | None = None
    """Its rollouts share a mini-batch; None: the rollout is a group of its own."""

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
    """The temperature at which an engine's logprobs hold. vLLM raises very low ones, but for 0: there it takes the
    likeliest token, with its logprob at 1."""
    if asked is None:
        return None
    return max(asked, _LOWEST_TEMPERATURE) if asked > 0 else 1.0


def rows_of(rollout_id: str, attempt_id: str, generations: Sequence[Generation], level: Level) -> list[TrainingRow]:
    """The rows of one attempt, in the order of its calls."""
    rows: list[TrainingRow] = []
    for generation in generations:
        open_rows = range(len(rows)) if level == "trajectory" else ()
        matching = [place for place in open_rows if _continues(rows[place], generation)]
        if matching:
            longest = max(matching, key=lambda place: _length(rows[place]))
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
    """The row with what came back to the model (mask 0) and what the model wrote then (mask 1)."""
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
    """Rows beyond the first of each attempt: tokens that broke, other conversations, other choices."""
    listed = [row.attempt_id for row in rows]
    return len(listed) - len(set(listed))
