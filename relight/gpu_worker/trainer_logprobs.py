"""Logprobs of a batch's responses under the weights that a worker holds, by verl's forward pass."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from verl.utils import tensordict_utils as tu
from verl.workers.utils.padding import no_padding_2_padding

from relight.gpu_worker.tensor_batch import Batch, pack, part_of, unpack
from relight.types.hyperparameters import Hyperparameters


def logprobs_of(worker: Any, batch: Batch, numbers: Hyperparameters, micro_batch_size: int) -> torch.Tensor:
    """A matrix (rows x longest response), the same on each rank."""
    engine = worker.engine
    ranks = engine.get_data_parallel_size()
    everything = range(len(batch.rows))
    parts = [part_of(batch, everything, rank, ranks, micro_batch_size) for rank in range(ranks)]
    data = pack(
        batch,
        parts[engine.get_data_parallel_rank()],
        numbers.temperature,
        calculate_entropy=False,
        compute_loss=False,
        use_dynamic_bsz=numbers.use_dynamic_bsz,
        max_token_len_per_gpu=numbers.infer_max_token_len,
    )
    outputs = worker.infer_batch(data.clone())
    mine = no_padding_2_padding(tu.get(outputs, "log_probs"), data)
    return unpack(batch, parts, _gather(mine.float(), engine, ranks))


def _gather(mine: torch.Tensor, engine: Any, ranks: int) -> list[torch.Tensor]:
    if ranks == 1:
        return [mine]
    group = engine.get_data_parallel_group()
    gathered = [torch.empty_like(mine) for _ in range(ranks)]
    dist.all_gather(gathered, mine.contiguous(), group=group)  # by gloo, which every group here has for the CPU
    return gathered
