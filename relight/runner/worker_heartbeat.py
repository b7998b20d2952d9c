"""Reports a worker of the 0.3 API to the store: that it is there, and how busy its host is."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import random
import shutil
import subprocess
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from relight.retrying import in_background
from relight.store.base import LightningStore
from relight.store.client import LightningStoreClient

log = logging.getLogger(__name__)
LaunchMode = Literal["asyncio", "thread"]
_GIB: Final = 2**30
_SHORTEST_SECONDS: Final = 0.01
_JOIN_SECONDS: Final = 5.0
"""How long the end waits for a report under way, which a store that is away delays."""
_GPU_SECONDS: Final = 5
_GPU_FIELDS: Final = ("gpu", "util_pct", "mem_used_mb", "mem_total_mb", "temp_c")
_GPU_QUERY: Final = "--query-gpu=name,utilization.gpu,memory.used,memory.total,temperature.gpu"


class WorkerHeartbeat:
    """Reports every `interval` seconds, give or take `jitter`; an interval of 0 or less: never."""

    def __init__(self, interval: float, jitter: float, mode: LaunchMode, include_gpu: bool) -> None:
        if mode not in ("asyncio", "thread"):
            raise ValueError(f"heartbeat_launch_mode: {mode!r} is neither 'asyncio' nor 'thread'")
        self._interval = interval
        self._jitter = jitter
        self._mode = mode
        self._include_gpu = include_gpu

    @asynccontextmanager
    async def reporting(self, store: LightningStore, worker_id: str) -> AsyncGenerator[None]:
        """Report during the block: from this event loop, or from that of a thread, which a busy one does not delay."""
        if self._interval <= 0:
            yield
            return
        in_thread = self._mode == "thread"
        async with self._in_thread(store, worker_id) if in_thread else in_background(self._report(store, worker_id)):
            yield

    @asynccontextmanager
    async def _in_thread(self, store: LightningStore, worker_id: str) -> AsyncGenerator[None]:
        stop = threading.Event()

        async def report() -> None:
            try:
                await self._report(store, worker_id, stop)
            finally:
                if isinstance(store, LightningStoreClient):  # it has a session for each event loop
                    await store.aclose()

        def run() -> None:
            asyncio.run(report())

        thread = threading.Thread(target=run, name=f"{worker_id}-heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            await asyncio.to_thread(thread.join, _JOIN_SECONDS)

    async def _report(self, store: LightningStore, worker_id: str, stop: threading.Event | None = None) -> None:
        while stop is None or not stop.is_set():
            try:
                await store.update_worker(worker_id, await asyncio.to_thread(system_snapshot, self._include_gpu))
            except Exception as error:  # a store of any kind; the next report comes soon
                log.warning("worker %s: its heartbeat was not stored: %s", worker_id, error)
            seconds = jittered(self._interval, self._jitter)
            await (asyncio.sleep(seconds) if stop is None else asyncio.to_thread(stop.wait, seconds))


def jittered(seconds: float, jitter: float) -> float:
    """These seconds, give or take the jitter, so that many workers don't act at once."""
    return max(seconds + random.uniform(-jitter, jitter), _SHORTEST_SECONDS)


def system_snapshot(include_gpu: bool = False) -> dict[str, Any]:
    """Host, processors, memory, disk and, if wanted, GPUs, with 0.3's names."""
    disk = shutil.disk_usage("/")
    return {
        "timestamp": datetime.now().astimezone().isoformat(timespec="seconds"),
        "host": platform.node(),
        "os": platform.platform(),
        "cpu_threads": os.cpu_count(),
        "load_1_minute": os.getloadavg()[0],
        **_memory(),
        "disk_used_gb": round(disk.used / _GIB, 2),
        "disk_total_gb": round(disk.total / _GIB, 2),
        **({"gpus": _gpus()} if include_gpu else {}),
    }


def _memory() -> dict[str, float]:
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    kib = {fields[0].rstrip(":"): int(fields[1]) for fields in lines}
    total, free = kib["MemTotal"] * 1024, kib["MemAvailable"] * 1024
    return {"mem_used_gb": round((total - free) / _GIB, 2), "mem_total_gb": round(total / _GIB, 2)}


def _gpus() -> list[dict[str, str]]:
    command = ["nvidia-smi", _GPU_QUERY, "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_GPU_SECONDS).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [dict(zip(_GPU_FIELDS, line.split(", "), strict=False)) for line in found.splitlines()]
