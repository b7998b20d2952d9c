"""Converts rows of the rollout store to types, and requests to rows.

Ids are ascending within a process, so rows that are created together keep their order.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any

import asyncpg
from pydantic import TypeAdapter, ValidationError

from relight.errors import InvalidRequestError
from relight.store.queue.idempotency_keys import refusal
from relight.store.queue.rules import NO_TASK_QUEUE
from relight.store.storable import optional_text, storable
from relight.types import names
from relight.types.checking import checked, invalid
from relight.types.payloads import RolloutInput
from relight.types.resources import NamedResources
from relight.types.rollout import AttemptedRollout, Rollout, RolloutConfig
from relight.types.store import Dispatch, EnqueueRolloutRequest, ProcessFacts, ResourcesUpdate, Worker

_numbers = itertools.count(secrets.randbits(16))
_RESOURCES: TypeAdapter[NamedResources] = TypeAdapter(NamedResources)


def new_id(prefix: str) -> str:
    """An id that sorts by time, and within a millisecond by order of creation."""
    return f"{prefix}-{time.time_ns() // 1_000_000:011x}{next(_numbers) & 0xFFFFFF:06x}{secrets.token_hex(4)}"


def new_resources_id(key: str | None) -> str:
    """The id of resources that are added: with an idempotency key the same for all who send it."""
    return new_id("rs") if key is None else f"rs-{sha256(key.encode()).hexdigest()[:12]}"


def rollout_of(row: Mapping[str, Any]) -> Rollout:
    """A rollout; with its newest attempt where the row holds one."""
    return AttemptedRollout.model_validate(row) if "attempt" in row else Rollout.model_validate(row)


def resources_of(row: asyncpg.Record) -> ResourcesUpdate:
    """A snapshot of resources."""
    return ResourcesUpdate(
        resources_id=row["resources_id"],
        create_time=row["create_time"].timestamp(),
        update_time=row["update_time"].timestamp(),
        version=row["version"],
        resources=_RESOURCES.validate_python(row["resources"]),
    )


def checked_resources(resources: NamedResources) -> NamedResources:
    """Resources, checked.

    Raises:
        InvalidRequestError: names each that is invalid.
    """
    try:
        return _RESOURCES.validate_python(resources)
    except ValidationError as error:
        raise invalid(error) from error


def resources_json(resources: NamedResources) -> dict[str, Any]:
    """Resources as the database takes them."""
    return storable(_RESOURCES.dump_python(checked_resources(resources), mode="json"))


def of_key(kept: ResourcesUpdate, resources: NamedResources, key: str | None) -> ResourcesUpdate:
    """The resources that a key has made, if they are these.

    Raises:
        InvalidRequestError: they are others.
    """
    if key is not None and resources_json(kept.resources) != resources_json(resources):
        raise InvalidRequestError(refusal(key))
    return kept


REPORTED = ("kind", *ProcessFacts.model_fields)


def worker_of(row: asyncpg.Record) -> Worker:
    """A worker. The heartbeats of Relight's own processes are their reports."""
    heartbeat_at = row["heartbeat_at"] or (row["last_heartbeat"] if row["kind"] != "external" else None)
    return Worker(
        worker_id=row["worker_id"],
        status=row["status"],
        heartbeat_stats=row["heartbeat_stats"],
        last_heartbeat_time=_unix(heartbeat_at),
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


def checked_request(request: EnqueueRolloutRequest) -> EnqueueRolloutRequest:
    """A request for a new rollout, checked, with values that Postgres can store.

    Raises:
        InvalidRequestError: names each field that is invalid.
    """
    valid = checked(EnqueueRolloutRequest, dict(request))
    valid.input, valid.metadata = storable(valid.input, "input"), storable(valid.metadata or {}, "metadata")
    valid.run, valid.resources_id = optional_text(valid.run), optional_text(valid.resources_id)
    return valid


def checked_requests(requests: Iterable[EnqueueRolloutRequest]) -> list[EnqueueRolloutRequest]:
    """The same of several.

    Raises:
        InvalidRequestError: names the index of the first invalid one, and its fields.
    """
    valid: list[EnqueueRolloutRequest] = []
    for index, request in enumerate(requests):
        try:
            valid.append(checked_request(request))
        except InvalidRequestError as error:
            raise InvalidRequestError(f"rollouts.{index}.{error}") from error
    return valid


def new_rollout(request: EnqueueRolloutRequest) -> dict[str, Any]:
    """A new rollout, as `enqueue_rollouts_v1` takes it; the request is checked."""
    row: dict[str, Any] = {
        "rollout_id": new_id("ro"),
        "run": request.run,
        "input": request.input,
        "mode": request.mode,
        "resources_id": request.resources_id,
        "config": config_json(request.config),
        "metadata": request.metadata,
    }
    if request.dispatch is not None and request.dispatch.by == "workflow":
        row |= _workflow(row["rollout_id"], request.dispatch, request.config)
    return row


def queue_of(dispatch: Dispatch) -> str:
    """The task queue of the runners that a rollout's attempts are for.

    Raises:
        InvalidRequestError: none is named.
    """
    if dispatch.task_queue:
        return dispatch.task_queue
    if not dispatch.agent:
        raise InvalidRequestError(NO_TASK_QUEUE)
    return names.runner_queue(names.RUNNER_QUEUE, dispatch.agent)


def _workflow(rollout_id: str, dispatch: Dispatch, config: RolloutConfig | None) -> dict[str, Any]:
    given = RolloutInput(rollout_id=rollout_id, queue=queue_of(dispatch), config=config or RolloutConfig())
    return {
        "workflow": given.model_dump(mode="json"),
        "workflow_type": names.ROLLOUT_WORKFLOW,
        "workflow_id": names.rollout_workflow_id(rollout_id),
        "task_queue": names.ORCHESTRATOR_QUEUE,
    }
