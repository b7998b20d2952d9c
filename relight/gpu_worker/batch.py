"""Rows as verl's tensors: which make a mini-batch, how it is cut for ranks and micro-batches, and how it is padded.

verl wants each rank to hold equally many rows and each micro-batch to be full, so rows that train nothing fill the
gaps; they weigh nothing and are in no count.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from relight.gpu_worker.rows import TrainRow, rollout_weights
from relight.types.hyperparameters import Hyperparameters

FILLER = -1
"""Index of a row that only fills a gap."""

_FILLER_ROW = TrainRow(rollout_id="", prompt_ids=[0], response_ids=[0], mask=[0], advantage=0.0, weight=0.0)


@dataclass(frozen=True)
class Batch:
    """All rows of an update, with one padded matrix (rows x longest response) for each quantity."""

    rows: Sequence[TrainRow]
    weights: torch.Tensor
    columns: Mapping[str, torch.Tensor]

    def with_columns(self, **columns: torch.Tensor) -> Batch:
        return Batch(self.rows, self.weights, {**self.columns, **columns})

    @property
    def width(self) -> int:
        return self.columns["response_mask"].shape[1]


@dataclass(frozen=True)
class Part:
    """The rows of a mini-batch that one rank holds, in micro-batches of equal size."""

    indices: list[int]
    micro_batch_size: int
    total_weight: float
    """Of the whole mini-batch, on all ranks."""


def make_batch(rows: Sequence[TrainRow], loss_agg_mode: str) -> Batch:
    """Rows with their masks, advantages, weights and, where known, the sampler's logprobs."""
    usual = rollout_weights(rows, loss_agg_mode)
    weights = [
        0.0 if not row.trained_tokens else usual[i] if row.weight is None else row.weight for i, row in enumerate(rows)
    ]
    mask = pad([row.mask for row in rows])
    advantages = mask * torch.tensor([row.advantage for row in rows]).unsqueeze(1)
    columns = {"response_mask": mask, "advantages": advantages}
    if all(row.sampled_logprobs for row in rows):
        columns["sampled_log_probs"] = pad([row.sampled_logprobs for row in rows])
    return Batch(rows, torch.tensor(weights), columns)


def pad(rows: Sequence[Sequence[float]]) -> torch.Tensor:
    """A matrix of rows of unequal length, zeros behind them."""
    matrix = torch.zeros(len(rows), max(map(len, rows)))
    for i, row in enumerate(rows):
        matrix[i, : len(row)] = torch.tensor(row, dtype=torch.float32)
    return matrix


def mini_batches(rows: Sequence[TrainRow], numbers: Hyperparameters, seed: int) -> list[list[int]]:
    """Row indices of each mini-batch of one pass: whole rollouts, as evenly many in each as can be."""
    rows_of: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        rows_of.setdefault(row.rollout_id, []).append(i)
    rollouts = list(rows_of)
    if numbers.shuffle:
        order = torch.randperm(len(rollouts), generator=torch.Generator().manual_seed(seed))
        rollouts = [rollouts[i] for i in order.tolist()]
    count = _count_mini_batches(len(rollouts), numbers)
    bounds = [len(rollouts) * k // count for k in range(count + 1)]
    return [[i for name in rollouts[a:b] for i in rows_of[name]] for a, b in itertools.pairwise(bounds)]


def _count_mini_batches(rollouts: int, numbers: Hyperparameters) -> int:
    if numbers.mini_batch_size is not None:
        return math.ceil(rollouts / numbers.mini_batch_size)
    return min(numbers.mini_batches or 1, rollouts)


def part_of(batch: Batch, indices: Sequence[int], rank: int, ranks: int, micro_batch_size: int) -> Part:
    """What one rank holds of a mini-batch. Rows of like length lie together, to waste little on padding."""
    lengths = [len(row.prompt_ids) + len(row.response_ids) for row in batch.rows]
    ordered = sorted(indices, key=lambda i: (-lengths[i], i))
    rows_a_rank = math.ceil(len(ordered) / ranks)
    micro_batches = math.ceil(rows_a_rank / micro_batch_size)
    size = math.ceil(rows_a_rank / micro_batches)
    mine = ordered[rank::ranks]
    filled = mine + [FILLER] * (micro_batches * size - len(mine))
    return Part(filled, size, float(batch.weights[list(indices)].sum()))


def pack(batch: Batch, part: Part, temperature: float, **settings: Any) -> TensorDict:
    """verl's TensorDict of a part; `settings` are verl's own non-tensor entries."""
    rows = [_FILLER_ROW if i == FILLER else batch.rows[i] for i in part.indices]
    sequences = [row.prompt_ids + row.response_ids for row in rows]
    mask = _take(batch.columns["response_mask"], part.indices)
    weights = _take(batch.weights, part.indices)
    data = TensorDict(
        {
            "input_ids": _nested(sequences),
            "position_ids": _nested([list(range(len(sequence))) for sequence in sequences]),
            "prompts": _nested([row.prompt_ids for row in rows]),
            "responses": _nested([row.response_ids for row in rows]),
            # verl counts tokens by the loss mask and picks them by the response mask: the former carries the weights.
            "loss_mask": mask * weights.unsqueeze(1),
            "row_weight": weights,
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
        held = [place for place, i in enumerate(part.indices) if i != FILLER]
        matrix[[part.indices[place] for place in held]] = computed[held].float()
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
