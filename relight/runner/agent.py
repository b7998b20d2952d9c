"""The runner of Agent Lightning 0.3's API: in this process, by hand, against any store."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import Any, Final, TypeVar

from relight.emitter.scope import current_scope, send
from relight.errors import ConflictError
from relight.litagent.agent_arguments import Invocation
from relight.litagent.litagent import LitAgent
from relight.litagent.returns import parse_return, returned_spans
from relight.runner.base import ExecutionEvent, Runner
from relight.runner.hooks import HookCalls, as_span
from relight.runner.worker_heartbeat import LaunchMode, WorkerHeartbeat, jittered
from relight.store.base import LightningStore
from relight.tracer.base import Tracer
from relight.types.hooks import Hook
from relight.types.resources import NamedResources
from relight.types.rollout import AttemptedRollout, AttemptStatus, Rollout, RolloutMode
from relight.types.tracer import Span

log = logging.getLogger(__name__)
T = TypeVar("T")
EVENT_SECONDS: Final = 0.1
"""How often the request to stop is looked at."""


class LitAgentRunner(Runner[T]):
    """Runs an agent's rollouts in this process. Source: Agent Lightning 0.3's `LitAgentRunner`.

    A synchronous agent runs in a thread. An attempt that takes longer than its `timeout_seconds` ends as `timeout`; its
    thread can't be ended, and no hook runs any more. `relight runner` runs agents in processes, which can.

    Args:
        tracer: records each attempt.
        max_rollouts: after so many, `iter` ends; None: never.
        poll_interval: seconds until it asks again for a rollout, where there was none.
        heartbeat_interval: seconds between reports of the worker to the store; 0: none.
        interval_jitter: seconds by which both vary.
        heartbeat_launch_mode: report from a thread, which a busy event loop does not delay, or from the event loop.
        heartbeat_include_gpu: report what `nvidia-smi` says.
    """

    def __init__(
        self,
        tracer: Tracer,
        max_rollouts: int | None = None,
        poll_interval: float = 5.0,
        heartbeat_interval: float = 10.0,
        interval_jitter: float = 0.5,
        heartbeat_launch_mode: LaunchMode = "thread",
        heartbeat_include_gpu: bool = False,
    ) -> None:
        super().__init__()
        self._tracer = tracer
        self._max_rollouts = max_rollouts
        self._poll_interval = poll_interval
        self._interval_jitter = interval_jitter
        self._heartbeat = WorkerHeartbeat(
            heartbeat_interval, interval_jitter, heartbeat_launch_mode, heartbeat_include_gpu
        )
        self._agent: LitAgent[T] | None = None
        self._store: LightningStore | None = None
        self._hooks: list[Hook] = []

    def init(self, agent: LitAgent[T], *, hooks: Sequence[Hook] | None = None, **kwargs: Any) -> None:
        """Prepare it for an agent."""
        self._agent = agent
        agent.set_runner(self)
        self._hooks = [*agent.hooks, *(hooks or ())]
        self._tracer.init()

    def init_worker(self, worker_id: int, store: LightningStore, **kwargs: Any) -> None:
        """Prepare it in a worker."""
        self._store = store
        self.worker_id = worker_id
        self._tracer.init_worker(worker_id, store)

    def teardown_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        """End what `init_worker` began."""
        self.worker_id = None
        self._tracer.teardown_worker(worker_id)

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        """End what `init` began."""
        self._agent = self._store = self.worker_id = None
        self._hooks = []
        self._tracer.teardown()

    @property
    def tracer(self) -> Tracer:
        """The tracer."""
        return self._tracer

    def get_agent(self) -> LitAgent[T]:
        """The agent.

        Raises:
            ValueError: `init` has not been called.
        """
        if self._agent is None:
            raise ValueError("the runner has no agent: call init(agent) first, or use run_context")
        return self._agent

    def get_store(self) -> LightningStore:
        """The store.

        Raises:
            ValueError: `init_worker` has not been called.
        """
        if self._store is None:
            raise ValueError("the runner has no store: call init_worker(worker_id, store) first, or use run_context")
        return self._store

    def get_worker_id(self) -> str:
        """`Worker-` and the worker's number."""
        return f"Worker-{'Unknown' if self.worker_id is None else self.worker_id}"

    async def iter(self, *, event: ExecutionEvent | None = None) -> None:
        """Run rollouts of the queue until `event` is set or `max_rollouts` were run. What agents raise is logged.

        Raises:
            RelightError: the store could not be asked, or an attempt's end not be recorded.
        """
        store, done = self.get_store(), 0
        async with self._heartbeat.reporting(store, self.get_worker_id()):
            while not _is_set(event) and (self._max_rollouts is None or done < self._max_rollouts):
                rollout = await store.dequeue_rollout(worker_id=self.get_worker_id())
                if rollout is None:
                    await self._sleep_until_next_poll(event)
                    continue
                done += 1
                if error := await self._run_attempt(rollout):
                    log.error("rollout %s failed", rollout.rollout_id, exc_info=error)

    async def _sleep_until_next_poll(self, event: ExecutionEvent | None = None) -> None:
        until = time.monotonic() + jittered(self._poll_interval, self._interval_jitter)
        while (left := until - time.monotonic()) > 0 and not _is_set(event):  # noqa: ASYNC110 (it may be a thread's)
            await asyncio.sleep(left if event is None else min(left, EVENT_SECONDS))

    async def step(
        self,
        input: T,
        *,
        resources: NamedResources | None = None,
        mode: RolloutMode | None = None,
        event: ExecutionEvent | None = None,
    ) -> Rollout:
        """Run one task at once, past the queue; returns the rollout as it ended.

        Args:
            input: the task.
            resources: these are added to the store; None: the newest there.
            mode: `train` calls the agent's `training_rollout`, any other its `validation_rollout`.
            event: has no effect, as in 0.3.

        Raises:
            Exception: what the agent raised, or why there was no attempt.
        """
        store = self.get_store()
        added = None if resources is None else await store.add_resources(resources)
        rollout = await store.start_rollout(
            input=input, mode=mode, resources_id=added and added.resources_id, worker_id=self.get_worker_id()
        )
        if error := await self._run_attempt(rollout):
            raise error
        ended = await store.get_rollout_by_id(rollout.rollout_id)
        if ended is None:
            raise RuntimeError(f"rollout {rollout.rollout_id} was deleted while it ran")
        return ended

    async def _run_attempt(self, rollout: AttemptedRollout) -> Exception | None:
        """Run an attempt and record its end; returns why it failed."""
        hooks = HookCalls(self._hooks, agent=self.get_agent(), runner=self, rollout=rollout)
        deadline = asyncio.timeout(_seconds_left(rollout))
        try:
            async with deadline:
                await self._run_agent(rollout, hooks)
        except Exception as error:  # the agent's, or its resources'; the attempt's end says so
            timed_out = isinstance(error, TimeoutError) and deadline.expired()
            await self._record_end(rollout, AttemptStatus.TIMEOUT if timed_out else AttemptStatus.FAILED, hooks, error)
            return error
        except BaseException as error:  # the program ends
            await self._record_end(rollout, AttemptStatus.FAILED, hooks, error)
            raise
        await self._record_end(rollout, AttemptStatus.SUCCEEDED, hooks, None)
        return None

    async def _run_agent(self, rollout: AttemptedRollout, hooks: HookCalls) -> None:
        resources = await self._resources_of(rollout)
        await hooks.call("on_rollout_start")
        returned: list[Span] = []
        try:
            returned = await self._trace(rollout, resources, hooks)
        except Exception:
            await hooks.call("on_rollout_end", spans=self._tracer.get_last_trace())
            raise
        await hooks.call("on_rollout_end", spans=[*self._tracer.get_last_trace(), *returned])

    async def _resources_of(self, rollout: AttemptedRollout) -> NamedResources:
        store, resources_id = self.get_store(), rollout.resources_id
        found = await (store.get_resources_by_id(resources_id) if resources_id else store.get_latest_resources())
        if found is None:
            missing = f"there are no resources {resources_id}" if resources_id else "the store has no resources"
            raise LookupError(
                f"rollout {rollout.rollout_id}: {missing}; add some by add_resources() before it is enqueued"
            )
        return found.resources

    async def _trace(self, rollout: AttemptedRollout, resources: NamedResources, hooks: HookCalls) -> list[Span]:
        """Run the agent in a trace; returns the spans that it returned to a tracer that does not record them."""
        name, attempt_id = rollout.rollout_id, rollout.attempt.attempt_id
        async with _entered(self._tracer.trace_context(name, rollout_id=name, attempt_id=attempt_id)):
            await hooks.call("on_trace_start", tracer=self._tracer)
            value = await self._call(Invocation.of(rollout.input, resources, rollout))
            await hooks.call("on_trace_end", tracer=self._tracer)
            found = parse_return(value)
            if found.invalid is not None:
                raise TypeError(found.invalid)
            if isinstance(value, list) and not value:
                log.warning("rollout %s: the agent returned an empty list", rollout.rollout_id)
            spans = returned_spans(found)
            if current_scope() is not None:
                for span in spans:
                    send(span)
                return []
        returned = [as_span(span, rollout) for span in spans]
        await self.get_store().add_many_spans(returned)
        return returned[: len(found.spans)]

    async def _call(self, invocation: Invocation) -> Any:
        """The agent's result. A synchronous agent runs in a thread, since it would block the event loop."""
        agent, own = self.get_agent(), asyncio.current_task()
        try:
            value = agent.invoke(invocation) if agent.is_async() else await _in_thread(lambda: agent.invoke(invocation))
            return await value if inspect.isawaitable(value) else value
        except (asyncio.CancelledError, SystemExit) as error:  # of the agent's own, and no cancellation of this runner
            if isinstance(error, asyncio.CancelledError) and (own is None or own.cancelling()):
                raise
            raise RuntimeError(f"the agent raised {error!r}") from error

    async def _record_end(
        self, rollout: AttemptedRollout, status: AttemptStatus, hooks: HookCalls, error: BaseException | None
    ) -> None:
        store, ids = self.get_store(), (rollout.rollout_id, rollout.attempt.attempt_id)
        changes: dict[str, Any] = {"status": status}
        if error is not None or hooks.errors:
            changes["metadata"] = {**rollout.attempt.metadata, **_report(status, hooks, error)}
        try:
            await store.update_attempt(*ids, **changes)
        except ConflictError as conflict:
            log.warning("the end of attempt %s (%s) was not recorded: %s", ids[1], status, conflict)


