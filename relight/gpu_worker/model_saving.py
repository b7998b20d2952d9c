"""Writes exports, which vLLM loads, and checkpoints, from which verl continues.

An export is the given model directory with other weights: configuration and tokenizer are copied byte for byte,
because a tokenizer that is saved again may differ. A checkpoint is verl's own: weights, optimizer,
scheduler and random state of each rank. Both become visible only when they are complete (`complete_directories.py`).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor
from verl.utils.fsdp_utils import get_fsdp_full_state_dict
from verl.utils.transformers_compat import drop_tied_target_keys

from relight.errors import CheckpointError
from relight.gpu_worker.complete_directories import Manifest, commit, temporary_name, write_manifest

_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".index.json")
_SHARD_SIZE = "4GB"


def write_export(engine: Any, model_dir: Path, final: Path, meta: dict[str, Any]) -> Manifest | None:
    """Write the engine's weights as a model directory; collective, and rank 0 has the manifest."""
    state = get_fsdp_full_state_dict(engine.module, offload_to_cpu=True, rank0_only=True)
    temporary = temporary_name(final)
    if dist.get_rank() == 0:
        _write_model(_saved_form(state, engine), model_dir, temporary)
    return _committed(temporary, final, meta)


def write_agreed(engine: Any, model_dir: Path, export: Path, target: Path) -> int:
    """Write the engine's weights in full precision where they agree with an export, and the export's elsewhere.

    An export may have lower precision than the trainer: an element that, cast, equals the export's is kept, or the
    small changes of many steps would be rounded away. Collective; rank 0 returns how many elements did not agree.
    """
    state = get_fsdp_full_state_dict(engine.module, offload_to_cpu=True, rank0_only=True)
    differing = 0
    if dist.get_rank() == 0:
        held = _whole(state, engine)
        published = _weights_in(export)
        if held.keys() != published.keys():
            raise CheckpointError(f"{export} holds other weights than the model: {held.keys() ^ published.keys()}")
        for name, value in published.items():
            same = held[name].to(value.dtype) == value
            held[name] = torch.where(same, held[name], value.to(held[name].dtype)).contiguous()
            differing += int((~same).sum())
        _write_model(held, model_dir, target)
    dist.barrier()
    return differing


def _write_model(weights: dict[str, torch.Tensor], model_dir: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    _copy_all_but_weights(model_dir, target)
    save_torch_state_dict(weights, target, max_shard_size=_SHARD_SIZE)


def _weights_in(directory: Path) -> dict[str, torch.Tensor]:
    return {name: value for path in sorted(directory.glob("*.safetensors")) for name, value in load_file(path).items()}


def write_checkpoint(engine: Any, final: Path, version: int, meta: dict[str, Any]) -> Manifest | None:
    """Have verl save all that it needs to continue; collective, and rank 0 has the manifest."""
    temporary = _shared_temporary(final)
    engine.save_checkpoint(str(temporary), global_step=version)
    return _committed(temporary, final, meta)


def _committed(temporary: Path, final: Path, meta: dict[str, Any]) -> Manifest | None:
    manifest = None
    if dist.get_rank() == 0:
        write_manifest(temporary, meta)
        manifest = commit(temporary, final)
    dist.barrier()
    return manifest


def _shared_temporary(final: Path) -> Path:
    """One temporary directory for all ranks: its name must not depend on the process."""
    temporary = final.with_name(f".{final.name}.tmp-ranks")
    if dist.get_rank() == 0:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    dist.barrier()
    return temporary


def _saved_form(state: dict[str, Any], engine: Any) -> dict[str, torch.Tensor]:
    """Plain tensors in the precision of the given model."""
    dtype = _given_dtype(engine)
    return {
        name: (value.to(dtype) if value.is_floating_point() else value).contiguous().clone()
        for name, value in _whole(state, engine).items()
    }


def _whole(state: dict[str, Any], engine: Any) -> dict[str, torch.Tensor]:
    """Plain tensors without the names of tied weights."""
    module = getattr(engine.module, "_fsdp_wrapped_module", engine.module)
    config = engine.model_config.hf_config
    drop_tied_target_keys(state, module, config)
    return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in state.items()}


def _given_dtype(engine: Any) -> torch.dtype:
    dtype = getattr(engine.model_config.hf_config, "dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


def _copy_all_but_weights(source: Path, target: Path) -> None:
    for path in sorted(source.iterdir()):
        if path.is_file() and not path.name.startswith(".") and not path.name.endswith(_WEIGHT_SUFFIXES):
            if path.name == "manifest.json":
                continue
            shutil.copyfile(path, target / path.name)
