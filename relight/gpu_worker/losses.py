"""verl's policy loss with weighted rows.

verl counts every row alike. Rows that share a weight are given to verl's `ppo_loss` together, and what it returns is
multiplied by the weight; with its divisors fixed for the whole mini-batch each of its aggregations is a sum over rows,
so this is its loss with each row taken as often as the weight says: policy loss, entropy and KL alike.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.metric import AggregationType, Metric
from verl.workers.config import ActorConfig
from verl.workers.utils.losses import ppo_loss


def weighted_ppo_loss(
    config: ActorConfig, model_output: dict[str, Any], data: TensorDict, dp_group: Any = None
) -> tuple[torch.Tensor, dict[str, Any]]:
    """verl's `ppo_loss` over a micro-batch whose rows weigh `row_weight` each."""
    weights: torch.Tensor = data["row_weight"]
    distinct = [weight for weight in weights.unique().tolist() if weight > 0]
    if len(distinct) <= 1 and bool((weights == weights[0]).all()):
        loss, metrics = ppo_loss(config, model_output, data, dp_group)
        return _merged([(loss, metrics, float(weights[0]), 1.0)])
    given = {name: value for name, value in model_output.items() if value is not None}
    outcomes: list[tuple[torch.Tensor, dict[str, Any], float, float]] = []
    for weight in distinct:
        indices = torch.nonzero(weights == weight).flatten()
        part = tu.index_select_tensor_dict(data, indices)
        outputs = {name: _rows(value, indices.tolist()) for name, value in given.items()}
        loss, metrics = ppo_loss(config, outputs, part, dp_group)
        outcomes.append((loss, metrics, weight, float(part["loss_mask"].sum())))
    return _merged(outcomes)


def _rows(values: Any, indices: list[int]) -> torch.Tensor:
    """The tokens of some rows of a jagged tensor, one after the other."""
    bounds = values.offsets().tolist()
    tokens = values.values()
    return torch.cat([tokens[bounds[i] : bounds[i + 1]] for i in indices])


def _merged(outcomes: list[tuple[torch.Tensor, dict[str, Any], float, float]]) -> tuple[torch.Tensor, dict[str, Any]]:
    """Sum of weighted losses; of the metrics, sums are weighted sums and means are means by trained tokens."""
    loss = torch.stack([loss * weight for loss, _, weight, _ in outcomes]).sum()
    tokens = sum(count for *_, count in outcomes)
    merged: dict[str, Any] = {}
    for name, first in outcomes[0][1].items():
        aggregation = first.aggregation if isinstance(first, Metric) else AggregationType.MEAN
        total = 0.0
        for _, metrics, weight, count in outcomes:
            value = metrics[name].aggregate() if isinstance(metrics[name], Metric) else metrics[name]
            total += float(value) * (weight if aggregation is AggregationType.SUM else count / tokens)
        merged[name] = Metric(value=total, aggregation=aggregation)
    return loss, merged
