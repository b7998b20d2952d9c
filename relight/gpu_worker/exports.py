"""What the trainer writes: an export that vLLM loads, and a checkpoint that verl goes on from.

An export is the model directory that was given, with other weights: configuration and tokenizer are its very bytes,
because a tokenizer that is saved again need not be the same one. A checkpoint is verl's own: weights, optimizer,
scheduler and random state of each rank. Both become visible only when they are complete (`checkpoints.py`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from huggingface_hub import save_torch_state_dict
from torch.distributed.tensor import DTensor
from verl.utils.fsdp_utils import get_fsdp_full_state_dict
from verl.utils.transformers_compat import drop_tied_target_keys

from relight.gpu_worker.checkpoints import Manifest, commit, temporary_name, write_manifest

_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".index.json")
_SHARD_SIZE = "4GB"


def write_export(engine: Any, model_dir: Path, final: Path, meta: dict[str, Any]) -> Manifest | None:
    """Write the engine's weights as a model directory; collective, and rank 0 has the manifest."""
    state = get_fsdp_full_state_dict(engine.module, offload_to_cpu=True, rank0_only=True)

    def write(directory: Path) -> None:
        weights = _saved_form(state, engine)
        _copy_all_but_weights(model_dir, directory)
        save_torch_state_dict(weights, directory, max_shard_size=_SHARD_SIZE)

    return _on_rank_0(final, meta, write)


def write_checkpoint(engine: Any, final: Path, version: int, meta: dict[str, Any]) -> Manifest | None:
    """Have verl save all that it needs to go on; collective, and rank 0 has the manifest."""
    temporary = _shared_temporary(final)
    engine.save_checkpoint(str(temporary), global_step=version)
    manifest = None
    if dist.get_rank() == 0:
        write_manifest(temporary, meta)
        manifest = commit(temporary, final)
    dist.barrier()
    return manifest


def _on_rank_0(final: Path, meta: dict[str, Any], write: Callable[[Path], None]) -> Manifest | None:
    manifest = None
    if dist.get_rank() == 0:
        temporary = temporary_name(final)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        write(temporary)
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
    """Plain tensors in the precision that the model was given in, without names that only repeat another."""
    module = getattr(engine.module, "_fsdp_wrapped_module", engine.module)
    config = engine.model_config.hf_config
    drop_tied_target_keys(state, module, config)
    dtype = _given_dtype(engine)
    whole = {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in state.items()}
    return {
        name: (value.to(dtype) if value.is_floating_point() else value).contiguous().clone()
        for name, value in whole.items()
    }


def _given_dtype(engine: Any) -> torch.dtype:
    dtype = getattr(engine.model_config.hf_config, "dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


def _copy_all_but_weights(source: Path, target: Path) -> None:
    for path in sorted(source.iterdir()):
        if path.is_file() and not path.name.startswith(".") and not path.name.endswith(_WEIGHT_SUFFIXES):
            if path.name == "manifest.json":
                continue
            shutil.copyfile(path, target / path.name)
