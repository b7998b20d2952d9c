"""However long a run gets, what it holds stays bounded: histories, memory, connections, files."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from relight.types import names
from tests.chaos.stack import ChaosStack, chaos_stack, open_folder

RUN = "long"
MEASURED = ("store", "gateway", "orchestrator", "gpu-worker", "runner")
EVENTS_A_RUN = 6_000
"""Far under the 51,200 at which Temporal ends a workflow."""
GROWN_MIB = 24
"""What allocators and caches may take on top of what a warm process holds."""
GROWN_FILES = 8
LONG = (pytest.mark.long, pytest.mark.timeout(4 * 3600))
SHOWN_STEPS = 100


@dataclass(frozen=True)
class Holding:
    """What a process holds."""

    memory_mib: float
    files: int

    @classmethod
    def of(cls, pid: int) -> Holding:
        resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return cls(resident / 2**20, len(os.listdir(f"/proc/{pid}/fd")))


def holdings(chaos: ChaosStack) -> dict[str, Holding]:
    return {name: Holding.of(chaos.stack.process(name).pid or 0) for name in MEASURED}


async def connections(chaos: ChaosStack) -> int:
    return int(await chaos.database.pool.fetchval("select count(*) from pg_stat_activity where datname is not null"))


async def reached(chaos: ChaosStack, step: int) -> None:
    shown = 0
    while (recorded := await chaos.recorded(RUN)) < step:
        if recorded >= shown:
            held = {name: (round(holding.memory_mib), holding.files) for name, holding in holdings(chaos).items()}
            print(f"step {recorded}: MiB and files {held}, {await connections(chaos)} connections", flush=True)
            shown = recorded + SHOWN_STEPS
        await asyncio.sleep(0.2)


@pytest.mark.parametrize(("steps", "tasks"), [(45, 2), pytest.param(2000, 4, marks=LONG)])
async def test_a_long_run_holds_no_more_resources_at_its_end_than_after_its_warm_up(steps: int, tasks: int) -> None:
    with open_folder() as folder:
        async with chaos_stack(folder) as chaos:
            handle = await chaos.start(RUN, steps, batch_size=tasks)
            await reached(chaos, steps // 2)
            warm, open_then = holdings(chaos), await connections(chaos)
            await reached(chaos, steps - 1)
            late, open_now = holdings(chaos), await connections(chaos)
            await handle.result()
            events = [
                execution.history_length
                async for execution in chaos.client.list_workflows(f'WorkflowId="{names.train_id(RUN)}"')
            ]
            assert (await chaos.outcome(RUN)).steps == list(range(1, steps + 1))
    assert events
    assert max(events) < EVENTS_A_RUN
    grown = {name: late[name].memory_mib - warm[name].memory_mib for name in MEASURED}
    opened = {name: late[name].files - warm[name].files for name in MEASURED}
    print(f"events a workflow run {events}; grown MiB {grown}; files {opened}; connections {open_then} -> {open_now}")
    assert max(grown.values()) < GROWN_MIB, grown
    assert max(opened.values()) <= GROWN_FILES, opened
    assert open_now <= open_then + 4


@pytest.mark.parametrize("rollouts", [pytest.param(400, marks=pytest.mark.long), pytest.param(2000, marks=LONG)])
async def test_no_workflow_has_a_long_history_after_a_step_of_many_rollouts(rollouts: int) -> None:
    with open_folder() as folder:
        async with chaos_stack(folder) as chaos:
            await (await chaos.start(RUN, 1, batch_size=rollouts // 4, isolation="shared")).result()
            lengths = {
                execution.id: execution.history_length
                async for execution in chaos.client.list_workflows(f'RelightRun="{RUN}"')
            }
            assert len((await chaos.outcome(RUN)).trained) == rollouts
    assert max(lengths.values()) < EVENTS_A_RUN, max(lengths, key=lambda name: lengths[name])
