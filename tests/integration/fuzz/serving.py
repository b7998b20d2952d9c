"""A store service in a thread of its own, with a run and rollouts from outside, for tests that ask it from without."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from tests.support.small_run import RUN, SmallRun
from tests.support.store_kit import opened
from tests.support.store_service import store_service


@dataclass
class Served:
    """Where it is, and what it holds."""

    url: str = ""
    known: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Ids that exist, by the name of the parameter."""


@contextmanager
def served(database_url: str, folder: Path) -> Generator[Served]:
    """Serve until the end of the context."""
    service, ready = Served(), threading.Event()
    stop: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    failed: list[BaseException] = []

    async def main() -> None:
        database = await Database.connect(database_url)
        store = await PostgresStore.create(database, "http://gateway")
        service.known = await _fill(database, store, folder)
        ending = asyncio.Event()
        async with store_service(store, database) as url:
            service.url = url
            stop.append((asyncio.get_running_loop(), ending))
            ready.set()
            await ending.wait()
        await database.close()

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # whatever it is, the test says it
            failed.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    try:
        if failed:
            raise failed[0]
        yield service
    finally:
        for loop, ending in stop:
            loop.call_soon_threadsafe(ending.set)
        thread.join()
    if failed:
        raise failed[0]


async def _fill(database: Database, store: PostgresStore, folder: Path) -> dict[str, list[str]]:
    """A run after its first step, and two rollouts from outside, one of them under way."""
    run = SmallRun(database, store, folder)
    await run.begin()
    await run.sample(1)
    for rollout_id in ("outside-1", "outside-2"):
        await run.kit.add_rollout(rollout_id, external=True)
    attempt = await opened(run.kit, "outside-1")
    return {
        "rollout_id": ["outside-1", "outside-2", f"{RUN}-s0001-g00-i0"],
        "attempt_id": [attempt.attempt_id, "latest"],
        "run": [RUN],
        "resources_id": [f"rs-{RUN}"],
        "worker_id": ["runner-1"],
    }
