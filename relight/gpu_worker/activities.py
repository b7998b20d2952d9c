"""Activities of a GPU host: thin wrappers with heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from temporalio import activity

from relight.gpu_worker.host import GpuHost
from relight.types import names
from relight.types.payloads import (
    EngineInput,
    EngineState,
    GpuClaim,
    RunRequest,
    StepInput,
    UpdateResult,
)

HEARTBEAT_SECONDS = 5.0


@asynccontextmanager
async def heartbeating() -> AsyncGenerator[None]:
    """Tell Temporal that the work goes on, and learn from it that it was cancelled."""

    async def beat() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
        with suppress(asyncio.CancelledError):
            await beating


class ClaimActivities:
    """On the queue that all GPU hosts share."""

    def __init__(self, host: GpuHost) -> None:
        self.host = host

    @activity.defn(name=names.CLAIM_GPU)
    async def claim_gpu(self, request: RunRequest) -> GpuClaim:
        """Take this host for a run, if it is free."""
        return await self.host.claim(request)


class HostActivities:
    """On the host's own queue."""

    def __init__(self, host: GpuHost) -> None:
        self.host = host

    @activity.defn(name=names.PREPARE_ENGINES)
    async def prepare_engines(self, engines: EngineInput) -> EngineState:
        """Start engine and trainer."""
        async with heartbeating():
            return await self.host.prepare(engines)

    @activity.defn(name=names.UPDATE_POLICY)
    async def update_policy(self, place: StepInput) -> UpdateResult:
        """Make a policy version."""
        async with heartbeating():
            return await self.host.update(place)

    @activity.defn(name=names.RELEASE_GPU)
    async def release_gpu(self, request: RunRequest) -> RunRequest:
        """Stop engine and trainer of a run."""
        async with heartbeating():
            await self.host.release(request.run)
        return request