def _report(status: AttemptStatus, hooks: HookCalls, error: BaseException | None) -> dict[str, Any]:
    report: dict[str, Any] = {}
    if error is not None:
        report["error"] = f"{type(error).__name__}: {error}"[:1000]
    if status is AttemptStatus.TIMEOUT:
        report["error"] = "timeout_seconds are over: the agent was given up, and no further hook has run"
    if hooks.errors:
        report["hook_errors"] = hooks.errors
    return report


def _is_set(event: ExecutionEvent | None) -> bool:
    return event is not None and event.is_set()


def _seconds_left(rollout: AttemptedRollout) -> float | None:
    limit = rollout.config.timeout_seconds
    return None if limit is None else rollout.attempt.start_time + limit - time.time()


@asynccontextmanager
async def _entered(context: AbstractAsyncContextManager[Any] | AbstractContextManager[Any]) -> AsyncGenerator[None]:
    """The trace of a tracer of today, or of one of Agent Lightning's before 0.3, which is synchronous."""
    if isinstance(context, AbstractAsyncContextManager):
        async with context:
            yield
    else:
        with context:
            yield


async def _in_thread(function: Callable[[], Any]) -> Any:
    """The result of a function in a daemon thread: one that never returns keeps no program from ending."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Any] = loop.create_future()

    def settle(set_result: Callable[[Any], None], value: Any) -> None:
        if not result.done():
            set_result(value)

    def run() -> None:
        try:
            value = function()
        except StopIteration as error:  # a future can't hold one
            loop.call_soon_threadsafe(settle, result.set_exception, RuntimeError(f"the agent raised {error!r}"))
        except BaseException as error:  # SystemExit and the like are the agent's failures too
            failure = error if isinstance(error, Exception) else RuntimeError(f"the agent raised {error!r}")
            loop.call_soon_threadsafe(settle, result.set_exception, failure)
        else:
            loop.call_soon_threadsafe(settle, result.set_result, value)

    threading.Thread(target=contextvars.copy_context().run, args=(run,), daemon=True).start()
    return await result
