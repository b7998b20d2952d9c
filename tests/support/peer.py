"""An environment of Agent Lightning 0.3.0, made once: its client for the wire tests, its server for the benchmarks.

Apart from Relight's own environment, whose versions its own would not bear. `peer-requirements.txt` pins every package
of it; those that its client, runner and store server never import (Polars, Azure's clients, gRPC, ...: half of it) are
left out. Shared by all checkouts of a user.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from relight.stack.temporal_binary import cache_folder
from tests.support.processes import free_port, serving

REQUIREMENTS = Path(__file__).with_name("peer-requirements.txt")
OWN_UV = Path(__file__).parents[2] / ".relight" / "tools" / "uv" / "bin" / "uv"
"""Where `make setup` puts one if there is none on PATH."""
ENVIRONMENT = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONUNBUFFERED": "1"}
"""LiteLLM fetches a price list as it is imported, unless it is told not to."""


def peer_python() -> Path:
    """The Python of the environment, which is made first where it is missing."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256(REQUIREMENTS.read_bytes() + version.encode()).hexdigest()[:12]
    folder = cache_folder() / f"peer-0.3.0-{digest}"
    if not (folder / "bin" / "python").exists():
        _make(folder, version)
    return folder / "bin" / "python"


def peer_environment() -> dict[str, str]:
    """What its processes run in: ours, without what points at our environment."""
    return _without("VIRTUAL_ENV", "PYTHONPATH") | ENVIRONMENT


def _make(folder: Path, version: str) -> None:
    """Make it under another name, then rename it: it is whole or not there, also when two make it at once."""
    began = time.monotonic()
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        _uv("venv", "--relocatable", "--allow-existing", "--python", version, str(made))
        _uv("pip", "install", "--no-deps", "--python", str(made / "bin" / "python"), "-r", str(REQUIREMENTS))
        made.chmod(0o755)
        try:
            made.rename(folder)
        except OSError:
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    took = time.monotonic() - began
    print(f"made {folder}: {size / 2**20:.0f} MiB in {took:.0f} s", file=sys.stderr, flush=True)


def _uv(*arguments: str) -> None:
    command = shutil.which("uv") or str(OWN_UV)
    done = subprocess.run([command, "--quiet", *arguments], capture_output=True, text=True, env=_without("VIRTUAL_ENV"))
    if done.returncode:
        raise RuntimeError(f"uv {' '.join(arguments[:2])} failed: {done.stderr.strip()[-2000:]}")


def _without(*names: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in names}


@asynccontextmanager
async def peer_store(log: Path) -> AsyncGenerator[tuple[str, int]]:
    """Its store server (`agl store`, in memory) as a process; yields its URL and pid."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    module = ("-m", "agentlightning.cli.store", "--host", "127.0.0.1", "--port", str(port), "--log-level", "WARNING")
    async with serving((peer_python(), *module), f"{url}/v1/agl/health", log, peer_environment()) as pid:
        yield url, pid
