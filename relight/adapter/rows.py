"""Generations to training rows.

Transition level: a row a model call. Trajectory level: calls whose prompt continues the tokens so far are merged into
one row, with mask 0 on what the model did not write; where the tokens break, a new row starts. Advantages and weights
are set later, when the whole step is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Level = Literal["transition", "trajectory"]


@dataclass(frozen=True)
class Generation:
    """A sampled answer that the agent received."""

    call_number: int
    choice: int
    prompt_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    """Of the sampled tokens, as processed for sampling."""


@dataclass(frozen=True)
class TrainingRow:
    """What the learner consumes. Lists run over the response's tokens, but for `prompt_ids` and `calls`."""

    rollout_id: str
    attempt_id: str
    calls: list[int]
    prompt_ids: list[int]
    response_ids: list[int]
    mask: list[int]
    """1 on tokens that the policy wrote."""
    sampled_logprobs: list[float]
    """0 where the mask is 0."""
    advantage: float = 0.0
    weight: float = 1.0


def rows_of(rollout_id: str, attempt_id: str, generations: Sequence[Generation], level: Level) -> list[TrainingRow]:
    """The rows of one attempt, in the order of its calls."""
    rows: list[TrainingRow] = []
    for generation in generations:
        if level == "trajectory" and rows and _continues(rows[-1], generation):
            rows[-1] = _merged(rows[-1], generation)
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
    )


def _continues(row: TrainingRow, generation: Generation) -> bool:
    so_far = row.prompt_ids + row.response_ids
    return generation.choice == 0 and generation.prompt_ids[: len(so_far)] == so_far


def _merged(row: TrainingRow, generation: Generation) -> TrainingRow:
    """The row with what the world answered (mask 0) and what the model wrote then (mask 1)."""
    between = generation.prompt_ids[len(row.prompt_ids) + len(row.response_ids) :]
    return replace(
        row,
        calls=[*row.calls, generation.call_number],
        response_ids=row.response_ids + between + generation.token_ids,
        mask=row.mask + [0] * len(between) + [1] * len(generation.token_ids),
        sampled_logprobs=row.sampled_logprobs + [0.0] * len(between) + generation.logprobs,
    )


def merge_breaks(rows: Iterable[TrainingRow]) -> int:
    """How often a rollout's tokens broke: its rows beyond the first."""
    listed = [row.attempt_id for row in rows]
    return len(listed) - len(set(listed))
