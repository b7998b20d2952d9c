"""Activities of a GPU host: thin wrappers with heartbeats."""

from __future__ import annotations

from temporalio import activity

from relight.errors import NoRoomError, PausedError
from relight.gpu_worker.host import GpuHost
from relight.heartbeats import heartbeating
from relight.types import names
from relight.types.payloads import (
    EngineInput,
    EngineState,
    GpuClaim,
    RunRequest,
    StepInput,
    UpdateResult,
)
from relight.waiting import come_again

HEARTBEAT_SECONDS = 5.0
ROOM_SECONDS = 3.0
"""How soon a full disk is looked at again."""


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
        async with heartbeating(HEARTBEAT_SECONDS):
            try:
                return await self.host.prepare(engines)
            except NoRoomError as error:
                raise come_again(error.message, ROOM_SECONDS) from error

    @activity.defn(name=names.UPDATE_POLICY)
    async def update_policy(self, place: StepInput) -> UpdateResult:
        """Make a policy version."""
        async with heartbeating(HEARTBEAT_SECONDS):
            try:
                return await self.host.update(place)
            except PausedError as error:
                raise come_again(error.message) from error
            except NoRoomError as error:
                raise come_again(error.message, ROOM_SECONDS) from error

    @activity.defn(name=names.RELEASE_GPU)
    async def release_gpu(self, request: RunRequest) -> RunRequest:
        """Stop engine and trainer of a run."""
        async with heartbeating(HEARTBEAT_SECONDS):
            await self.host.release(request)
        return request
