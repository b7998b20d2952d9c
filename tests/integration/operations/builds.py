"""Builds of Relight: this code, and a copy of it whose rollouts go another way; each run as orchestrators are."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import relight

HERE = Path(relight.__file__).parents[1]
OLD = "        number, config = self.rollout.first_try, self.rollout.config\n"
NEW = OLD + "        await workflow.sleep(timedelta(milliseconds=20))\n"
"""A timer before the first attempt: a command that histories of the other build don't have."""


def changed_copy(folder: Path) -> Path:
    """A copy of the package whose RolloutWorkflow can't replay what the original began."""
    shutil.copytree(HERE / "relight", folder / "relight", ignore=shutil.ignore_patterns("__pycache__", "static"))
    module = folder / "relight" / "workflows" / "rollout.py"
    text = module.read_text()
    assert text.count(OLD) == 1
    module.write_text(text.replace(OLD, NEW))
    return folder


@asynccontextmanager
async def orchestrator(code: Path, build: str, log: Path, environment: dict[str, str]) -> AsyncGenerator[None]:
    """`relight orchestrator --build-id BUILD` of some code; drained at the end."""
    command = [sys.executable, "-m", "relight.cli", "orchestrator", "--wait", "60", "--drain-seconds", "5"]
    if build:
        command += ["--build-id", build]
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=code, env=os.environ | environment, stdout=output, stderr=output
        )
    try:
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        ended = await process.wait()
    assert ended == 0, (await asyncio.to_thread(log.read_text, errors="replace"))[-3000:]
