"""Calling commands as the command line does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.orchestration import run_file


def write_run(folder: Path, **changes: Any) -> Path:
    path = folder / "run.json"
    path.write_text(json.dumps(run_file(**changes)))
    return path


async def call(command: Any) -> int:
    try:
        await command
    except SystemExit as end:
        return int(str(end.code))
    return 0
