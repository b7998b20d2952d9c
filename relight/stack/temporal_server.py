"""The embedded Temporal server: the CLI's dev server on a SQLite file.

WAL with synchronous=NORMAL triples its speed; a killed process loses nothing by it (a power cut may lose the last
moments, which Postgres has on record).
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from temporalio.client import Client

from relight.errors import TemporalError
from relight.processes.child import tied_to_parent
from relight.stack import temporal_binary
from relight.stack.ports import LOOPBACK
from relight.temporal.pollers import pollers_of


def source_folder() -> Path | None:
    """The folder of the server's Go module in a checkout; an installed wheel has none."""
    folder = Path(__file__).resolve().parents[2] / "tools" / "temporal"
    return folder if (folder / "go.mod").is_file() else None


async def obtain(home: Path, on_note: Callable[[str], None] = lambda note: None) -> temporal_binary.Binary:
    """Find a server, else download it, else build it; `on_note` gets messages about unused servers and long steps.

    Raises:
        TemporalError: no way worked; the message lists them.
    """
    search = await asyncio.to_thread(temporal_binary.find, home)
    for note in search.notes:
        on_note(note)
    if search.found:
        return search.found
    on_note("no Temporal server on this machine: downloading one, or else building it (minutes)")
    cache = temporal_binary.cache_folder()
    reasons = list(search.notes)
    try:
        await temporal_binary.download(cache / f"temporal-{temporal_binary.CLI_VERSION}")
    except (RuntimeError, OSError) as error:
        reasons.append(f"the download failed: {error}")
        await _build(cache, home, reasons)
    found = (await asyncio.to_thread(temporal_binary.find, home)).found
    if not found:
        raise TemporalError("no Temporal server: " + "; ".join(reasons) + "\n" + temporal_binary.WAYS)
    return found


async def _build(cache: Path, home: Path, reasons: list[str]) -> None:
    source = source_folder()
    if source is None:
        return
    destination = cache / f"temporal-{temporal_binary.CLI_VERSION}"
    log, launcher = home / "logs" / "temporal-build.log", tied_to_parent([], signal.SIGTERM, None)
    stop = threading.Event()

    def build() -> None:
        with tempfile.TemporaryDirectory(prefix="relight-go-") as scratch:
            temporal_binary.build(source, destination, Path(scratch) / "go", log, launcher, stop)

    try:
        await asyncio.to_thread(build)
    except (RuntimeError, OSError) as error:
        reasons.append(str(error))
    finally:
        stop.set()  # after a cancellation the build goes on: a thread can't be cancelled


def command(binary: Path, database: Path, namespace: str, port: int, ui_port: int) -> list[str]:
    """The command that starts the dev server, on loopback."""
    return [
        *(str(binary), "server", "start-dev", "--db-filename", str(database), "--namespace", namespace),
        *("--ip", LOOPBACK, "--port", str(port), "--ui-port", str(ui_port), "--ui-disable-news-fetch"),
        *("--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", "synchronous=NORMAL"),
        # Activities of the orchestrator's own queue come with the answer to the workflow task, a round trip less each.
        *("--dynamic-config-value", "system.enableActivityEagerExecution=true"),
        # A batch is the parent of many children. Without this a child's start or end that finds it locked for half a
        # second is tried again only 3 seconds later.
        *("--dynamic-config-value", "history.taskSchedulerEnableExecutionQueueScheduler=true"),
        # The one shard looks for new tasks 20 times a second, which made every task wait for 50 ms once it was busy.
        *("--dynamic-config-value", "history.transferProcessorMaxPollRPS=1000"),
        # It goes on handing tasks to pollers whose connection is dead until a ping is not answered: 70 s without this.
        # It has to notice before a task that it lost so has missed its heartbeats (10 s) and is handed out again, or
        # that one is lost once more.
        *("--dynamic-config-value", 'frontend.keepAliveTime="3s"'),
        *("--dynamic-config-value", 'frontend.keepAliveTimeout="3s"'),
        *("--log-level", "warn", "--disable-config-env", "--disable-config-file"),
    ]


async def polls(client: Client, queue: str, pid: int) -> bool:
    """Whether the process polls the task queue for activities or workflows."""
    for activities in (False, True):
        found = await pollers_of(client, queue, activities=activities)
        if any(poller.identity.startswith(f"{pid}@") for poller in found):
            return True
    return False
