"""Activities of a GPU host: thin wrappers with heartbeats."""

from __future__ import annotations

from temporalio import activity

from relight.errors import DiskFullError, PausedError
from relight.gpu_worker.host import GpuHost
from relight.temporal.heartbeats import heartbeating
from relight.temporal.retry_later import retry_later
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
FULL_DISK_RETRY_SECONDS = 3.0
"""How soon a full disk is checked again."""


class ClaimActivities:
    """Activities on the queue that all GPU hosts share."""

    def __init__(self, host: GpuHost) -> None:
        self.host = host

    @activity.defn(name=names.CLAIM_GPU)
    async def claim_gpu(self, request: RunRequest) -> GpuClaim:
        """Take this host for a run, if it is free."""
        return await self.host.claim(request)


class HostActivities:
    """Activities on the host's own queue."""

    def __init__(self, host: GpuHost) -> None:
        self.host = host

    @activity.defn(name=names.PREPARE_ENGINES)
    async def prepare_engines(self, engines: EngineInput) -> EngineState:
        """Start engine and trainer."""
        async with heartbeating(HEARTBEAT_SECONDS):
            try:
                return await self.host.prepare(engines)
            except DiskFullError as error:
                raise retry_later(error.message, FULL_DISK_RETRY_SECONDS) from error

    @activity.defn(name=names.UPDATE_POLICY)
    async def update_policy(self, place: StepInput) -> UpdateResult:
        """Make a policy version."""
        async with heartbeating(HEARTBEAT_SECONDS):
            try:
                return await self.host.update(place)
            except PausedError as error:
                raise retry_later(error.message) from error
            except DiskFullError as error:
                raise retry_later(error.message, FULL_DISK_RETRY_SECONDS) from error

    @activity.defn(name=names.RELEASE_GPU)
    async def release_gpu(self, request: RunRequest) -> RunRequest:
        """Stop engine and trainer of a run."""
        async with heartbeating(HEARTBEAT_SECONDS):
            await self.host.release(request)
        return request
