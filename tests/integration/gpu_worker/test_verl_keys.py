"""verl's own keys in a run file: what is refused is what verl refuses, and what is taken does what verl says."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from relight.errors import ConfigError
from relight.store.training.plans import resolve_plan
from relight.types.hyperparameters import Hyperparameters, PolicyLoss, parse_hyperparameters, trainer_numbers
from relight.types.ineffective_keys import READ_BY, REJECTIONS, SET_EACH_STEP
from relight.types.learning_rate_schedule import learning_rate_factor
from relight.types.run_file import parse_run_file
from relight.types.verl_values import ARGUMENTS, ATTENTIONS, DTYPES, KERNELS, OPTIMIZERS, WITHOUT_BETAS
from tests.integration.gpu_worker.by_hand import (
    SGD,
    differences,
    load_by_hand,
    loss_by_hand,
    make_trainer,
    moved,
    rollouts,
    verl_in_this_process,
    weights_of,
)
from tests.integration.gpu_worker.tiny_model import make_tiny_model


@pytest.fixture(scope="module", autouse=True)
def verl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with verl_in_this_process(tmp_path_factory.mktemp("store")):
        yield


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def numbers_of(step: int, *, steps: int = 4, **keys: Any) -> Hyperparameters:
    """What the trainer is told in a step of a run."""
    algorithm = {"learning_rate": 0.1, "weight_decay": 0.0, "grad_clip": 1e9} | keys.pop("algorithm", {})
    file = parse_run_file({"agent": "a", "model": "m", "data": "t", "steps": steps, "algorithm": algorithm} | keys)
    plan = resolve_plan(file, {}, step, rows=5, stream_start=0, total_steps=steps)
    numbers = trainer_numbers(
        plan.algorithm, plan.sampling.temperature, plan.verl, plan.group_size, plan.scheduled_rate
    )
    return parse_hyperparameters(numbers)


@pytest.mark.parametrize("zero_indexed", [True, False])
@pytest.mark.parametrize(("warmup", "least", "cycles"), [(0, 0.0, 0.5), (3, 0.1, 0.5), (2, 0.0, 1.5)])
def test_schedules_are_verls(zero_indexed: bool, warmup: int, least: float, cycles: float) -> None:
    functional = importlib.import_module("verl.utils.torch_functional")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    cosine = functional.get_cosine_schedule_with_warmup(
        optimizer, warmup, 12, least, cycles, zero_indexed_step=zero_indexed
    )
    constant = functional.get_constant_schedule_with_warmup(optimizer, warmup)
    named = {"lr_scheduler_type": "cosine", "min_lr_ratio": least, "num_cycles": cycles}
    keys = {**named, "zero_indexed_step": zero_indexed, "lr_warmup_steps": warmup}
    flat = {f"actor.optim.{name}": value for name, value in keys.items()}
    plain = {"actor.optim.lr_warmup_steps_ratio": warmup / 12 + 1e-9}
    for step in range(1, 15):
        assert learning_rate_factor(flat, step, 12) == pytest.approx(cosine.lr_lambdas[0](step - 1))
        assert learning_rate_factor(plain, step, 12) == pytest.approx(constant.lr_lambdas[0](step - 1))


def test_a_warm_up_moves_nothing_at_first_and_half_as_far_half_way(model_dir: Path) -> None:
    rows = rollouts([1, 4, 2])
    trainer = make_trainer(model_dir, SGD)
    model = load_by_hand(model_dir)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    warmup = {"actor.optim.lr_warmup_steps": 2}
    trainer.train(1, rows, numbers_of(1, verl=warmup), seed=0)
    assert moved(model.state_dict(), weights_of(trainer)) == 0
    trainer.train(2, rows, numbers_of(2, verl=warmup), seed=0)
    loss_by_hand(model, rows, "seq-mean-token-mean").backward()
    optimizer.step()
    assert differences(weights_of(trainer), model.state_dict()) < 1e-6


def test_verls_mini_batch_size_is_a_number_of_tasks(model_dir: Path) -> None:
    rows = rollouts([1, 2, 1, 1, 3, 1])
    made: dict[str, float] = {}
    cases: list[tuple[str, dict[str, Any]]] = [
        ("verl", {"verl": {"actor.ppo_mini_batch_size": 1}}),
        ("ours", {"algorithm": {"mini_batches": 3}}),
        ("plain", {}),
    ]
    for name, keys in cases:
        update = make_trainer(model_dir, SGD).train(1, rows, numbers_of(1, group_size=2, batch_size=3, **keys), seed=0)
        made[name] = update.metrics["optimizer_steps"]
    assert made == {"verl": 3, "ours": 3, "plain": 1}


def test_sums_are_divided_by_the_scale_that_is_given(model_dir: Path) -> None:
    rows = rollouts([1, 4, 2])
    losses: list[float] = []
    for mode, verl in (("seq-mean-token-sum", {}), ("seq-mean-token-sum-norm", {"actor.loss_scale_factor": 7})):
        numbers = numbers_of(1, algorithm={"loss_agg_mode": mode}, verl=verl)
        losses.append(make_trainer(model_dir, SGD).train(1, rows, numbers, seed=0).metrics["loss"])
    assert losses[1] == pytest.approx(losses[0] / 7, rel=1e-5)


@pytest.mark.parametrize("key", sorted(READ_BY))
def test_the_losses_that_read_a_key_are_verls(key: str) -> None:
    algorithms = importlib.import_module("verl.trainer.ppo.core_algos")
    name = key.rpartition(".")[2]
    for loss in get_args(PolicyLoss):
        source = inspect.getsource(algorithms.POLICY_LOSS_REGISTRY[loss])
        assert (f"config.{name}" in source or f"policy_loss.{name}" in source or f'"{name}"' in source) == (
            loss in READ_BY[key]
        ), loss


SPECS = [0.5, 2, 0, -1, "0.5", "2", "0.5_2", "2_0.5", "_", "0_1", "", "x", "1_x", "2,3", "0.5_2,3", "0.5_2,0.1_9", ","]


def taken(check: Callable[[], object]) -> bool:
    try:
        check()
    except (ValueError, ZeroDivisionError, ConfigError):
        return False
    return True


@pytest.mark.parametrize("spec", SPECS)
def test_a_threshold_is_refused_where_verl_refuses_it(spec: Any) -> None:
    helper = importlib.import_module("verl.trainer.ppo.rollout_corr_helper")
    assert set(REJECTIONS) == helper.SUPPORTED_ROLLOUT_RS_OPTIONS

    def ours(**keys: Any) -> bool:
        return taken(lambda: parse_hyperparameters({"rollout_correction": keys}))

    assert ours(rollout_is="token", rollout_is_threshold=spec) == taken(
        lambda: helper._parse_rollout_is_threshold(spec)
    )
    for options in (["token_k1"], ["seq_max_k2"], ["token_k1", "seq_mean_k3"], ["seq_sum_k1", "seq_mean_k1"]):
        assert ours(rollout_rs=",".join(options), rollout_rs_threshold=spec) == taken(
            lambda options=options: helper._parse_rollout_rs_thresholds(options, spec)
        ), options


def test_the_optimizers_that_may_be_named_are_those_of_torch_that_verl_can_build_and_step() -> None:
    config = importlib.import_module("verl.workers.config.optimizer")
    named = [name for name in dir(torch.optim) if isinstance(getattr(torch.optim, name), type)]

    def steps(name: str) -> bool:
        """Whether it takes what a model has: matrices and vectors."""
        parameters = [torch.nn.Parameter(torch.ones(4, 4)), torch.nn.Parameter(torch.ones(4))]
        try:
            optimizer = config.build_optimizer(parameters, config.FSDPOptimizerConfig(optimizer=name))
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        except (TypeError, ValueError, NotImplementedError):
            return False
        assert ("betas" in optimizer.param_groups[0]) == (name not in WITHOUT_BETAS), name
        return True

    assert {name for name in named if steps(name)} == set(OPTIMIZERS["torch.optim"])


def test_the_arguments_that_an_optimizer_may_be_given_are_torchs() -> None:
    ours = ("params", *SET_EACH_STEP)
    taken = {
        name: {one for one in inspect.signature(getattr(torch.optim, name)).parameters if one not in ours}
        for name in OPTIMIZERS["torch.optim"]
    }
    assert {name: set(arguments) for name, arguments in ARGUMENTS.items()} == taken


def test_the_names_of_data_types_and_kernels_are_verls_and_transformers() -> None:
    dtypes = importlib.import_module("verl.utils.torch_dtypes")
    known = [*dtypes.HALF_LIST, *dtypes.FLOAT_LIST, *dtypes.BFLOAT_LIST]
    assert {str(name) for name in known if not isinstance(name, torch.dtype)} == set(DTYPES)
    patch = importlib.import_module("verl.models.transformers.monkey_patch")
    assert all(f'"{name}"' in inspect.getsource(patch.patch_forward_with_backends) for name in KERNELS)
    attention = importlib.import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    plain = {name for name in attention.valid_keys() if "|" not in name}
    assert plain | {"eager"} >= set(ATTENTIONS)
