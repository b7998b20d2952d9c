"""Converts rows of the rollout store to types, and requests to rows.

Ids are ascending within a process, so rows that are created together keep their order.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import asyncpg
from pydantic import TypeAdapter

from relight.errors import InvalidRequestError
from relight.store.queue.rules import NO_TASK_QUEUE
from relight.store.storable import storable, storable_text
from relight.types import names
from relight.types.payloads import RolloutInput
from relight.types.resources import NamedResources
from relight.types.rollout import Attempt, AttemptedRollout, Rollout, RolloutConfig
from relight.types.store import Dispatch, EnqueueRolloutRequest, ProcessFacts, ResourcesUpdate, Worker

_numbers = itertools.count(secrets.randbits(16))
_RESOURCES: TypeAdapter[NamedResources] = TypeAdapter(NamedResources)


def new_id(prefix: str) -> str:
    """An id that sorts by time, and within a millisecond by order of creation."""
    return f"{prefix}-{time.time_ns() // 1_000_000:011x}{next(_numbers) & 0xFFFFFF:06x}{secrets.token_hex(4)}"


def rollout_of(row: Mapping[str, Any]) -> Rollout:
    """A rollout; with its newest attempt where the row holds one."""
    return AttemptedRollout.model_validate(row) if "attempt" in row else Rollout.model_validate(row)


def attempted(row: Mapping[str, Any]) -> AttemptedRollout:
    """A rollout with the attempt at hand."""
    return AttemptedRollout.model_validate(row)


def attempt_of(row: Mapping[str, Any]) -> Attempt:
    """An attempt."""
    return Attempt.model_validate(row)


def resources_of(row: asyncpg.Record) -> ResourcesUpdate:
    """A snapshot of resources."""
    return ResourcesUpdate(
        resources_id=row["resources_id"],
        create_time=row["create_time"].timestamp(),
        update_time=row["update_time"].timestamp(),
        version=row["version"],
        resources=_RESOURCES.validate_python(row["resources"]),
    )


def resources_json(resources: NamedResources) -> dict[str, Any]:
    """Resources as the database takes them."""
    return storable(_RESOURCES.dump_python(_RESOURCES.validate_python(resources), mode="json"))


REPORTED = ("kind", *ProcessFacts.model_fields)


def worker_of(row: asyncpg.Record) -> Worker:
    """A worker. The heartbeats of Relight's own processes are their reports."""
    beat = row["heartbeat_at"] or (row["last_heartbeat"] if row["kind"] != "external" else None)
    return Worker(
        worker_id=row["worker_id"],
        status=row["status"],
        heartbeat_stats=row["heartbeat_stats"],
        last_heartbeat_time=_unix(beat),
        last_dequeue_time=_unix(row["dequeued_at"]),
        last_busy_time=_unix(row["busy_at"]),
        last_idle_time=_unix(row["idle_at"]),
        current_rollout_id=row["rollout_id"],
        current_attempt_id=row["attempt_id"],
        host=row["host"] or None,
        **{name: row[name] for name in REPORTED},
    )


def _unix(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()


def config_json(config: RolloutConfig | None) -> dict[str, Any]:
    """A configuration as the database takes it; what is None is left out."""
    return (config or RolloutConfig()).model_dump(mode="json", exclude_none=True)


def new_rollout(request: EnqueueRolloutRequest) -> dict[str, Any]:
    """A rollout to be, as `enqueue_rollouts_v1` takes it."""
    row: dict[str, Any] = {
        "rollout_id": new_id("ro"),
        "input": storable(request.input),
        "mode": request.mode,
        "resources_id": None if request.resources_id is None else storable_text(request.resources_id),
        "config": config_json(request.config),
        "metadata": storable(request.metadata or {}),
    }
    if request.dispatch is not None and request.dispatch.by == "workflow":
        row |= _workflow(row["rollout_id"], request.dispatch, request.config)
    return row


def _workflow(rollout_id: str, dispatch: Dispatch, config: RolloutConfig | None) -> dict[str, Any]:
    if dispatch.task_queue:
        queue = dispatch.task_queue
    elif dispatch.agent:
        queue = names.runner_queue(names.RUNNER_QUEUE, dispatch.agent)
    else:
        raise InvalidRequestError(NO_TASK_QUEUE)
    given = RolloutInput(rollout_id=rollout_id, queue=queue, config=config or RolloutConfig())
    return {
        "workflow": given.model_dump(mode="json"),
        "workflow_type": names.ROLLOUT_WORKFLOW,
        "workflow_id": names.rollout_workflow_id(rollout_id),
        "task_queue": names.ORCHESTRATOR_QUEUE,
    }
