"""The two compared stores as processes: Relight's on a durable Postgres, and Agent Lightning 0.3's, in memory."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import asyncpg
import orjson

from benchmarks.store_client import Order
from tests.support.peer import peer_store
from tests.support.postgres import create_database, postgres_server
from tests.support.processes import store_process

DURABLE = ("fsync", "synchronous_commit", "full_page_writes")


@dataclass
class Side:
    """A store that answers."""

    name: str
    url: str
    pid: int

    def resident_bytes(self) -> int:
        """Memory that its process holds."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError(f"{self.name} has ended")


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that another user may enter, as Postgres must where this runs as root."""
    with tempfile.TemporaryDirectory(prefix="relight-bench-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@asynccontextmanager
async def our_side() -> AsyncGenerator[Side]:
    """Relight's service, on a Postgres with durable commits."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(open_folder())
        maintenance = await asyncio.to_thread(stack.enter_context, postgres_server(folder, durable=True))
        database_url = await create_database(maintenance)
        await _check_durable(database_url)
        url, pid = await stack.enter_async_context(store_process(database_url, folder / "store.log"))
        yield Side("relight", url, pid)


@asynccontextmanager
async def both_sides() -> AsyncGenerator[tuple[Side, Side]]:
    """Relight's, then Agent Lightning's."""
    async with our_side() as ours:
        with open_folder() as folder:
            async with peer_store(folder / "peer.log") as (url, pid):
                yield ours, Side("peer", url, pid)


async def _check_durable(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        values = {name: await connection.fetchval(f"show {name}") for name in DURABLE}
    finally:
        await connection.close()
    if set(values.values()) != {"on"}:
        raise SystemExit(f"this Postgres is not durable: {values}")


async def have_done(order: Order) -> dict[str, Any]:
    """Have a client process do its load; what it measured."""
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.store_client", stdin=pipe, stdout=pipe
    )
    try:
        out, _ = await child.communicate(orjson.dumps(asdict(order)))
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode:
        raise SystemExit(f"the client failed: {order}")
    return orjson.loads(out)


async def in_turns(sides: tuple[Side, Side], order: Order, rounds: int) -> dict[str, list[float]]:
    """The same load on both, round by round; the rate of each. The first round is a warm-up and not counted."""
    rates: dict[str, list[float]] = {side.name: [] for side in sides}
    for number in range(rounds + 1):
        for side in sides[:: -1 if number % 2 else 1]:
            done = await have_done(order.at(side.url, f"{number}"))
            print(f"round {number}: {side.name} {done['rate']:.0f}/s", file=sys.stderr, flush=True)
            if number:
                rates[side.name].append(done["rate"])
    return rates
