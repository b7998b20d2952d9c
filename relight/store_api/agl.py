"""The rollout store over REST: `/v1/agl` with 0.3's paths, payloads and defaults, and what is added to them.

An unknown id is a 404 where 0.3 fails, and null where its client expects that: workers, and `latest` of nothing.
Queries are in `agl_queries`.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from relight.errors import NotFoundError
from relight.store.base import LightningStore
from relight.store_api import agl_bodies as bodies
from relight.store_api.agl_answers import (
    attempt_json,
    bare_rollout_json,
    dump,
    listed,
    rollout_json,
    span_json,
    whole,
)
from relight.store_api.agl_calls import AglCall, Routes, call_of, raw_json
from relight.store_api.disconnects import unless_gone
from relight.store_api.grants import own_body
from relight.types.names import AGL_API
from relight.types.rollout import Attempt, AttemptedRollout, Rollout
from relight.types.store import UNSET, ResourcesUpdate, Worker
from relight.types.tracer import Span

NULL = b"null"
router = APIRouter(prefix=AGL_API, tags=["rollout store"])
routes = Routes(router)


def given(body: bodies.Strict, *names: str, nullable: bool = False) -> dict[str, Any]:
    """The fields that a caller gave; the others are unset.

    Raises:
        HTTPException: 400, a field is null that can't be.
    """
    values = {name: getattr(body, name) if name in body.model_fields_set else UNSET for name in names}
    for name, value in values.items():
        if value is None and not nullable:
            raise HTTPException(400, f"{name} is invalid; it cannot be a null value; leave it out to keep it as it is")
    return values


@router.get("/health")
async def health() -> Response:
    """The service takes requests."""
    return raw_json(b'{"status":"ok"}')


@routes.bare("GET", "/statistics", dict[str, Any])
async def read_statistics(call: AglCall) -> bytes:
    """The number of the store's objects."""
    return dump(await call.retried(call.store.statistics))


@routes.bare("GET", "/capabilities", dict[str, bool])
async def read_capabilities(call: AglCall) -> bytes:
    """What the store can do."""
    return dump({**call.store.capabilities, "otlp_traces": True})  # the service itself takes them


@routes.post("/queues/rollouts/enqueue", bodies.EnqueueRequest, list[Rollout], 201)
async def enqueue(call: AglCall, body: bodies.EnqueueRequest) -> bytes:
    """Append rollouts to the queue."""
    if not body.rollouts:
        return b"[]"
    for rollout in body.rollouts:
        if rollout.resources_id is not None:
            rollout.resources_id = await call.attempt_resources.plain(rollout.resources_id)
    rollouts = await call.keyed(lambda: call.store.enqueue_many_rollouts(body.rollouts, idempotency_key=call.key))
    return listed(bare_rollout_json(rollout, call.complete) for rollout in rollouts)


@routes.post("/queues/rollouts/dequeue", bodies.DequeueRequest, list[AttemptedRollout], optional=True)
async def dequeue(call: AglCall, body: bodies.DequeueRequest) -> bytes:
    """Claim rollouts."""
    if body.limit <= 0:
        return b"[]"
    if body.limit == 1:
        one = await call.keyed(lambda: call.store.dequeue_rollout(body.worker_id, idempotency_key=call.key))
        claimed = [one] if one else []
    else:
        claimed = await call.keyed(
            lambda: call.store.dequeue_many_rollouts(body.limit, body.worker_id, idempotency_key=call.key)
        )
    return listed([rollout_json(await call.attempt_resources.bind(call.store, one), call.complete) for one in claimed])


@routes.post("/rollouts", bodies.StartRequest, AttemptedRollout, 201)
async def start_rollout(call: AglCall, body: bodies.StartRequest) -> bytes:
    """Begin a rollout that is never queued."""
    values = {name: getattr(body, name) for name in bodies.StartRequest.model_fields}
    if body.resources_id is not None:
        values["resources_id"] = await call.attempt_resources.plain(body.resources_id)
    rollout = await call.keyed(lambda: call.store.start_rollout(**values, idempotency_key=call.key))
    return rollout_json(await call.attempt_resources.bind(call.store, rollout), call.complete)


