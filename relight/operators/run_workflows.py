"""The state of the workflow that drives a run: whether it is open, and how it ended.

A run's row names the server and the namespace in which it was started. Other namespaces do not know the workflow even
if it runs, so only the stored one can show that it is lost.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetClusterInfoRequest
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHistoryEventFilterType,
)
from temporalio.service import RPCError, RPCStatusCode, ServiceClient

from relight.store.runs.rows import RunRow
from relight.temporal.connection import address_of, as_temporal_error
from relight.types import names

SERVER = "history-service"
"""The name under which a Temporal server terminates workflows by itself: at its limits, for instance."""

CONNECT_SECONDS = 5.0


@dataclass(frozen=True)
class RunWorkflowState:
    """The state of a run's workflow in one namespace."""

    execution: str | None = None
    """Its newest execution."""
    ended: str | None = None
    """How it ended, as the end of a sentence; None while it is open."""
    cancelled: bool = False
    """It was cancelled."""
    lost: bool = False
    """It ended without a client's request and without an error of its own."""
    foreign: bool = False
    """The run was started under another namespace, or at another address, which answers."""

    @property
    def is_open(self) -> bool:
        """Whether it drives the run."""
        return self.ended is None and not self.foreign


async def execution_of(client: Client, workflow_id: str) -> WorkflowExecutionDescription | None:
    """The newest execution of a workflow; None if the namespace has none."""
    try:
        return await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise


def is_open(execution: WorkflowExecutionDescription | None) -> bool:
    """Whether an execution exists and has not ended."""
    return execution is not None and execution.status is WorkflowExecutionStatus.RUNNING


async def is_driven(client: Client, run: str) -> bool:
    """Whether a workflow drives a run.

    Raises:
        TemporalError: the server refuses to answer.
    """
    with as_temporal_error(f"describe {names.train_id(run)}"):
        return is_open(await execution_of(client, names.train_id(run)))


async def run_workflow_state(client: Client, run: RunRow) -> RunWorkflowState:
    """The workflow of a run's row."""
    address, namespace = address_of(client)
    if (run.temporal_namespace or namespace) != namespace:
        return RunWorkflowState(foreign=True)
    found = await execution_of(client, names.train_id(run.run))
    if found is None:
        if (stored := run.temporal_address or address) != address and (there := await _elsewhere(client, stored)):
            return there
        return RunWorkflowState(ended=f"is unknown in namespace {namespace} at {address}", lost=True)
    if is_open(found):
        return RunWorkflowState(execution=found.run_id)
    return await _end_of(client, run.run, found)


async def _elsewhere(client: Client, address: str) -> RunWorkflowState | None:
    """The state of a run that was started at another address that answers, and so is that server's; else None."""
    config = replace(client.service_client.config, target_host=address)
    try:
        there = await asyncio.wait_for(ServiceClient.connect(config), CONNECT_SECONDS)
    except (RuntimeError, TimeoutError, OSError):
        mine, namespace = address_of(client)
        return RunWorkflowState(ended=f"is unknown in namespace {namespace} at {mine}, and {address} does not answer")
    asked = GetClusterInfoRequest()
    here = await client.workflow_service.get_cluster_info(asked)
    same = (await there.workflow_service.get_cluster_info(asked)).cluster_id == here.cluster_id
    return None if same else RunWorkflowState(foreign=True)


async def _end_of(client: Client, run: str, found: WorkflowExecutionDescription) -> RunWorkflowState:
    handle = client.get_workflow_handle(names.train_id(run), run_id=found.run_id)
    closing = WorkflowHistoryEventFilterType.CLOSE_EVENT
    last = [event async for event in handle.fetch_history_events(event_filter_type=closing)][-1]
    status = found.status.name.lower() if found.status else "unknown"
    return RunWorkflowState(
        execution=found.run_id,
        ended=_how_it_ended(last, status),
        cancelled=found.status is WorkflowExecutionStatus.CANCELED,
        lost=_is_lost(last),
    )


def _is_lost(last: HistoryEvent) -> bool:
    by_server = last.workflow_execution_terminated_event_attributes.identity == SERVER
    return by_server or last.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT


def _how_it_ended(last: HistoryEvent, status: str) -> str:
    """How an execution ended: which client ended it, or which error."""
    if last.HasField("workflow_execution_terminated_event_attributes"):
        terminated = last.workflow_execution_terminated_event_attributes
        client = terminated.identity or "a client without a name"
        by = "the Temporal server" if client == SERVER else client
        return f"was terminated by {by}, reason: {terminated.reason or 'none given'}"
    if last.HasField("workflow_execution_timed_out_event_attributes"):
        return "timed out: it was started with a timeout, which Relight never sets"
    if last.HasField("workflow_execution_failed_event_attributes"):
        failure = last.workflow_execution_failed_event_attributes.failure
        while failure.HasField("cause"):
            failure = failure.cause
        return f"failed: {failure.message}"
    return f"ended as {status}, which it did not record"
