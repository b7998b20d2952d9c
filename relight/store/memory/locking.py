"""Calls of a store in memory, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from types import CoroutineType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from relight.store.memory.tables import Tables


class OverTables(Protocol):
    """A store that reads and writes tables."""

    tables: Tables


S = TypeVar("S", bound=OverTables)
P = ParamSpec("P")
R = TypeVar("R")


def locked(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[S, P], CoroutineType[Any, Any, R]]:
    """A method that holds the lock of its tables. It awaits nothing but methods of its own kind, so it never waits."""

    @wraps(method)
    async def call(self: S, *args: P.args, **options: P.kwargs) -> R:
        with self.tables.lock:
            return await method(self, *args, **options)

    return call
