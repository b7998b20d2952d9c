"""A full disk stops a run, which says why and continues automatically; no half-written file counts as complete."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from relight.gpu_worker.complete_directories import verify
from tests.chaos.disks import DISKS, may_mount
from tests.chaos.stack import ChaosStack, Outcome, chaos_stack, open_folder

pytestmark = [
    pytest.mark.skipif(not may_mount(), reason="a disk of its own needs a user who may mount one"),
    pytest.mark.asyncio(loop_scope="module"),
]
STEPS = 5
PATIENCE_SECONDS = 240


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def chaos() -> AsyncGenerator[ChaosStack]:
    with open_folder() as folder:
        async with chaos_stack(folder) as stack:
            yield stack


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def undisturbed(chaos: ChaosStack) -> Outcome:
    await (await chaos.start("undisturbed", STEPS)).result()
    return await chaos.outcome("undisturbed")


async def seen(chaos: ChaosStack, run: str) -> bool:
    """The run has come to wait: for space, as its row says."""
    waiting = await chaos.database.pool.fetchval("select waiting_for from runs where run = $1", run)
    return "is full" in str(waiting)


async def refused(chaos: ChaosStack, run: str) -> bool:
    """The store takes nothing more, and says why."""
    settings = chaos.stack.settings
    noise = {"noise": {"resource_type": "prompt_template", "template": os.urandom(500_000).hex(), "engine": "f-string"}}
    headers = {"Authorization": f"Bearer {settings.token_value}"}
    url = f"{settings.store_url}/v1/agl/resources"
    async with aiohttp.ClientSession(headers=headers) as session, session.post(url, json=noise) as answer:
        assert answer.status in (201, 503), await answer.text()
        return answer.status == 503 and "No space left on device" in (await answer.json())["detail"]


async def stopped(chaos: ChaosStack, run: str) -> bool:
    """Temporal's server takes nothing more."""
    log = await asyncio.to_thread((chaos.stack.home / "logs" / "temporal.log").read_text)
    return "database or disk is full" in log


NOTICED: dict[str, Callable[[ChaosStack, str], Awaitable[bool]]] = {
    "runs": seen,
    "postgres": refused,
    "temporal": stopped,
}


async def shown(chaos: ChaosStack, run: str) -> dict[str, Any]:
    """What `relight status RUN` tells."""
    command = [sys.executable, "-m", "relight.cli", "status", run, "--json", "--home", str(chaos.stack.home)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    return json.loads(output)


def whole_directories(runs: Path) -> list[Path]:
    """Exports and checkpoints by their names, each verified; leftovers of a write that failed are a failure here."""
    found = [path for kind in ("export", "checkpoint") for path in runs.glob(f"*/versions/*/{kind}")]
    for directory in found:
        verify(directory)
    assert not list(runs.glob("*/versions/*/.*.tmp-*"))
    return found


@pytest.mark.parametrize("name", DISKS)
async def test_a_full_disk_stops_a_run_until_there_is_space(chaos: ChaosStack, undisturbed: Outcome, name: str) -> None:
    run, disk = f"full-{name}", chaos.disks[name]
    handle = await chaos.start(run, STEPS)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await chaos.recorded(run):  # noqa: ASYNC110  # a row
            await asyncio.sleep(0.1)
        disk.fill()
        while not await NOTICED[name](chaos, run):  # noqa: ASYNC110  # another process' state
            await asyncio.sleep(0.2)
        assert [full["folder"] for full in (await shown(chaos, run))["full_disks"]] == [str(disk.folder)]
        disk.free()
        await handle.result()
    assert await chaos.outcome(run) == undisturbed
    assert (await shown(chaos, run))["full_disks"] == []
    assert whole_directories(chaos.stack.home / "runs")
