"""Health checks of engines. A frozen engine keeps its connections open, so its calls would never end."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic

from relight.llm_proxy.engines import Engine, Engines
from relight.retrying import Every

log = logging.getLogger(__name__)


async def watch(engines: Engines, ask_seconds: float, give_up_seconds: float) -> None:
    """Check all engines in use, until cancelled."""
    async for _ in Every(ask_seconds, at_once=False):
        async with asyncio.TaskGroup() as group:
            for engine in engines.in_use():
                group.create_task(check(engine, ask_seconds, give_up_seconds))


async def check(engine: Engine, ask_seconds: float, give_up_seconds: float) -> None:
    """Check one engine. An unhealthy engine is chosen last."""
    began = monotonic()
    if await engine.answers(ask_seconds):
        if engine.unhealthy_since is not None:
            log.info("engine answers again engine=%s", engine.name)
        engine.unhealthy_since = None
        return
    if engine.unhealthy_since is None:
        log.warning("engine does not answer engine=%s", engine.name)
        engine.unhealthy_since = began
    if monotonic() - engine.unhealthy_since >= give_up_seconds and engine.in_flight:
        log.warning("engine is frozen, its calls are cancelled engine=%s calls=%d", engine.name, engine.in_flight)
        engine.unhealthy_since = monotonic()  # calls that are sent to it nevertheless get the same time again
        engine.give_up()
