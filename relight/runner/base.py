"""The base of runners that a program drives by hand, and the context in which it does so."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from relight.litagent.litagent import LitAgent
from relight.store.base import LightningStore
from relight.types.core import ParallelWorkerBase
from relight.types.hooks import Hook
from relight.types.resources import NamedResources
from relight.types.rollout import Rollout, RolloutMode

log = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R", bound="Runner[Any]")


class ExecutionEvent(Protocol):
    """A request to stop: `threading.Event`, `multiprocessing.Event` and `asyncio.Event` are such."""

    def is_set(self) -> bool:
        """Whether the runner is to stop."""
        ...


class Runner(ParallelWorkerBase, Generic[T]):
    """Runs an agent's rollouts. Source: Agent Lightning 0.3's `Runner`."""

    def init(self, agent: LitAgent[T], *, hooks: Sequence[Hook] | None = None, **kwargs: Any) -> None:
        """Prepare it for an agent, once for all workers."""
        raise NotImplementedError(f"{type(self).__name__} has to define init(agent, ...)")

    def init_worker(self, worker_id: int, store: LightningStore, **kwargs: Any) -> None:
        """Prepare it in a worker."""
        raise NotImplementedError(f"{type(self).__name__} has to define init_worker(worker_id, store, ...)")

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Not defined for runners.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("a runner has no run(): await iter() or step()")

    async def iter(self, *, event: ExecutionEvent | None = None) -> None:
        """Run rollouts of the store's queue until `event` is set."""
        raise NotImplementedError(f"{type(self).__name__} has to define iter(event=...)")

    async def step(
        self,
        input: T,
        *,
        resources: NamedResources | None = None,
        mode: RolloutMode | None = None,
        event: ExecutionEvent | None = None,
    ) -> Rollout:
        """Run one task, past the queue."""
        raise NotImplementedError(f"{type(self).__name__} has to define step(input, ...)")

    def run_context(
        self: R,
        *,
        agent: LitAgent[Any],
        store: LightningStore,
        hooks: Sequence[Hook] | None = None,
        worker_id: int | None = None,
    ) -> RunContext[R]:
        """The runner, prepared for the block of a `with` or an `async with`, as worker 0 by default."""
        return RunContext(self, agent, store, hooks, worker_id or 0)


class RunContext(Generic[R]):
    """Prepares a runner, and ends it. What its end raises is logged, so that it hides no error of the block."""

    def __init__(
        self, runner: R, agent: LitAgent[Any], store: LightningStore, hooks: Sequence[Hook] | None, worker_id: int
    ) -> None:
        self._runner = runner
        self._agent = agent
        self._store = store
        self._hooks = hooks
        self._worker_id = worker_id

    def __enter__(self) -> R:
        self._runner.init(agent=self._agent, hooks=self._hooks)
        try:
            self._runner.init_worker(worker_id=self._worker_id, store=self._store)
        except BaseException:
            self._end("runner", self._runner.teardown)
            raise
        return self._runner

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end("runner worker", lambda: self._runner.teardown_worker(worker_id=self._worker_id))
        self._end("runner", self._runner.teardown)

    async def __aenter__(self) -> R:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def _end(self, what: str, end: Callable[[], None]) -> None:
        try:
            end()
        except Exception:  # a tracer of any kind
            log.exception("Error during %s teardown", what)
