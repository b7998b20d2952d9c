"""The cost of orchestration: rollouts a second against a bare Temporal parent with one no-op activity a child.

    python -m benchmarks.orchestration [--rollouts 300] [--rounds 3] [--json]

Both on one Temporal server, with a process for workflows and one for activities, the same slots and the same search
attributes, in turns. Ours also opens and finishes an attempt in Postgres for each rollout and runs the agent, which
does nothing, in a process of its own (`process`) or beside others (`shared`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from temporalio.client import Client

from benchmarks.bare_temporal import BARE_QUEUE, BareBatch, BareInput
from relight.datasets import Tasks
from relight.stack.embedded import EmbeddedStack
from relight.store.database import Database, connect_database
from relight.store.runs.lifecycle import begin_run
from relight.store.training.plans import plan_step
from relight.temporal import search_attributes as search
from relight.temporal.connection import connect_temporal
from relight.types import names
from relight.types.payloads import BatchInput, BeginInput, StepInput
from relight.types.run_file import parse_run_file

PARTS = ("postgres", "temporal", "store", "gateway", "orchestrator", "runner")
AGENT = f"{Path(__file__).with_name('agents.py')}:noop"
GROUP = 4
SLOTS = 16
SETTLE_SECONDS = 12
"""Between two measurements: the server's timers of the one before (10 s) must not fire in the next."""


async def run_ours(client: Client, database: Database, run: str, rollouts: int, isolation: str) -> float:
    """Rollouts a second of one step, from the start of its batches until they are closed."""
    file = parse_run_file(
        {
            "agent": "noop",
            "model": "none",
            "data": "none.jsonl",
            "group_size": GROUP,
            "batch_size": rollouts // GROUP,
            "steps": 1,
            "isolation": isolation,
        }
    )
    tasks = Tasks([{"number": number} for number in range(100)], "numbers", "benchmark")
    state = await begin_run(database, BeginInput(run=run, driver=run, file=file), tasks, None)
    # No workflow drives this run; the reconciler must not mark it as interrupted.
    await database.pool.execute("update runs set created_at = now() + interval '1 day' where run = $1", run)
    plan = await plan_step(database, StepInput(run=run, epoch=state.epoch, step=1))
    began = perf_counter()
    await asyncio.gather(*(_batch(client, run, state.epoch, number) for number in range(plan.batches)))
    return rollouts / (perf_counter() - began)


async def _batch(client: Client, run: str, epoch: int, number: int) -> None:
    batch = BatchInput(
        run=run, epoch=epoch, step=1, batch=number, agent="noop", runner_queue=names.RUNNER_QUEUE, concurrency=200
    )
    await client.execute_workflow(
        names.BATCH_WORKFLOW,
        batch,
        id=names.batch_id(run, 1, number),
        task_queue=names.ORCHESTRATOR_QUEUE,
        search_attributes=search.of_step(run, 1),
    )


async def run_bare(client: Client, run: str, rollouts: int) -> float:
    """Children a second of parents of the same sizes as our batches."""
    sizes = [200] * (rollouts // 200) + ([rollouts % 200] if rollouts % 200 else [])
    began = perf_counter()
    await asyncio.gather(
        *(
            client.execute_workflow(
                BareBatch.run,
                BareInput(name=f"{run}-{number}", children=size),
                id=f"bare/{run}/{number}",
                task_queue=BARE_QUEUE,
                search_attributes=search.of_step(run, 1),
            )
            for number, size in enumerate(sizes)
        )
    )
    return rollouts / (perf_counter() - began)


@contextmanager
def open_folder() -> Generator[Path]:
    """A folder that another user may enter, as Postgres must where this runs as root."""
    with tempfile.TemporaryDirectory(prefix="relight-bench-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@contextmanager
def bare_worker(address: str, role: str) -> Generator[None]:
    """A worker process of the bare workflows."""
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.bare_temporal", address, role])
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


async def measure(rollouts: int, rounds: int, say: Callable[[str], None]) -> dict[str, list[float]]:
    """Rates by kind, a figure a round; the first round is a warm-up and not counted."""
    rates: dict[str, list[float]] = {"bare": [], "process": [], "shared": []}
    with open_folder() as folder:
        flags = ("--concurrency", str(SLOTS))
        async with EmbeddedStack(folder, agents=[AGENT], only=PARTS, runner_flags=flags) as stack:
            await stack.wait_ready()
            address = stack.settings.temporal_address
            with bare_worker(address, "workflows"), bare_worker(address, "activities"):
                client = await connect_temporal(stack.settings)
                database = await connect_database(stack.settings)
                for number in range(rounds + 1):
                    kinds: dict[str, Callable[[str], Awaitable[float]]] = {
                        "bare": lambda run: run_bare(client, run, rollouts),
                        "process": lambda run: run_ours(client, database, run, rollouts, "process"),
                        "shared": lambda run: run_ours(client, database, run, rollouts, "shared"),
                    }
                    # The server slows down as its database grows, so the order turns around from round to round.
                    for kind, play in list(kinds.items())[:: -1 if number % 2 else 1]:
                        await asyncio.sleep(SETTLE_SECONDS)
                        rate = await play(f"{kind}-{number}")
                        say(f"round {number}: {kind} {rate:.1f}/s{' (warm-up)' if number == 0 else ''}")
                        if number:
                            rates[kind].append(rate)
                await database.close()
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rates = asyncio.run(
        measure(arguments.rollouts, arguments.rounds, lambda text: print(text, file=sys.stderr, flush=True))
    )
    medians = {kind: statistics.median(values) for kind, values in rates.items()}
    ratios = {kind: medians[kind] / medians["bare"] for kind in ("process", "shared")}
    if arguments.json:
        print(json.dumps({"rollouts_per_second": medians, "ratio_to_bare": ratios, "rounds": rates}))
        return
    print(f"orchestrated rollouts a second ({arguments.rollouts} a round, median of {arguments.rounds} rounds)")
    print(f"  bare Temporal parent and children   {medians['bare']:6.1f}/s")
    for kind, wanted in (("process", 0.7), ("shared", 0.85)):
        rate, ratio = medians[kind], ratios[kind]
        print(f"  Relight, {kind:7} isolation          {rate:6.1f}/s   ratio {ratio:.2f} (wanted: {wanted})")


if __name__ == "__main__":
    main()
