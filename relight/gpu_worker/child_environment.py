"""The environment of the GPU worker's children: no secret of this process reaches a model server or a trainer."""

from __future__ import annotations

import os
from collections.abc import Mapping

_PASSED_ON = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV",
    "PYTHONPATH", "PYTHONHASHSEED", "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip
_PASSED_ON_PREFIXES = (
    "LC_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "ROCR_", "HIP_", "VLLM_", "VERL_", "HF_", "TORCH_", "TORCHINDUCTOR_",
    "PYTORCH_", "TRITON_", "OMP_", "MKL_", "KMP_", "XDG_", "TOKENIZERS_", "FLASHINFER_", "SAFETENSORS_",
)  # fmt: skip
_SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "API_KEY", "CREDENTIAL")


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What of our environment a child may see, plus `extra`. Models are directories here, so the hub is not asked."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if (name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES))
        and not (any(word in name for word in _SECRET_WORDS) and name != "TOKENIZERS_PARALLELISM")
    }
    return {"HF_HUB_OFFLINE": "1", **kept, **(extra or {})}