@routes.bare("GET", "/rollouts/{rollout_id}", AttemptedRollout | Rollout)
async def read_rollout(call: AglCall) -> bytes:
    """A rollout with its newest attempt."""
    return rollout_json(await _rollout(call), call.complete)


async def _rollout(call: AglCall) -> Rollout:
    rollout_id = call.path["rollout_id"]
    rollout = await call.retried(lambda: call.store.get_rollout_by_id(rollout_id))
    if rollout is None:
        raise NotFoundError(f"there is no rollout {rollout_id}")
    return rollout


@routes.post("/rollouts/{rollout_id}", bodies.UpdateRolloutRequest, Rollout)
async def update_rollout(call: AglCall, body: bodies.UpdateRolloutRequest) -> bytes:
    """Change a rollout's fields."""
    values = given(body, "status", "config") | given(body, "input", "mode", "resources_id", "metadata", nullable=True)
    if body.resources_id is not None:
        values["resources_id"] = await call.attempt_resources.plain(body.resources_id)
    rollout = await call.retried(lambda: call.store.update_rollout(call.path["rollout_id"], **values))
    return bare_rollout_json(rollout, call.complete)


@routes.bare("DELETE", "/rollouts/{rollout_id}", None)
async def delete_rollout(call: AglCall) -> bytes:
    """Remove an ended rollout from outside, with all that belongs to it."""
    await call.retried(lambda: call.store.delete_rollout(call.path["rollout_id"]))
    return NULL


@routes.post("/rollouts/{rollout_id}/cancel", bodies.CancelRequest, Rollout, optional=True)
async def cancel_rollout(call: AglCall, body: bodies.CancelRequest) -> bytes:
    """Cancel a rollout."""
    rollout = await call.retried(lambda: call.store.cancel_rollout(call.path["rollout_id"], body.reason))
    return bare_rollout_json(rollout, call.complete)


@routes.post("/rollouts/{rollout_id}/attempts", bodies.StartAttemptRequest, AttemptedRollout, 201, optional=True)
async def start_attempt(call: AglCall, body: bodies.StartAttemptRequest) -> bytes:
    """Begin one more attempt."""
    rollout = await call.store.start_attempt(call.path["rollout_id"], body.worker_id)
    return rollout_json(await call.attempt_resources.bind(call.store, rollout), call.complete)


@routes.bare("GET", "/rollouts/{rollout_id}/attempts/latest", Attempt | None)
async def read_latest_attempt(call: AglCall) -> bytes:
    """The newest attempt of a rollout, or null."""
    attempt = await call.retried(lambda: call.store.get_latest_attempt(call.path["rollout_id"]))
    if attempt is None:
        await _rollout(call)
        return NULL
    return attempt_json(attempt, call.complete)


@routes.post("/rollouts/{rollout_id}/attempts/{attempt_id}", bodies.UpdateAttemptRequest, Attempt)
async def update_attempt(call: AglCall, body: bodies.UpdateAttemptRequest) -> bytes:
    """Change an attempt's fields, or those of the newest with `latest`."""
    values = given(body, "status", "worker_id", "last_heartbeat_time", "metadata")
    attempt = await call.retried(
        lambda: call.store.update_attempt(call.path["rollout_id"], call.path["attempt_id"], **values)
    )
    return attempt_json(attempt, call.complete)


@routes.bare("GET", "/workers/{worker_id}", Worker | None)
async def read_worker(call: AglCall) -> bytes:
    """A worker, or null."""
    worker = await call.retried(lambda: call.store.get_worker_by_id(call.path["worker_id"]))
    return NULL if worker is None else whole(worker)


@routes.post("/workers/{worker_id}", bodies.UpdateWorkerRequest, Worker, optional=True)
async def update_worker(call: AglCall, body: bodies.UpdateWorkerRequest) -> bytes:
    """A worker's heartbeat."""
    stats = given(body, "heartbeat_stats")["heartbeat_stats"]
    return whole(await call.retried(lambda: call.store.update_worker(call.path["worker_id"], stats)))


