"""Children of the GPU worker: started in a session of their own, logged to a file, killed with all that they started.

They get a clean environment, so that no secret of ours reaches a model server or a trainer. What they say and when
they are ready is their owners' business (`engine.py`, `trainer_client.py`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from relight.gpu_worker import guard

_PASSED_ON = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV",
    "PYTHONPATH", "PYTHONHASHSEED", "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip
_PASSED_ON_PREFIXES = (
    "LC_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "ROCR_", "HIP_", "VLLM_", "VERL_", "HF_", "TORCH_", "TORCHINDUCTOR_",
    "PYTORCH_", "TRITON_", "OMP_", "MKL_", "KMP_", "XDG_", "TOKENIZERS_", "FLASHINFER_", "SAFETENSORS_",
)  # fmt: skip
_SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "API_KEY", "CREDENTIAL")
_TAIL_BYTES = 64 * 1024


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What of our environment a child may see, plus `extra`. Models are directories here: nobody asks the hub."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if (name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES))
        and not (any(word in name for word in _SECRET_WORDS) and name != "TOKENIZERS_PARALLELISM")
    }
    return {"HF_HUB_OFFLINE": "1", **kept, **(extra or {})}


def log_tail(path: Path, lines: int = 20) -> str:
    """The last lines of a log, for an error message."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return "(no log)"
    return "\n".join(text.splitlines()[-lines:])


class ChildProcess:
    """One child under a guard, and everything that it starts."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self.log = log

    @classmethod
    async def start(
        cls, argv: Sequence[str], *, environment: Mapping[str, str], log: Path, pass_fds: Sequence[int] = ()
    ) -> ChildProcess:
        """Start `argv` in a new session, its output appended to `log`; it dies when this process does."""
        log.parent.mkdir(parents=True, exist_ok=True)
        launcher = (sys.executable, "-I", "-S", guard.__file__, str(os.getpid()))
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *launcher,
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env=dict(environment),
                pass_fds=tuple(pass_fds),
                start_new_session=True,
            )
        return cls(process, log)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    @property
    def pids(self) -> list[int]:
        """The child and all that it started, as far as they live."""
        return guard.members_of_session(self.pid)

    async def wait(self) -> int:
        """Wait until the child itself has ended; what it started may live on until `kill`."""
        return await self._process.wait()

    async def stop(self, grace_seconds: float) -> None:
        """SIGTERM for the child, then after `grace_seconds` SIGKILL for all of it."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await self._process.wait()
        await self.kill()

    async def kill(self) -> None:
        """SIGKILL the child and all that it started."""
        guard.kill_session(self.pid)
        await self._process.wait()
