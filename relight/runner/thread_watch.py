"""Finds the module that starts a thread while agents are imported.

A forked process has only one thread; locks that other threads held stay locked in it. So a second thread in the fork
server can deadlock every attempt, and the error names the import that starts it.
"""

from __future__ import annotations

import builtins
import sys
import threading
from typing import Any, Self

from relight.errors import AgentLoadError
from relight.processes import linux


class ThreadWatch:
    """Watches the imports inside of a `with` block."""

    def __init__(self) -> None:
        self._starts: dict[threading.Thread, str] = {}
        self._native: list[str] = []
        self._import = builtins.__import__
        self._start = threading.Thread.start
        self._count = linux.thread_count()

    def __enter__(self) -> Self:
        watch = self

        def noted_start(self: threading.Thread) -> None:
            watch._starts[self] = _caller()
            watch._start(self)

        def noted_import(name: str, *args: Any, **kwargs: Any) -> Any:
            module = watch._import(name, *args, **kwargs)
            watch._count_threads(name)
            return module

        threading.Thread.start = noted_start
        builtins.__import__ = noted_import
        return self

    def _count_threads(self, name: str) -> None:
        count = linux.thread_count()
        if count > self._count:
            self._native.append(name)
        self._count = count

    def __exit__(self, *error: object) -> None:
        builtins.__import__ = self._import
        threading.Thread.start = self._start

    def check(self) -> list[str]:
        """Warnings about threads of C libraries.

        Raises:
            AgentLoadError: a module started a Python thread.
        """
        for thread, origin in self._starts.items():
            thread.join(0.2)
            if thread.is_alive():
                raise AgentLoadError(
                    f"importing the agent starts a thread ({thread.name!r}, at {origin}), which the processes that "
                    "attempts are forked into would lack; start it inside of the agent function"
                )
        count = linux.thread_count()
        if count == 1:
            return []
        names = ", ".join(map(repr, self._native[:3])) or "a module of the agent"
        return [f"importing {names} started {count - 1} threads of a C library; attempts are forked without them"]


def _caller() -> str:
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("threading", "concurrent.")):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}, line {frame.f_lineno}"
