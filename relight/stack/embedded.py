"""The embedded stack: every process of a cluster on one machine, for `relight up`, the demo and the tests.

    async with EmbeddedStack(home, agents=["my_agents:calculator"]) as stack:
        await stack.wait_ready()
        client = await connect_temporal(stack.settings)

No process outlives it: it stops them in order (agents first, Postgres last); where it is killed, the kernel kills them.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from relight.errors import StackError
from relight.retrying import in_background
from relight.settings import Settings, resolve
from relight.stack import postgres_server, stack_file, temporal_server
from relight.stack.addresses import Addresses, decide, is_given, shown_settings
from relight.stack.process_factory import (
    GATEWAY,
    GPU_WORKER,
    RUNNER,
    STORE,
    TEMPORAL,
    AddressOverrides,
    ProcessFactory,
    StackRequest,
    missing_gpu_modules,
    wanted,
)
from relight.stack.supervisor import ProcessSupervisor, StackEvent
from relight.store.database import Database
from relight.temporal.connection import connect_temporal


def _unheard(event: StackEvent) -> None:
    """The listener of a stack whose events are not needed."""


async def _all_ready(supervisors: Sequence[ProcessSupervisor]) -> None:
    for supervisor in supervisors:
        await supervisor.ready.wait()


class EmbeddedStack:
    """The embedded stack as a context manager: boots on entry, stops on exit."""

    def __init__(
        self,
        home: Path,
        *,
        agents: Sequence[str] = (),
        only: Collection[str] | None = None,
        runners: int = 1,
        runner_flags: Sequence[str] = (),
        flags: Mapping[str, Any] | None = None,
        on_event: Callable[[StackEvent], None] | None = None,
        overrides: AddressOverrides | None = None,
    ) -> None:
        self.home = home.absolute()
        chosen = frozenset(only) if only is not None else None
        self.request = StackRequest(agents, chosen, runners, runner_flags, overrides)
        self.supervisors: dict[str, ProcessSupervisor] = {}
        self._flags = {**(flags or {}), "home": self.home}
        self._on_event = on_event or _unheard
        self._addresses: Addresses | None = None
        self._urls_to_show: dict[str, tuple[str, str]] = {}
        self._lock = ExitStack()
        self._group: asyncio.TaskGroup | None = None
        """Holds the supervisors' tasks."""

    @property
    def settings(self) -> Settings:
        """Addresses and token of this stack."""
        if self._addresses is None:
            raise StackError("the stack has not been started")
        return self._addresses.settings

    def process(self, name: str) -> ProcessSupervisor:
        """A part's process, with `pid`, `state` and `restarts`.

        Raises:
            StackError: there is no such part.
        """
        if name not in self.supervisors:
            raise StackError(f"the stack has no part named {name}; it has {', '.join(self.supervisors) or 'none'}")
        return self.supervisors[name]

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Signal a part's process; returns the pid that got it.

        Raises:
            StackError: it is not running.
        """
        pid = self.process(name).pid
        if pid is None:
            raise StackError(f"{name} is not running")
        os.kill(pid, number)
        return pid

    async def __aenter__(self) -> Self:
        try:
            await self._boot()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._end()

    async def wait_ready(self, parts: Collection[str] | None = None, timeout_seconds: float = 600.0) -> None:
        """Return when the parts (all, by default) are ready.

        Raises:
            StackError: one can't be booted, or takes too long.
        """
        supervisors = [self.process(name) for name in parts] if parts is not None else list(self.supervisors.values())
        failures = [supervisor.failure for supervisor in self.supervisors.values()]
        async with in_background(_all_ready(supervisors)) as (ready,):
            await asyncio.wait([ready, *failures], timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
            done = ready.done()
        self._raise_failure()
        if not done:
            late = [supervisor.part.name for supervisor in supervisors if not supervisor.ready.is_set()]
            raise StackError(f"not ready after {timeout_seconds:g} s: {', '.join(late)}")

    async def _boot(self) -> None:
        self._lock.enter_context(stack_file.locked(self.home))
        stack_file.ensure_token(self.home)
        given_postgres = is_given(resolve(self._flags), "postgres_url")
        postgres = None if given_postgres else postgres_server.describe(self.home)
        self._addresses = addresses = decide(self._flags, postgres.url() if postgres else None)
        names = wanted(self.request, addresses)
        await self._check_given(addresses)
        self._say_what_is_missing(names)
        temporal = await temporal_server.obtain(self.home, self._note_temporal) if TEMPORAL in names else None
        factory = ProcessFactory(self.request, addresses, postgres, temporal, self._note_temporal)
        for part in [part for name in names for part in factory.make(name)]:
            self.supervisors[part.name] = ProcessSupervisor(part, self._report)
        self._urls_to_show = self._urls(addresses.settings)
        self._group = await asyncio.TaskGroup().__aenter__()
        self._save()
        for name, supervisor in self.supervisors.items():
            self._group.create_task(supervisor.run(), name=f"supervisor-{name}")

    async def _check_given(self, addresses: Addresses) -> None:
        """Check the addresses that were given from outside before anything is started."""
        if not addresses.own_postgres and addresses.settings.postgres_url:
            await (await Database.connect(addresses.settings.postgres_url, max_size=1)).close()
        if not addresses.own_temporal:
            await connect_temporal(addresses.settings)

    def _say_what_is_missing(self, names: Collection[str]) -> None:
        missing = missing_gpu_modules()
        if self.request.only is None and GPU_WORKER not in names:
            text = f"no {GPU_WORKER} here: {', '.join(missing)} not installed (relight[cpu] or relight[gpu])"
            self._on_event(StackEvent("note", GPU_WORKER, text, {"missing": missing}))
        if self.request.only is None and RUNNER not in names:
            self._on_event(
                StackEvent("note", RUNNER, "no runner: no --agent was given; `relight runner REF` starts one")
            )

    def _note_temporal(self, text: str) -> None:
        self._on_event(StackEvent("note", TEMPORAL, text))

    def _raise_failure(self) -> None:
        for supervisor in self.supervisors.values():
            if supervisor.failure.done():
                supervisor.failure.result()

    def _report(self, event: StackEvent) -> None:
        self._save()
        self._on_event(event)
        if event.kind == "ready" and event.name in self._urls_to_show:
            label, url = self._urls_to_show.pop(event.name)
            self._on_event(StackEvent("url", event.name, f"{label}: {url}", {"url": url}))

    def _urls(self, settings: Settings) -> dict[str, tuple[str, str]]:
        """The URLs that are shown when a part is ready."""
        shown = {STORE: ("store", settings.store_url), GATEWAY: ("gateway", settings.gateway_url)}
        if settings.temporal_ui_url:
            shown[TEMPORAL] = ("Temporal Web UI", settings.temporal_ui_url)
        return shown

    def _save(self) -> None:
        if self._addresses is None:
            return
        data = {
            "settings": shown_settings(self._addresses),
            "ports": dict(self._addresses.ports),
            "pid": os.getpid() if self._group else None,
            "processes": {name: supervisor.as_data() for name, supervisor in self.supervisors.items()},
        }
        stack_file.write_stack(self.home, data)

    async def _end(self) -> None:
        """Stop stage by stage; cancelling this kills all processes."""
        if self._group:
            self._on_event(
                StackEvent("stopping", "stack", "stopping, Postgres last; Ctrl-C again ends everything at once")
            )
        try:
            for stage in sorted({supervisor.part.stop_stage for supervisor in self.supervisors.values()}):
                await self._stop_stage(stage)
        finally:
            for supervisor in self.supervisors.values():
                supervisor.kill_now()
            await self._close()

    async def _stop_stage(self, stage: int) -> None:
        supervisors = [supervisor for supervisor in self.supervisors.values() if supervisor.part.stop_stage == stage]
        await asyncio.gather(*(supervisor.stop() for supervisor in supervisors))

    async def _close(self) -> None:
        group, self._group = self._group, None
        if group:
            await group.__aexit__(None, None, None)
            self._save()
        self._lock.close()
