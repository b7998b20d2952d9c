"""`make setup` and `make clean`: installs all that Relight needs in this folder, and the Temporal server in the cache.

Standard library only, for any python3. The environment and the Temporal server are made side by side. What is there
already is not made again: a second call takes a tenth of a second.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import system_checks

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / ".relight"
LOGS = WORK / "logs"
VENV = ROOT / ".venv"
STAMP = VENV / "relight-setup.json"
UV_VERSION = "uv>=0.8,<1"
OLDEST_UV = (0, 8)


def _load_temporal_binary() -> Any:
    """The launcher order, shared with `relight up`; its package can't be imported before there is an environment."""
    name = "temporal_binary"
    spec = importlib.util.spec_from_file_location(name, ROOT / "relight" / "stack" / f"{name}.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


temporal_binary = _load_temporal_binary()


class SetupError(Exception):
    """One message for the user."""


class Step:
    """Prints how long a step took; and, while it takes long, that it still runs."""

    lock = threading.Lock()

    def __init__(self, name: str) -> None:
        self.name = name
        self.started = time.monotonic()

    def done(self, detail: str) -> None:
        say(f"  {self.name:<12}{time.monotonic() - self.started:6.1f} s  {detail}")

    def run(self, command: list[str], log: Path, **options: Any) -> None:
        """Run a command with its output in a log.

        Raises:
            SetupError: it failed; with its last line.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "w", encoding="utf-8") as output:
            child = subprocess.Popen(
                [*parent_death_tie(), *command],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                **options,
            )
            while True:
                try:
                    status = child.wait(30)
                    break
                except subprocess.TimeoutExpired:
                    say(f"  {self.name:<12}{time.monotonic() - self.started:6.0f} s  still at it")
        if status != 0:
            raise SetupError(f"{self.name}: {' '.join(command[:3])} ... failed; the end of {log}:\n{_tail(log)}")


def parent_death_tie() -> list[str]:
    """Put before a command, it ends the command when set-up ends, however that ends."""
    program = ROOT / "relight" / "processes" / "parent_death_tie.py"
    return [sys.executable, "-I", "-S", str(program), str(os.getpid()), str(int(signal.SIGTERM)), "-"]


def say(text: str) -> None:
    """One line, from any thread."""
    with Step.lock:
        print(text, flush=True)


def _tail(log: Path, lines: int = 12) -> str:
    return "\n".join(f"    {line}" for line in log.read_text(errors="replace").splitlines()[-lines:])


# --- the environment ---------------------------------------------------------------------------------------------


def wanted_environment() -> dict[str, Any]:
    """What the environment is made from; another answer means that it must be made again."""
    content = b"".join((ROOT / name).read_bytes() for name in ("uv.lock", "pyproject.toml"))
    return {
        "content": hashlib.sha256(content).hexdigest(),
        "folder": str(ROOT),
        "nvidia": shutil.which("nvidia-smi") is not None,
    }


def environment_is_made() -> bool:
    """Whether the environment matches the lock file."""
    try:
        return (VENV / "bin" / "python").exists() and json.loads(STAMP.read_text()) == wanted_environment()
    except (OSError, ValueError):
        return False


def make_environment() -> None:
    """Install everything from the lock file."""
    uv, environ = get_uv()
    step = Step("environment")
    accelerator = "gpu" if system_checks.has_gpu() else "cpu"
    python = system_checks.find_python(sys.executable)
    if python is None:
        say("  no Python 3.11 or 3.12 on PATH: uv fetches one")
    command = [uv, "sync", "--locked", "--python", python[0] if python else "3.12"]
    for extra in (accelerator, "embedded", "examples"):
        command += ["--extra", extra]
    step.run(command, LOGS / "setup-environment.log", env=environ)
    STAMP.write_text(json.dumps(wanted_environment()))
    version = ".".join(map(str, python[1])) if python else "3.12"
    step.done(f"Python {version}, torch, vllm, verl ({accelerator})")


def get_uv() -> tuple[str, dict[str, str]]:
    """A uv that is new enough, and the environment to run it in; put under this folder where there is none."""
    environ = {**os.environ, "UV_HTTP_TIMEOUT": os.environ.get("UV_HTTP_TIMEOUT", "300")}
    environ.pop("VIRTUAL_ENV", None)
    step = Step("uv")
    on_path = shutil.which("uv")
    if on_path and _uv_version(on_path) >= OLDEST_UV:
        return on_path, environ
    own = WORK / "tools" / "uv" / "bin" / "uv"
    environ.setdefault("UV_CACHE_DIR", str(WORK / "cache" / "uv"))
    if not (own.exists() and _uv_version(str(own)) >= OLDEST_UV):
        _install_uv(own.parents[1], step)
        step.done(f"put under {own.parents[1].relative_to(ROOT)}")
    return str(own), environ


def _uv_version(command: str) -> tuple[int, ...]:
    try:
        answer = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=20, check=False)
        return tuple(int(part) for part in answer.stdout.split()[1].split(".")[:2])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return (0,)


def _install_uv(folder: Path, step: Step) -> None:
    log = LOGS / "setup-uv.log"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        step.run([sys.executable, "-m", "venv", str(folder)], log)
        step.run([str(folder / "bin" / "python"), "-m", "pip", "install", "--no-cache-dir", UV_VERSION], log)
    except SetupError:
        pip = [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--target", str(folder), UV_VERSION]
        try:
            step.run(pip, log)
        except SetupError as error:
            raise SetupError(
                f"{error}\ncan't install uv: install it yourself (https://docs.astral.sh/uv), or python3-venv and pip"
            ) from None


# --- the Temporal server -----------------------------------------------------------------------------------------


def make_temporal(found: Any, environment_made: threading.Event) -> None:
    """Get the Temporal server: given, found, downloaded or built."""
    step = Step("temporal")
    destination = temporal_binary.cache_folder() / f"temporal-{temporal_binary.CLI_VERSION}"
    reasons: list[str] = list(found.notes)
    if temporal_binary.can_download():
        environment_made.wait()
        download = [str(VENV / "bin" / "python"), str(Path(temporal_binary.__file__)), str(destination)]
        try:
            step.run(download, LOGS / "setup-temporal-download.log")
            step.done("downloaded")
            return
        except (SetupError, OSError) as error:
            reasons.append(str(error).splitlines()[0])
    else:
        reasons.append(f"{temporal_binary.DOWNLOAD_HOST} is out of reach")
    _build_temporal(step, destination, reasons)


def _build_temporal(step: Step, destination: Path, reasons: list[str]) -> None:
    if shutil.which("go"):
        say(f"  temporal: {reasons[-1]}; Go builds it")
    try:
        temporal_binary.build(
            ROOT / "tools" / "temporal",
            destination,
            WORK / "cache" / "go",
            LOGS / "setup-temporal-build.log",
            parent_death_tie(),
        )
    except RuntimeError as error:
        reasons.append(str(error))
        raise SetupError(f"no Temporal server: {'; '.join(reasons)}\n{temporal_binary.WAYS}") from None
    step.done(f"built, {destination}")


# --- all of it ---------------------------------------------------------------------------------------------------


def install() -> None:
    """Install what is missing."""
    started = time.monotonic()
    needs_environment = not environment_is_made()
    problems = system_checks.problems(ROOT, first_time=needs_environment and not VENV.exists())
    if problems:
        raise SetupError("this machine can't run Relight:\n" + "\n".join(f"  - {problem}" for problem in problems))
    given = bool(os.environ.get("TEMPORAL_ADDRESS"))
    found = temporal_binary.Search() if given else temporal_binary.find(WORK)
    for note in found.notes:
        say(note)
    needs_temporal = not given and found.found is None
    if not needs_environment and not needs_temporal:
        return
    _announce(found, needs_environment, needs_temporal)
    _side_by_side(found, needs_environment, needs_temporal)
    say(f"set up in {time.monotonic() - started:.0f} s")


def _announce(found: Any, needs_environment: bool, needs_temporal: bool) -> None:
    memory = (system_checks.memory_bytes() or 0) / system_checks.GIB
    free = shutil.disk_usage(ROOT).free / system_checks.GIB
    say(f"setting Relight up: Linux x86-64, {memory:.0f} GiB of memory, {free:.0f} GiB free")
    if needs_environment:
        say("the Python packages take 1 to 5 minutes (3 GB to fetch, 6 GB on disk)")
    if needs_temporal:
        say("the Temporal server takes seconds, or about 4 minutes beside that if Go must build it")
    if found.found:
        say(f"  temporal: server {found.found.version} ({found.found.origin}: {found.found.path})")


def _side_by_side(found: Any, needs_environment: bool, needs_temporal: bool) -> None:
    environment_made = threading.Event()
    failures: list[Exception] = []

    def guarded(work: Any, *arguments: Any) -> None:
        try:
            work(*arguments)
        except (SetupError, OSError) as error:
            failures.append(error)
        finally:
            if work is make_environment:
                environment_made.set()

    threads = [threading.Thread(target=guarded, args=(make_environment,))] if needs_environment else []
    if not threads:
        environment_made.set()
    if needs_temporal:
        threads.append(threading.Thread(target=guarded, args=(make_temporal, found, environment_made)))
    for thread in threads:
        thread.daemon = True  # Ctrl-C ends us; the terminal has told the children
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise SetupError("\n".join(str(failure) for failure in failures))


def clean() -> None:
    """Remove everything that set-up, stacks and tests made here; what the user's other checkouts use stays."""
    python = VENV / "bin" / "python"
    if (WORK / "up.lock").exists() and python.exists():
        subprocess.run([str(python), "-m", "relight.cli", "down", "--home", str(WORK)], cwd=ROOT, check=False)
    folders = [VENV, WORK]
    folders += [ROOT / name for name in (".pytest_cache", ".ruff_cache", ".hypothesis", "dist", "build")]
    for top in ("relight", "tests", "examples", "benchmarks", "scripts"):
        folders += list((ROOT / top).rglob("__pycache__"))
    for folder in folders:
        if folder.is_symlink():
            folder.unlink()  # the target of the link is not removed
        elif folder.exists():
            shutil.rmtree(folder)
    say("removed the environment, the stack's data and this folder's caches")
    if (cache := temporal_binary.cache_folder()).exists():
        say(f"{cache} stays, since every checkout of this user takes its Temporal server from there")


def main() -> int:
    """`setup.py` or `setup.py clean`."""
    try:
        clean() if sys.argv[1:] == ["clean"] else install()
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
