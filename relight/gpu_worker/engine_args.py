"""The run file's `vllm:` keys as command-line flags.

Keys are checked against a table (`types/vllm_keys.py`), since an import of vLLM takes seconds and almost a gigabyte; a
value that vLLM refuses is an error when the engine parses its command line.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import Any

import orjson

from relight.types.vllm_keys import check_run_file_keys, check_vllm_keys


def merged_keys(run_file: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a run file, and over them the GPU worker's own; written with `_`.

    Raises:
        ConfigError: naming one that the run file may not set.
    """
    check_run_file_keys(run_file)
    return {key.replace("-", "_"): value for keys in (run_file, own) for key, value in keys.items()}


def vllm_flags(keys: Mapping[str, Any]) -> list[str]:
    """Command-line flags for `vllm:` keys, written with `_` or `-`.

    Raises:
        ConfigError: naming a key that vLLM does not know, or that is Relight's to set.
    """
    check_vllm_keys(keys)
    flags: list[str] = []
    for key, value in keys.items():
        flags += _flag(key.replace("_", "-"), value)
    return flags


def shares_gpu(keys: Mapping[str, Any]) -> bool:
    """Whether engine and trainer take turns on one GPU, for which the engine's sleep mode is needed."""
    return any(value for key, value in keys.items() if key.replace("-", "_") == "enable_sleep_mode")


def is_cpu_build() -> bool:
    """Whether the vLLM that is installed runs on a CPU."""
    try:
        return "cpu" in importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return True  # the community build has another name


def _flag(name: str, value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, dict):
        return [f"--{name}", orjson.dumps(value).decode()]
    if isinstance(value, list):
        return [f"--{name}", *(str(item) for item in value)]  # pyright: ignore[reportUnknownVariableType]
    return [f"--{name}", str(value)]
