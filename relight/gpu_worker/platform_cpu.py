"""verl on a machine without an accelerator, through verl's own plug-in points.

verl asks a platform for its device; this one is "cpu" with gloo, and its GPU-specific methods do nothing. It is
registered only if torch finds no GPU; otherwise verl's own platforms are used. The other modules don't differ.
"""

from __future__ import annotations

import functools
import os
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import torch


class _CpuDeviceModule(ModuleType):
    """Stands in for `torch.<device>` with functions that `torch.cpu` lacks."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if hasattr(torch.cpu, name):
            return getattr(torch.cpu, name)
        return functools.partial(_answer, name)


def _answer(name: str, *_args: Any, **_kwargs: Any) -> Any:
    if name == "mem_get_info":
        return (0, 0)
    if name == "get_device_name":
        return "cpu"  # verl's FLOPs counter searches it for the name of a GPU
    return 0 if name.startswith(("max_memory", "memory_")) else None


def prepare_device() -> str:
    """Choose the device, and make verl run on a CPU if there is no GPU; call it before verl is imported."""
    if torch.cuda.is_available():
        return "cuda"
    os.environ["VERL_PLATFORM"] = "cpu"
    _register_platform()
    return "cpu"


@functools.cache
def register_engines() -> None:
    """Let verl's FSDP engine serve the device "cpu"; a no-op with a GPU."""
    if torch.cuda.is_available():
        return
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    register = EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device=["cpu"])
    register(FSDPEngineWithLMHead)


@functools.cache
def _register_platform() -> None:
    """Register the platform once. verl is imported only here, since it reads VERL_PLATFORM on import."""
    from verl.plugin.platform import PlatformBase, PlatformRegistry

    PlatformRegistry.register(platform="cpu")(type("PlatformCpu", (_CpuPlatform, PlatformBase), {}))


_DEVICE_MODULE = _CpuDeviceModule("cpu")


class _CpuPlatform:
    """verl's platform interface for a CPU; the registered class also inherits verl's base class."""

    device_name = vendor_name = "cpu"
    device_module: ModuleType = _DEVICE_MODULE
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def get_device_capability(self, device_index: int = 0) -> Any:
        return (None, None)

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CPU_VISIBLE_DEVICES"

    def nvtx_range(self, msg: str) -> Any:
        return nullcontext()

    def ray_resource_name(self) -> str:
        return "CPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def _nothing(self, *_: Any, **__: Any) -> None:
        """A no-op, for functions that a CPU does not need."""

    set_device = synchronize = set_allocator_settings = empty_cache = profiler_start = profiler_stop = cudart = _nothing
