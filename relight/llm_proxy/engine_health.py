"""Whether engines still answer. One that froze keeps its connections open, and its calls would wait for ever."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic

from relight.llm_proxy.engines import Engine, Engines
from relight.retrying import Every

log = logging.getLogger(__name__)

ASK_SECONDS = 5.0
"""Between two rounds, and how long an engine may take to answer."""
GIVE_UP_SECONDS = 30.0
"""An engine that has not answered for so long has its calls broken off: they are tried again, elsewhere if possible."""


async def watch(engines: Engines, ask_seconds: float = ASK_SECONDS, give_up_seconds: float = GIVE_UP_SECONDS) -> None:
    """Ask all engines in use how they are, until cancelled."""
    async for _ in Every(ask_seconds, at_once=False):
        async with asyncio.TaskGroup() as group:
            for engine in engines.in_use():
                group.create_task(check(engine, ask_seconds, give_up_seconds))


async def check(engine: Engine, ask_seconds: float, give_up_seconds: float) -> None:
    """Ask one engine. An unhealthy one is chosen last."""
    began = monotonic()
    if await engine.answers(ask_seconds):
        if engine.unhealthy_since is not None:
            log.info("engine is well again engine=%s", engine.name)
        engine.unhealthy_since = None
        return
    if engine.unhealthy_since is None:
        log.warning("engine does not answer engine=%s", engine.name)
        engine.unhealthy_since = began
    if monotonic() - engine.unhealthy_since >= give_up_seconds and engine.in_flight:
        log.warning("engine froze, its calls are broken off engine=%s calls=%d", engine.name, engine.in_flight)
        engine.unhealthy_since = monotonic()  # calls that have to try it all the same get as long again
        engine.give_up()
