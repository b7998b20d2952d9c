"""What holds agents in on this machine, tried by a process: `python -m relight.confinement.protections FOLDER`."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Final

import orjson

from relight.confinement.domain import Domain, HeldProtections
from relight.confinement.policy import policy

NAMES: Final = {
    "files": "files",
    "ports": "TCP ports",
    "signals": "signals and abstract sockets",
    "system_calls": "system calls",
}


def describe(held: HeldProtections) -> str:
    """One line: which protections hold here, and which don't."""
    closed = [text for name, text in NAMES.items() if getattr(held, name)]
    missing = [text for name, text in NAMES.items() if not getattr(held, name)]
    lacking = f"; not here, as the kernel lacks it: {', '.join(missing)}" if missing else ""
    return f"agents are confined in: {', '.join(closed) or 'nothing'}{lacking}; not in: sockets by path, UDP"


async def probe() -> HeldProtections:
    """Which protections hold, as a process that confines itself found."""
    with tempfile.TemporaryDirectory() as folder:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "relight.confinement.protections", folder), stdout=asyncio.subprocess.PIPE
        )
        answer, _ = await process.communicate()
    return HeldProtections(**orjson.loads(answer)) if process.returncode == 0 else HeldProtections()


def main() -> None:
    """Confine this process, and print what holds."""
    folder = sys.argv[1]
    held = Domain(policy(home=Path(folder)), folder, []).enter()
    print(orjson.dumps(asdict(held)).decode())


if __name__ == "__main__":
    main()
