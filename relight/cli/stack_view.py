"""What runs here: processes of the embedded stack, services in reach, pollers of the task queues, hosts, runs."""

from __future__ import annotations

from pydantic import BaseModel, Field

from relight.cli import output
from relight.cli.disks import FullDisk, full_disks
from relight.cli.pollers import pollers
from relight.cli.reader import StoreReader
from relight.cli.render import print_table
from relight.cli.runs import show_runs
from relight.cli.stack_watch import Process, read_processes
from relight.connections import connect_temporal
from relight.errors import RelightError
from relight.settings import Settings
from relight.types.names import runner_queue
from relight.types.views import ClusterView, RunSummary
from relight.worker.stack_file import running_pid

SHOWN_RUNS = 10
STALE_SECONDS = 30.0
"""A worker beats every 10 s; one that is silent for so long is shown as gone."""


class Service(BaseModel):
    """Something with an address."""

    name: str
    url: str
    error: str | None = None
    """Why it is out of reach."""


class Queue(BaseModel):
    """A task queue and who polls it."""

    queue: str
    serves: str
    pollers: list[str]


class Surroundings(BaseModel):
    """Everything that `relight status` shows."""

    home: str
    stack_pid: int | None = None
    full_disks: list[FullDisk] = Field(default_factory=list[FullDisk])
    processes: list[Process] = Field(default_factory=list[Process])
    services: list[Service] = Field(default_factory=list[Service])
    queues: list[Queue] = Field(default_factory=list[Queue])
    cluster: ClusterView | None = None
    runs: list[RunSummary] = Field(default_factory=list[RunSummary])

    @property
    def reachable(self) -> bool:
        """Whether every service answers."""
        return all(service.error is None for service in self.services)


async def look_around(settings: Settings, reader: StoreReader) -> Surroundings:
    """Ask everyone; who doesn't answer is shown so."""
    found = Surroundings(home=str(settings.home), stack_pid=running_pid(settings.home))
    found.full_disks = full_disks(settings.home)
    if found.stack_pid:
        found.processes = list(read_processes(settings.home).values())
    store = Service(name="store", url=settings.store_url)
    temporal = Service(name="Temporal", url=settings.temporal_address)
    found.services = [store, temporal]
    try:
        found.cluster = await reader.cluster()
        found.runs = await reader.runs(SHOWN_RUNS)
    except RelightError as error:
        store.error = error.message
    try:
        found.queues = await _queues(settings, found)
    except RelightError as error:
        temporal.error = error.message
    return found


async def _queues(settings: Settings, found: Surroundings) -> list[Queue]:
    client = await connect_temporal(settings, timeout_seconds=5.0)
    wanted = [(settings.orchestrator_queue, "workflows"), (settings.gpu_queue, "GPU hosts")]
    agents = {agent for worker in (found.cluster.workers if found.cluster else []) for agent in worker.serves}
    agents |= {run.agent for run in found.runs if run.status == "running"}
    wanted += [(runner_queue(settings.runner_queue, agent), f"agent {agent}") for agent in sorted(agents)]
    return [
        Queue(queue=name, serves=what, pollers=await pollers(client, name, activities=what != "workflows"))
        for name, what in wanted
    ]


def show(found: Surroundings) -> None:
    """For people."""
    _show_stack(found)
    for disk in found.full_disks:
        output.say(f"disk      {disk}")
    for service in found.services:
        output.say(f"{service.name:<9} {service.error or f'{service.url} answers'}")
    if found.queues:
        output.say("")
        rows = [(queue.queue, queue.serves, ", ".join(queue.pollers) or "nobody") for queue in found.queues]
        print_table(("task queue", "serves", "polled by"), rows)
    if found.cluster:
        output.say("")
        _show_cluster(found.cluster)
        output.say("")
        show_runs(found.runs)


def _show_stack(found: Surroundings) -> None:
    if not found.stack_pid:
        output.say(f"stack     no embedded stack runs in {found.home}")
        return
    output.say(f"stack     embedded, in {found.home} (pid {found.stack_pid})")
    rows = [(one.name, one.state, str(one.pid or "-"), str(one.restarts), one.log or "") for one in found.processes]
    print_table(("process", "state", "pid", "restarts", "log"), rows)


def _show_cluster(cluster: ClusterView) -> None:
    rows = [
        (
            worker.kind,
            worker.host,
            str(worker.pid or "-"),
            worker.status if worker.seconds_ago < STALE_SECONDS else f"gone for {worker.seconds_ago:.0f} s",
            ", ".join(worker.serves),
        )
        for worker in cluster.workers
    ]
    for host in cluster.gpu_hosts:
        run = f"run {host.run}" if host.run else "no run"
        rows.append(("GPU host", host.host, "-", host.state, ", ".join(filter(None, (run, host.detail)))))
    for engine in cluster.engines:
        detail = f"version {engine.version} of run {engine.run}"
        rows.append(("engine", engine.host, str(engine.pid or "-"), engine.state, detail))
    print_table(("worker", "host", "pid", "status", "serves"), rows)
