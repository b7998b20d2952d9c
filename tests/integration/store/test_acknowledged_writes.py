"""What was acknowledged is there, byte for byte, though the store is killed and Postgres stops without a shutdown."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import subprocess
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import orjson

from relight.store.attempts.client import StoreClient
from relight.store.database import Database
from relight.types.wire import SpanRecord
from tests.integration.store.test_outage import own_server, server_folder, socket_folder
from tests.support.postgres import create_database
from tests.support.processes import TOKEN, free_port, store_process
from tests.support.seeds import seed_engine
from tests.support.store_kit import PostgresKit, call, opened

__all__ = ["own_server", "server_folder"]
ROUNDS = 2
WRITERS = 4


def digest(attributes: object) -> str:
    return hashlib.sha256(orjson.dumps(attributes, option=orjson.OPT_SORT_KEYS)).hexdigest()


class Writer:
    """Writes spans and model calls of one attempt, and notes what was acknowledged."""

    def __init__(self, client: StoreClient, number: int) -> None:
        self.client = client
        self.rollout = f"r{number}"
        self.acknowledged: dict[str, str] = {}
        self.calls = 0
        self.attempt_id = ""

    async def write(self, stop: asyncio.Event) -> None:
        kit = PostgresKit(None, self.client)  # type: ignore[arg-type]  # it only talks to the store
        attempt = await opened(kit, self.rollout)
        self.attempt_id = attempt.attempt_id
        dice = random.Random(self.rollout)
        while not stop.is_set():
            ids = [f"{self.rollout}-{len(self.acknowledged) + more}" for more in range(5)]
            spans = [
                SpanRecord(
                    trace_id="t", span_id=one, name="n", start_time=1.0, attributes={"x": dice.randbytes(99).hex()}
                )
                for one in ids
            ]
            await self.client.add_spans(self.rollout, attempt.attempt_id, attempt.fence, spans)
            self.acknowledged |= {span.span_id: digest(span.attributes) for span in spans}
            number = self.calls + 1
            [committed] = await self.client.commit_generations([call(attempt, number, f"h{number}")])
            assert committed.state == "committed"
            self.calls = number


async def test_every_acknowledged_write_is_there_after_kills_of_store_and_postgres(
    own_server: tuple[str, Callable[..., None]], tmp_path: Path
) -> None:
    url, control = own_server
    name_url = await create_database(url)
    database = await Database.connect(name_url)
    kit = PostgresKit(database, None)  # type: ignore[arg-type]  # it only seeds
    await kit.start()
    await seed_engine(database)
    for number in range(WRITERS):
        await kit.add_rollout(f"r{number}")
    await database.close()
    dice, port, stop = random.Random(1), free_port(), asyncio.Event()
    start = ("-o", subprocess.list2cmdline(["-h", "", "-k", socket_folder(url)]), "-l", "/dev/null", "start")
    async with StoreClient(f"http://127.0.0.1:{port}", TOKEN, retry_seconds=120) as client:
        writers = [Writer(client, number) for number in range(WRITERS)]
        async with asyncio.TaskGroup() as group:
            writing = [group.create_task(writer.write(stop)) for writer in writers]
            for _ in range(ROUNDS):
                async with AsyncExitStack() as stack:
                    _, pid = await stack.enter_async_context(store_process(name_url, tmp_path / "store.log", port))
                    written = sum(writer.calls for writer in writers)
                    async with asyncio.timeout(60):
                        while sum(writer.calls for writer in writers) < written + WRITERS:  # noqa: ASYNC110
                            await asyncio.sleep(0.02)
                    await asyncio.to_thread(control, "-m", "immediate", "stop")
                    await asyncio.to_thread(control, *start)
                    await asyncio.sleep(dice.uniform(0.05, 0.5))
                    os.kill(pid, signal.SIGKILL)
            async with store_process(name_url, tmp_path / "store.log", port):
                stop.set()
                await asyncio.wait(writing, timeout=60)
    database = await Database.connect(name_url)
    for writer in writers:
        rows = await database.pool.fetch("select span_id, attributes from spans where rollout_id = $1", writer.rollout)
        stored = {row["span_id"]: digest(row["attributes"]) for row in rows}
        assert len(stored) == len(rows)
        assert stored == writer.acknowledged
        numbers = await database.pool.fetch(
            "select call_number from generations where attempt_id = $1 order by 1", writer.attempt_id
        )
        assert [row["call_number"] for row in numbers] == list(range(1, writer.calls + 1))
    await database.close()
