"""Client of vLLM's health and control routes, over its unix socket. The gateway makes the model calls."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from relight.errors import EngineError
from relight.gpu_worker.complete_directories import WEIGHTS_SUFFIX

_BASE = "http://engine"
_TAIL_CHARACTERS = 2000
_HEALTH_SECONDS = 5.0


_RUNNING = "vllm:num_requests_running"
_TOKENS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")


@dataclass(frozen=True)
class EngineLoad:
    """An engine's calls and tokens, from vLLM's metrics."""

    running: float
    """Calls under way."""
    tokens: float
    """Prompt and sampled tokens since the start."""


class EngineClient:
    """One engine's control routes."""

    def __init__(self, socket_path: Path, *, timeout_seconds: float = 600.0) -> None:
        self._socket_path = socket_path
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections; the next call opens them again."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def health(self) -> bool:
        """Whether the engine answers that it is healthy."""
        try:
            await self._call("GET", "/health", timeout=aiohttp.ClientTimeout(total=_HEALTH_SECONDS))
        except EngineError:
            return False
        return True

    async def read_load(self) -> EngineLoad | None:
        """The engine's calls and tokens; None if it does not answer."""
        try:
            text = await self._call("GET", "/metrics", timeout=aiohttp.ClientTimeout(total=_HEALTH_SECONDS))
        except EngineError:
            return None
        samples = [line.rpartition(" ") for line in (text or "").splitlines() if not line.startswith("#")]
        running = [float(value) for name, _, value in samples if name.partition("{")[0] == _RUNNING]
        tokens = [float(value) for name, _, value in samples if name.partition("{")[0] in _TOKENS]
        return EngineLoad(sum(running), sum(tokens)) if running and tokens else None

    async def models(self) -> list[str]:
        """Names that the engine serves."""
        return [entry["id"] for entry in (await self._call("GET", "/v1/models"))["data"]]

    async def load(self, export_dir: Path) -> None:
        """Pause the running engine and load the weights of `export_dir`; it stays paused until `resume`.

        Calls under way are frozen meanwhile, not lost: their next token comes from the new weights, which recompute
        all that came before. An engine that fails to load weights has neither the old nor the new ones and has to be
        started again.

        Raises:
            EngineError: the directory has no weights (the engine goes on serving), or the engine failed to load them.
        """
        if not await asyncio.to_thread(_has_weights, export_dir):
            raise EngineError(f"{export_dir} can't be loaded: it holds no *{WEIGHTS_SUFFIX}")
        await self._call("POST", "/pause", params={"mode": "keep"})
        try:
            await self._reload(export_dir)
        except EngineError as error:
            raise EngineError(f"{export_dir} was not loaded, and the engine must be started again: {error}") from error

    async def paused(self) -> bool:
        """Whether model calls are frozen."""
        return bool((await self._call("GET", "/is_paused"))["is_paused"])

    async def resume(self) -> None:
        """Let frozen model calls go on; harmless if there are none."""
        await self._call("POST", "/resume")

    async def sleep(self, level: int = 1) -> None:
        """Free the GPU's memory: level 1 keeps the weights in main memory, 2 drops them. Calls under way wait.

        The engine needs `vllm.enable_sleep_mode`, which exists on GPUs only.
        """
        await self._call("POST", "/sleep", params={"level": str(level), "mode": "keep"})

    async def wake_up(self) -> None:
        """Allocate the GPU's memory again."""
        await self._call("POST", "/wake_up")

    async def _reload(self, export_dir: Path) -> None:
        arguments = {"weights_path": str(export_dir)}
        await self._call("POST", "/collective_rpc", json={"method": "reload_weights", "kwargs": arguments})
        # Cache entries of the old weights must not be used for new prompts or the rest of answers under way.
        await self._call("POST", "/reset_prefix_cache", params={"reset_running_requests": "true"})

    async def _call(self, method: str, path: str, **arguments: Any) -> Any:
        try:
            async with self._open_session().request(method, _BASE + path, **arguments) as response:
                body = await response.read()
                if response.status >= 400:
                    said = body.decode(errors="replace")[-_TAIL_CHARACTERS:]
                    raise EngineError(f"{method} {path}: {response.status} {said}")
                return await response.json() if response.content_type == "application/json" else body.decode()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineError(f"{method} {path}: can't reach the engine at {self._socket_path}: {error!r}") from error

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            # A connection for each call: vLLM drops one on which a call failed, which the next would notice too late.
            connector = aiohttp.UnixConnector(path=str(self._socket_path), force_close=True)
            self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout)
        return self._session


def _has_weights(directory: Path) -> bool:
    return any(directory.glob(f"*{WEIGHTS_SUFFIX}"))