@routes.post("/resources", bodies.Resources, ResourcesUpdate, 201)
async def add_resources(call: AglCall, body: bodies.Resources) -> bytes:
    """Store new resources. Requests with the same idempotency key create them once."""
    return whole(await call.keyed(lambda: call.store.add_resources(body.root, idempotency_key=call.key)))


@routes.bare("GET", "/resources/latest", ResourcesUpdate | None)
async def read_latest_resources(call: AglCall) -> bytes:
    """The newest resources, or null."""
    update = await call.retried(call.store.get_latest_resources)
    return NULL if update is None else whole(update)


@routes.bare("GET", "/resources/{resources_id}", ResourcesUpdate)
async def read_resources(call: AglCall) -> bytes:
    """Resources: the newest version, or the one that `version` names."""
    resources_id, version = call.path["resources_id"], _version(call.request.query_params.get("version"))
    update = await call.retried(lambda: call.attempt_resources.find(call.store, resources_id, version))
    if update is None:
        raise NotFoundError(f"there are no resources {resources_id}")
    return whole(update)


def _version(text: str | None) -> int | None:
    """The version that a query names.

    Raises:
        HTTPException: 400, it is no number of one.
    """
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:10]) < 2**31):
        raise HTTPException(400, f"version is invalid; it must be a number from 1 on, not {text[:20]!r}")
    return int(text)


@routes.post("/resources/{resources_id}", bodies.Resources, ResourcesUpdate)
async def update_resources(call: AglCall, body: bodies.Resources) -> bytes:
    """Create resources of this id, or add a version."""
    return whole(await call.store.update_resources(call.path["resources_id"], body.root))


@routes.post("/spans", bodies.SpanRequest, Span | None, 201)
async def add_span(call: AglCall, body: bodies.SpanRequest) -> bytes:
    """Store a span; null if it was stored before."""
    span = await call.retried(lambda: call.store.add_span(body))
    return NULL if span is None else span_json(span, call.complete)


@routes.post("/spans/many", bodies.SpansRequest, list[Span], 201)
async def add_spans(call: AglCall, body: bodies.SpansRequest) -> bytes:
    """Store spans in one transaction; answers those that were new."""
    spans = await call.retried(lambda: call.store.add_many_spans(body.spans))
    return listed(span_json(span, call.complete) for span in spans)


@routes.post("/spans/next", bodies.NextRequest, dict[str, int])
async def next_number(call: AglCall, body: bodies.NextRequest) -> bytes:
    """The next sequence id of a rollout's spans."""
    number = await call.store.get_next_span_sequence_id(body.rollout_id, body.attempt_id)
    return b'{"sequence_id":%d}' % number


@routes.post("/spans/next/many", bodies.NextManyRequest, dict[str, list[int]])
async def next_numbers(call: AglCall, body: bodies.NextManyRequest) -> bytes:
    """The next sequence ids, one for each pair in order."""
    pairs = [(item.rollout_id, item.attempt_id) for item in body.attempts]
    return dump({"sequence_ids": await call.store.get_many_span_sequence_ids(pairs)})


@router.post(
    "/waits/rollouts", response_model=None, responses={200: {"model": list[Rollout]}}, summary="Wait for rollouts"
)
async def wait(request: Request, body: bodies.WaitRequest) -> Response:
    """The rollouts that have ended, once all have or `timeout` is over; one request waits 60 s at most."""
    call, body = await call_of(request), await own_body(request, body)
    return raw_json(await unless_gone(request, _ended(call.store, body, call.complete)) or NULL)


async def _ended(store: LightningStore, body: bodies.WaitRequest, complete: bool) -> bytes:
    seconds = bodies.MAX_WAIT_SECONDS if body.timeout is None else min(max(body.timeout, 0.0), bodies.MAX_WAIT_SECONDS)
    rollouts = await store.wait_for_rollouts(rollout_ids=body.rollout_ids, timeout=seconds)
    return listed(bare_rollout_json(rollout, complete) for rollout in rollouts)
