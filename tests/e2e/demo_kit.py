"""Runs `relight demo` as a process of its own and looks at what it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "calculator"
RUN_FILE = {
    "agent": "calculator",
    "model": str(EXAMPLE / "policy"),
    "data": {
        "train": str(EXAMPLE / "train.jsonl"),
        "evaluation": str(EXAMPLE / "heldout.jsonl"),
        "required_fields": ["question", "calls", "answer"],
    },
    "algorithm": {"learning_rate": 3e-4},
    "group_size": 4,
    "batch_size": 4,
    "evaluation": {"limit": 8},
    "sampling": {"max_tokens": 16},
    "vllm": {"max_model_len": 256},
}
"""The example with steps and evaluations that take seconds."""


class Demo:
    """A demo under way; its lines come as they are printed."""

    def __init__(self, home: Path, *flags: str) -> None:
        self.home = home
        self.lines: list[str] = []
        file = home / "calculator" / "run.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(RUN_FILE))
        command = [sys.executable, "-m", "relight.cli", "demo", "--home", str(home), "--file", str(file), *flags]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, text: str, seconds: float = 400) -> str:
        """The first line that holds a text."""
        with self._news:
            found = self._news.wait_for(lambda: self._find(text) or self.process.poll() is not None, seconds)
        line = self._find(text)
        assert found, f"no {text!r} within {seconds} s in:\n{self.output}"
        assert line, f"it ended without {text!r}:\n{self.output}"
        return line

    def interrupt(self) -> None:
        """Ctrl-C."""
        os.kill(self.process.pid, signal.SIGINT)

    def ended(self, seconds: float = 600) -> int:
        """Its exit code, once it has ended and everything that it said is here."""
        code = self.process.wait(seconds)
        self._reader.join(10)
        return code

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def _find(self, text: str) -> str | None:
        return next((line for line in self.lines if text in line), None)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()


@contextmanager
def demo(home: Path, *flags: str) -> Generator[Demo]:
    """A demo that is ended with its stack, whatever happens."""
    running = Demo(home, *flags)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()


def relight(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Another command on the same home folder."""
    command = [sys.executable, "-m", "relight.cli", *words, "--home", str(home)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def wait_until_gone(home: Path, seconds: float = 10) -> list[str]:
    """What is left of a home folder's processes: the kernel ends some of them a moment after their parent."""
    deadline = time.monotonic() + seconds
    while (left := processes_of(home)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def processes_of(home: Path) -> list[str]:
    """Command lines of all processes that name a home folder, in their words or in their environment."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            words = _read_words(entry / "cmdline")
            if any(str(home) in word for word in [*words, *_read_words(entry / "environ")]):
                found.append(" ".join(words))
    return found


def _read_words(path: Path) -> Sequence[str]:
    try:
        return path.read_bytes().decode(errors="replace").split("\0")
    except OSError:  # it ended, or is not ours
        return ()
