"""The embedded Temporal server: the CLI's dev server on a SQLite file, and what Relight needs of any Temporal server.

WAL with synchronous=NORMAL triples its speed; a killed process loses nothing by it (a power cut may lose the last
moments, which Postgres still knows).
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import IndexedValueType, TaskQueueType
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    UpdateNamespaceRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError

from relight.errors import TemporalError
from relight.types.names import SEARCH_ALGORITHM, SEARCH_RUN, SEARCH_STATUS, SEARCH_STEP, SEARCH_TASK
from relight.worker import temporal_binary
from relight.worker.ports import LOOPBACK
from relight.worker.processes import leashed

RETENTION = timedelta(days=30)
"""The dev server's own 24 hours would drop a run from the Web UI the day after."""
SEARCH_ATTRIBUTES: Mapping[str, IndexedValueType.ValueType] = {
    SEARCH_RUN: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    SEARCH_STATUS: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    SEARCH_ALGORITHM: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    SEARCH_TASK: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    SEARCH_STEP: IndexedValueType.INDEXED_VALUE_TYPE_INT,
}


def source_folder() -> Path | None:
    """Where a checkout keeps the Go module of the server; an installed wheel has none."""
    folder = Path(__file__).resolve().parents[2] / "tools" / "temporal"
    return folder if (folder / "go.mod").is_file() else None


async def obtain(home: Path, tell: Callable[[str], None] = lambda note: None) -> temporal_binary.Binary:
    """Find a server, else download it, else build it; `tell` hears what was passed over and what takes long.

    Raises:
        TemporalError: no way worked; the message lists the ways.
    """
    search = await asyncio.to_thread(temporal_binary.find, home)
    for note in search.notes:
        tell(note)
    if search.found:
        return search.found
    tell("no Temporal server on this machine: downloading one, or else building it (minutes)")
    cache = temporal_binary.cache_folder()
    reasons = list(search.notes)
    try:
        await temporal_binary.download(cache / f"temporal-{temporal_binary.CLI_VERSION}")
    except (RuntimeError, OSError) as error:
        reasons.append(f"the download failed: {error}")
        await _build(cache, home, reasons)
    found = (await asyncio.to_thread(temporal_binary.find, home)).found
    if not found:
        raise TemporalError("no Temporal server: " + "; ".join(reasons) + "\n" + temporal_binary.WAYS)
    return found


async def _build(cache: Path, home: Path, reasons: list[str]) -> None:
    source = source_folder()
    if source is None:
        return
    destination = cache / f"temporal-{temporal_binary.CLI_VERSION}"
    log, launcher = home / "logs" / "temporal-build.log", leashed([], signal.SIGTERM, None)
    with tempfile.TemporaryDirectory(prefix="relight-go-") as scratch:
        try:
            await asyncio.to_thread(temporal_binary.build, source, destination, Path(scratch) / "go", log, launcher)
        except (RuntimeError, OSError) as error:
            reasons.append(str(error))


def command(binary: Path, database: Path, namespace: str, port: int, ui_port: int) -> list[str]:
    """How the dev server is started, on loopback."""
    return [
        *(str(binary), "server", "start-dev", "--db-filename", str(database), "--namespace", namespace),
        *("--ip", LOOPBACK, "--port", str(port), "--ui-port", str(ui_port), "--ui-disable-news-fetch"),
        *("--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", "synchronous=NORMAL"),
        # Activities of the orchestrator's own queue come with the answer to the workflow task: a hop less each.
        *("--dynamic-config-value", "system.enableActivityEagerExecution=true"),
        # A batch is the parent of many children. Without this a child's start or end that finds it locked for half a
        # second is tried again only 3 seconds later.
        *("--dynamic-config-value", "history.taskSchedulerEnableExecutionQueueScheduler=true"),
        # The one shard looks for new tasks 20 times a second, which made every hop wait for 50 ms once it was busy.
        *("--dynamic-config-value", "history.transferProcessorMaxPollRPS=1000"),
        # It goes on handing tasks to pollers whose connection is dead until a ping is not answered: 70 s without this.
        *("--dynamic-config-value", 'frontend.keepAliveTime="10s"'),
        *("--dynamic-config-value", 'frontend.keepAliveTimeout="5s"'),
        *("--log-level", "warn", "--disable-config-env", "--disable-config-file"),
    ]


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
            return await _missing_attributes(client)  # none, where another process was quicker
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


async def polls(client: Client, queue: str, pid: int) -> bool:
    """Whether the process polls the task queue for activities or workflows."""
    kinds = (TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY)
    for kind in kinds:
        answer = await client.workflow_service.describe_task_queue(
            DescribeTaskQueueRequest(namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind)
        )
        if any(poller.identity.startswith(f"{pid}@") for poller in answer.pollers):
            return True
    return False
