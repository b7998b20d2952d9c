"""Turns rows into verl's tensors: mini-batches, their parts for ranks and micro-batches, and padding.

verl requires equally many rows on each rank and full micro-batches, so filler rows without trained tokens are added;
they have weight 0 and are not counted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from relight.adapter.training_rows import TrainingRow
from relight.gpu_worker.row_file import count_sequences, row_weights
from relight.types.hyperparameters import Hyperparameters, LossSequence

FILLER = -1
"""Index of a filler row."""

_FILLER_ROW = TrainingRow(rollout_id="", prompt_ids=[0], response_ids=[0], mask=[0], advantage=0.0, weight=0.0)


@dataclass(frozen=True)
class Batch:
    """All rows of an update, with one padded matrix (rows x longest response) for each quantity."""

    rows: Sequence[TrainingRow]
    weights: torch.Tensor
    columns: Mapping[str, torch.Tensor]
    sequence: LossSequence
    """What the `seq-mean` modes count."""

    def with_columns(self, **columns: torch.Tensor) -> Batch:
        return replace(self, columns={**self.columns, **columns})

    @property
    def width(self) -> int:
        return self.columns["response_mask"].shape[1]


@dataclass(frozen=True)
class Part:
    """The rows of a mini-batch that one rank holds, in micro-batches of equal size."""

    indices: list[int]
    micro_batch_size: int
    sequences: int
    """Of the whole mini-batch, on all ranks."""


def make_batch(rows: Sequence[TrainingRow], loss_agg_mode: str, sequence: LossSequence) -> Batch:
    """Rows with their masks, advantages, weights and, where known, the sampler's logprobs."""
    usual = row_weights(rows, loss_agg_mode, sequence)
    weights = [usual[i] if row.weight is None else row.weight for i, row in enumerate(rows)]
    mask = pad([row.mask for row in rows])
    advantages = mask * torch.tensor([row.advantage for row in rows]).unsqueeze(1)
    columns = {"response_mask": mask, "advantages": advantages}
    if all(row.sampled_logprobs for row in rows):
        columns["sampled_log_probs"] = pad([row.sampled_logprobs for row in rows])
    return Batch(rows, torch.tensor(weights), columns, sequence)


def pad(rows: Sequence[Sequence[float]]) -> torch.Tensor:
    """A matrix of rows of unequal length, zeros behind them."""
    matrix = torch.zeros(len(rows), max(map(len, rows)))
    for i, row in enumerate(rows):
        matrix[i, : len(row)] = torch.tensor(row, dtype=torch.float32)
    return matrix


def mini_batches(rows: Sequence[TrainingRow], numbers: Hyperparameters, seed: int) -> list[list[int]]:
    """Row indices of each mini-batch of one epoch: whole groups, with numbers of rollouts as equal as possible."""
    groups: dict[int | str, dict[str, list[int]]] = {}
    for i, row in enumerate(rows):
        members = groups.setdefault(row.rollout_id if row.group is None else row.group, {})
        members.setdefault(row.rollout_id, []).append(i)
    ordered = list(groups.values())
    if numbers.shuffle:
        order = torch.randperm(len(ordered), generator=torch.Generator().manual_seed(seed))
        ordered = [ordered[i] for i in order.tolist()]
    bounds = _bounds([len(members) for members in ordered], numbers)
    return [
        [i for members in ordered[a:b] for own in members.values() for i in own] for a, b in itertools.pairwise(bounds)
    ]


def _bounds(sizes: Sequence[int], numbers: Hyperparameters) -> list[int]:
    """The bounds of the parts into which groups of these sizes are divided; no part is empty."""
    rollouts = sum(sizes)
    if numbers.mini_batch_size is not None:
        count = min(math.ceil(rollouts / numbers.mini_batch_size), len(sizes))
    else:
        count = min(numbers.mini_batches or 1, len(sizes))
    ends = [0, *itertools.accumulate(sizes)]
    bounds = [0]
    for k in range(1, count):
        wanted = rollouts * k / count
        candidates = range(bounds[-1] + 1, len(sizes) - (count - k) + 1)
        bounds.append(min(candidates, key=lambda bound: (abs(ends[bound] - wanted), bound)))
    return [*bounds, len(sizes)]


def part_of(batch: Batch, indices: Sequence[int], rank: int, ranks: int, micro_batch_size: int) -> Part:
    """One rank's part of a mini-batch. Rows of similar length are in one micro-batch, for little padding."""
    lengths = [len(row.prompt_ids) + len(row.response_ids) for row in batch.rows]
    ordered = sorted(indices, key=lambda i: (-lengths[i], i))
    rows_a_rank = math.ceil(len(ordered) / ranks)
    micro_batches = math.ceil(rows_a_rank / micro_batch_size)
    size = math.ceil(rows_a_rank / micro_batches)
    mine = ordered[rank::ranks]
    filled = mine + [FILLER] * (micro_batches * size - len(mine))
    return Part(filled, size, count_sequences([batch.rows[i] for i in indices], batch.sequence))


def pack(batch: Batch, part: Part, temperature: float, **settings: Any) -> TensorDict:
    """verl's TensorDict of a part; `settings` are verl's own non-tensor entries."""
    rows = [_FILLER_ROW if i == FILLER else batch.rows[i] for i in part.indices]
    sequences = [row.prompt_ids + row.response_ids for row in rows]
    data = TensorDict(
        {
            "input_ids": _nested(sequences),
            "position_ids": _nested([list(range(len(sequence))) for sequence in sequences]),
            "prompts": _nested([row.prompt_ids for row in rows]),
            "responses": _nested([row.response_ids for row in rows]),
            "loss_mask": _take(batch.columns["response_mask"], part.indices),  # by which verl counts trained tokens
            "row_weight": _take(batch.weights, part.indices),
            **{name: _take(column, part.indices) for name, column in batch.columns.items()},
        },
        batch_size=[len(rows)],
    )
    tu.assign_non_tensor(
        data,
        max_seq_len=max(map(len, sequences)),
        max_response_len=batch.width,
        micro_batch_size_per_gpu=part.micro_batch_size,
        **settings,
    )
    return _with_temperature(data, [row.temperature or temperature for row in rows])


def unpack(batch: Batch, parts: Sequence[Part], values: Sequence[torch.Tensor]) -> torch.Tensor:
    """Put the rows that the ranks computed back into the batch's order."""
    matrix = torch.zeros(len(batch.rows), batch.width)
    for part, computed in zip(parts, values, strict=True):
        real = [position for position, i in enumerate(part.indices) if i != FILLER]
        matrix[[part.indices[position] for position in real]] = computed[real].float()
    return matrix


def _with_temperature(data: TensorDict, temperatures: list[float]) -> TensorDict:
    if len(set(temperatures)) == 1:
        tu.assign_non_tensor(data, temperature=temperatures[0])
    else:
        data["temperature"] = torch.tensor(temperatures)
    return data


def _take(column: torch.Tensor, indices: Sequence[int]) -> torch.Tensor:
    taken = column[[max(i, 0) for i in indices]]
    taken[[i == FILLER for i in indices]] = 0
    return taken


def _nested(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)
