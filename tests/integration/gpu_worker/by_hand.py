"""An update worked out by hand: verl's estimator and losses called on the same rows, with plain torch around them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from relight.adapter.training_rows import TrainingRow
from relight.gpu_worker.platform_cpu import prepare_device, register_engines

MODES = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
SGD = {"actor.optim.optimizer": "SGD"}
DYNAMIC = {"use_dynamic_bsz": True, "max_token_len": 24, "infer_max_token_len": 24}
SMOOTH_ADAM = {"actor.optim.override_optimizer_config": {"eps": 1e-4}}
"""With its usual epsilon Adam makes a full step of the rounding error of a zero gradient."""
RANK_0 = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}

Weights = dict[str, torch.Tensor]


@contextmanager
def verl_in_this_process(folder: Path) -> Generator[None]:
    """verl with a process group of one."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in RANK_0.items():
            patch.setenv(name, value)
        patch.setenv("VERL_PLATFORM", os.environ.get("VERL_PLATFORM", ""))
        prepare_device()
        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo", init_method=(folder / "store").as_uri(), rank=0, world_size=1)
        register_engines()
        yield
        torch.distributed.destroy_process_group()


def make_row(rollout: str, seed: int, **more: Any) -> TrainingRow:
    dice = random.Random(seed)
    length = dice.randint(3, 9)
    mask = [1, *(int(dice.random() < 0.8) for _ in range(length - 1))]
    values: dict[str, Any] = {
        "rollout_id": rollout,
        "prompt_ids": [dice.randrange(4, 99) for _ in range(dice.randint(2, 7))],
        "response_ids": [dice.randrange(4, 99) for _ in range(length)],
        "mask": mask,
        "advantage": dice.uniform(-1, 1),
        "sampled_logprobs": [dice.uniform(-5, -4) for _ in range(length)],
    }
    return TrainingRow(**(values | more))


def rollouts(shape: list[int]) -> list[TrainingRow]:
    """As many rows a rollout as the shape says, with the rollout's advantage on each."""
    return [
        make_row(f"r{k}", 100 * k + i, advantage=random.Random(k).uniform(-1, 1))
        for k, rows in enumerate(shape)
        for i in range(rows)
    ]


def cut_in_two(row: TrainingRow, at: int) -> list[TrainingRow]:
    """The same tokens after the same tokens, in two rows."""
    end = len(row.response_ids)
    return [
        row.model_copy(
            update={
                "prompt_ids": [*row.prompt_ids, *row.response_ids[:first]],
                "response_ids": row.response_ids[first:last],
                "mask": row.mask[first:last],
                "sampled_logprobs": row.sampled_logprobs[first:last],
            }
        )
        for first, last in ((0, at), (at, end))
    ]


def make_trainer(model_dir: Path, startup: dict[str, Any]) -> Any:
    from relight.gpu_worker.trainer import Trainer

    return Trainer(model_dir, "cpu", startup)


def weights_of(trainer: Any) -> Weights:
    return {name: value.full_tensor().clone() for name, value in trainer.worker.engine.module.state_dict().items()}


def load_by_hand(model_dir: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="sdpa")


def differences(ours: Weights, theirs: Weights) -> float:
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


def moved(before: Weights, after: Weights) -> float:
    return differences(before, after)


def forward(model: Any, row: TrainingRow, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprobs and entropies of a row's response tokens."""
    logits = model(input_ids=torch.tensor([row.prompt_ids + row.response_ids])).logits[0]
    logprobs = (logits[len(row.prompt_ids) - 1 : -1] / temperature).log_softmax(-1)
    chosen = logprobs.gather(1, torch.tensor(row.response_ids).unsqueeze(1)).squeeze(1)
    return chosen, -(logprobs.exp() * logprobs).sum(-1)


def padded(rows: list[torch.Tensor], width: int) -> torch.Tensor:
    return torch.stack([torch.nn.functional.pad(row, (0, width - len(row))) for row in rows])


def loss_by_hand(
    model: Any,
    rows: list[TrainingRow],
    mode: str,
    *,
    sequence: str = "rollout",
    loss_mode: str = "vanilla",
    entropy_coeff: float = 0.0,
    old: dict[int, torch.Tensor] | None = None,
    correction: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    temperature: float = 1.0,
) -> torch.Tensor:
    """Losses of the trained tokens summed over each sequence, and made one as the mode says."""
    sums: dict[str, torch.Tensor] = {}
    tokens: dict[str, int] = {}
    for i, row in enumerate(rows):
        logprobs, entropies = (values.unsqueeze(0) for values in forward(model, row, row.temperature or temperature))
        before = old[i].unsqueeze(0) if old else logprobs.detach()
        loss = summed_by_verl(row, before, logprobs, loss_mode, correction)
        loss = loss - entropy_coeff * (entropies * torch.tensor([row.mask])).sum()
        name = row.rollout_id if sequence == "rollout" else str(i)
        sums[name] = sums.get(name, torch.tensor(0.0)) + loss
        tokens[name] = tokens.get(name, 0) + row.trained_tokens
    if mode == "token-mean":
        return torch.stack(list(sums.values())).sum() / sum(tokens.values())
    if mode == "seq-mean-token-mean":
        return torch.stack([value / tokens[name] for name, value in sums.items()]).mean()
    longest = max(len(row.response_ids) for row in rows)
    return torch.stack(list(sums.values())).mean() / (longest if mode.endswith("norm") else 1)


def summed_by_verl(
    row: TrainingRow,
    before: torch.Tensor,
    logprobs: torch.Tensor,
    loss_mode: str,
    correction: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor] | None,
) -> torch.Tensor:
    """verl's policy loss of a row alone, summed over its trained tokens."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import FSDPActorConfig

    mode = "seq-mean-token-sum"
    config = FSDPActorConfig(strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, loss_agg_mode=mode)
    mask = torch.tensor([row.mask], dtype=torch.float32)
    loss_function: Callable[..., Any] = get_policy_loss_fn(loss_mode)  # verl declares no names of arguments
    loss, _ = loss_function(
        old_log_prob=before,
        log_prob=logprobs,
        advantages=mask * row.advantage,
        response_mask=mask,
        loss_agg_mode=mode,
        config=config,
        rollout_is_weights=correction(before, torch.tensor([row.sampled_logprobs]), mask) if correction else None,
    )
    return loss * (row.trained_tokens if loss_mode in ("sapo", "geo_mean") else 1)  # whose own is the mean


def gradient_norm(model: Any) -> float:
    return float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
