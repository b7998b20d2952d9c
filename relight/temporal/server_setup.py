"""Configures a Temporal server for Relight: search attributes, and the retention of closed workflows."""

from __future__ import annotations

from datetime import timedelta

from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import UpdateNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from relight.temporal import search_attributes as search

RETENTION = timedelta(days=30)
"""The dev server's own 24 hours would drop a run from the Web UI the day after."""
SEARCH_ATTRIBUTES = {
    key.name: IndexedValueType.ValueType(key.indexed_value_type)
    for key in (search.RUN, search.STEP, search.STATUS, search.ALGORITHM, search.TASK, search.WAITING)
}


async def configure(client: Client, *, set_retention: bool) -> list[str]:
    """Add the search attributes that are missing, and keep closed runs for 30 days.

    Returns the names that could not be added (a cluster may forbid it).
    """
    if set_retention:
        await _keep_closed_runs(client)
    missing = await _missing_attributes(client)
    if missing:
        try:
            await client.operator_service.add_search_attributes(
                AddSearchAttributesRequest(
                    namespace=client.namespace, search_attributes={name: SEARCH_ATTRIBUTES[name] for name in missing}
                )
            )
        except RPCError:
            return await _missing_attributes(client)  # none, if another process was faster
    return []


async def _keep_closed_runs(client: Client) -> None:
    retention = Duration()
    retention.FromTimedelta(RETENTION)
    await client.workflow_service.update_namespace(
        UpdateNamespaceRequest(
            namespace=client.namespace, config=NamespaceConfig(workflow_execution_retention_ttl=retention)
        )
    )


async def _missing_attributes(client: Client) -> list[str]:
    try:
        known = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace)
        )
    except RPCError:  # Temporal Cloud has no operator service
        return []
    return [name for name in SEARCH_ATTRIBUTES if name not in known.custom_attributes]
