"""What a process of the platform reports about itself: that it is alive, its work, and its hardware.

Its work is kept in a `Doing`; `ActivityInterceptor` puts the activities of a Temporal worker there.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import platform
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import relight
from relight.errors import RelightError
from relight.observability.logs import Line
from relight.retrying import Every
from relight.types.store import Gpu, WorkerStatus
from relight.types.wire import WorkerReport

log = logging.getLogger(__name__)

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
REPORT_SECONDS = (1.0, 10.0)
"""The shortest and the longest interval of reports; the shortest also when a process becomes busy or idle."""


class Doing:
    """The current work of this process."""

    def __init__(self) -> None:
        self._items: dict[int, tuple[str, str | None]] = {}
        self._numbers = itertools.count()
        self.turned = asyncio.Event()
        """It became busy or idle."""

    @classmethod
    def counted(cls, what: str, number: int) -> Self:
        """Work that is only counted; empty if the number is 0."""
        doing = cls()
        if number:
            doing._items[next(doing._numbers)] = (f"{what}: {number}", None)
        return doing

    @contextmanager
    def at(self, what: str, rollout_id: str | None = None) -> Generator[None]:
        """Add an item until the end of the block."""
        number = next(self._numbers)
        self._items[number] = (what, rollout_id)
        if len(self._items) == 1:
            self.turned.set()
        try:
            yield
        finally:
            del self._items[number]
            if not self._items:
                self.turned.set()

    @property
    def texts(self) -> list[str]:
        """Newest last."""
        return [what for what, _ in self._items.values()]

    @property
    def rollout_id(self) -> str | None:
        """The newest rollout of the work."""
        return next((rollout for _, rollout in reversed(self._items.values()) if rollout), None)


def own_report(
    kind: str,
    doing: Doing | None = None,
    *,
    worker_id: str | None = None,
    queues: Sequence[str] = (),
    serves: Sequence[str] = (),
    gpus: Sequence[Gpu] = (),
) -> WorkerReport:
    """The report of this process as it is now."""
    host, pid, texts = platform.node(), os.getpid(), doing.texts if doing else []
    return WorkerReport(
        worker_id=worker_id or f"{kind}-{host}-{pid}",
        kind=kind,
        host=host,
        pid=pid,
        serves=list(serves),
        status=WorkerStatus.BUSY if texts else WorkerStatus.IDLE,
        doing=texts,
        current_rollout_id=doing.rollout_id if doing else None,
        version=relight.__version__,
        queues=list(queues),
        memory_bytes=memory_bytes(pid),
        gpus=list(gpus),
    )


async def keep_reporting(
    send: Callable[[WorkerReport], Awaitable[None]],
    report: Callable[[], WorkerReport],
    doing: Doing,
    seconds: tuple[float, float] = REPORT_SECONDS,
) -> None:
    """Report periodically, and when the process becomes busy or idle, until cancelled."""
    shortest, longest = seconds
    async for _ in Every(longest - shortest, wake=doing.turned):
        doing.turned.clear()
        try:
            await send(report())
        except RelightError as error:  # the store does not answer; the next report comes soon
            log.warning(Line("report_failed", error=error))
        await asyncio.sleep(shortest)


def memory_bytes(pid: int) -> int:
    """Resident memory of a process and its descendants in bytes; shared memory counts for each of them."""
    total, waiting = 0, [pid]
    while waiting:
        process = Path(f"/proc/{waiting.pop()}")
        with suppress(OSError, ValueError, IndexError):  # it has ended
            total += int((process / "statm").read_text().split()[1]) * PAGE_BYTES
            for task in (process / "task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
    return total


async def find_gpus(within_seconds: float = 10.0) -> list[Gpu]:
    """The GPUs that this process may use; none without an NVIDIA driver that answers; one that hangs never does."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and not visible.strip():
        return []
    listed = await _ask_driver(["-i", visible] if visible else [], within_seconds)
    lines = [line.rpartition(",") for line in listed]
    return [Gpu(name=name.strip(), memory_bytes=int(mib) * 1024**2) for name, _, mib in lines if mib.strip().isdigit()]


async def _ask_driver(chosen: Sequence[str], within_seconds: float) -> list[str]:
    try:
        asked = await asyncio.create_subprocess_exec(
            *("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits", *chosen),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return []
    try:
        listed, _ = await asyncio.wait_for(asked.communicate(), within_seconds)
    except TimeoutError:
        log.warning(Line("gpus_unknown", error=f"nvidia-smi gave no answer within {within_seconds:g} s"))
        with suppress(ProcessLookupError):
            asked.kill()
        return []
    return listed.decode(errors="replace").splitlines() if asked.returncode == 0 else []
