"""What a failed campaign keeps for its analysis: logs, Temporal's histories, a dump of Postgres."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from relight.stack.postgres_server import binaries_folder
from tests.chaos.report import Report
from tests.chaos.stack import ChaosStack

KEPT = Path(__file__).parents[2] / ".relight-chaos"
DUMP_SECONDS = 60
HISTORY_SECONDS = 120


@asynccontextmanager
async def kept_on_failure(
    chaos: ChaosStack, name: str, report: Report | None = None, folder: Path = KEPT
) -> AsyncGenerator[None]:
    """Keep everything where the body fails, or its report is not a good one; the failure names the folder."""
    try:
        yield
    except Exception as error:  # whatever it was, it is raised again
        error.add_note(f"logs, histories and a dump are in {await keep(chaos, folder, name)}")
        raise
    if report is not None and not report.good:
        report.kept = str(await keep(chaos, folder, name, str(report)))


async def keep(chaos: ChaosStack, kept: Path, name: str, text: str = "") -> Path:
    """Copy it; what can't be had is said in a file of its own."""
    folder = await asyncio.to_thread(_fresh, kept, name)
    (folder / "report.txt").write_text(text + "\n")
    await asyncio.to_thread(shutil.copytree, chaos.stack.home / "logs", folder / "logs", dirs_exist_ok=True)
    await asyncio.to_thread(_copy_run_logs, chaos.stack.home / "runs", folder / "logs")
    await asyncio.to_thread(shutil.copytree, chaos.said, folder / "said")
    for what, taking in (("dump", _dump(chaos, folder)), ("histories", _histories(chaos, _made(folder / "histories")))):
        try:
            await taking
        except Exception as error:  # a part that is broken must not keep the rest from being kept
            (folder / f"no-{what}.txt").write_text(f"{type(error).__name__}: {error}\n")
    return folder


def _fresh(kept: Path, name: str) -> Path:
    for number in itertools.count(1):
        folder = kept / f"{name}-{number}"
        if not folder.exists():
            folder.mkdir(parents=True)
            return folder
    raise AssertionError("unreachable")


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _copy_run_logs(runs: Path, logs: Path) -> None:
    for log in runs.glob("*/*.log"):
        shutil.copy(log, logs / f"{log.parent.name}-{log.name}")


async def _dump(chaos: ChaosStack, folder: Path) -> None:
    command = [str(binaries_folder() / "pg_dump"), "--file", str(folder / "postgres.sql")]
    async with asyncio.timeout(DUMP_SECONDS):
        process = await asyncio.create_subprocess_exec(
            *command, str(chaos.stack.settings.postgres_url), stderr=asyncio.subprocess.PIPE
        )
        _, said = await process.communicate()
    if process.returncode:
        raise RuntimeError(said.decode(errors="replace"))


async def _histories(chaos: ChaosStack, folder: Path) -> None:
    """All workflows of the namespace: it is this stack's own."""
    async with asyncio.timeout(HISTORY_SECONDS):
        async for execution in chaos.client.list_workflows():
            handle = chaos.client.get_workflow_handle(execution.id, run_id=execution.run_id)
            file = folder / f"{execution.id.replace('/', '_')}-{execution.run_id[:8]}.json"
            file.write_text((await handle.fetch_history()).to_json())
