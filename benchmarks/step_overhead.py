"""The cost of a step apart from rollouts, verl's update and checkpoint files: planning, rows, publishing, recording.

    python -m benchmarks.step_overhead [--json]

One run on the embedded stack with the real parts, whose batch size is changed on the way: steps of 16, 64 and 256
rollouts. A step lasts from the record of the one before to its own record; taken off are the time from its first
attempt's start to its last one's end, the update and the files. What is left is fitted by a line: a fixed part, and a
part for each rollout.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import orjson

from benchmarks.orchestration import open_folder
from relight.stack.embedded import EmbeddedStack
from relight.store.database import Database, connect_database
from relight.temporal.connection import connect_temporal
from relight.types import names
from tests.support.tiny_policy import make_tiny_policy

AGENT = f"{Path(__file__).with_name('agents.py')}:one_call"
GROUP = 4
SIZES = (16, 64, 256)
STEPS_EACH = 3
RUN = "overhead"
TIMES = """
select s.step, count(r.*) as rollouts,
       extract(epoch from s.recorded_at - lag(s.recorded_at) over (order by s.step))::float8 as whole,
       extract(epoch from max(a.ended_at) - min(a.started_at))::float8 as rollout_seconds,
       (s.seconds ->> 'update')::float8 as update_seconds, (s.seconds ->> 'save')::float8 as file_seconds,
       extract(epoch from s.planned_at - lag(s.recorded_at) over (order by s.step))::float8 as to_plan,
       extract(epoch from min(a.started_at) - s.planned_at)::float8 as to_first_attempt,
       extract(epoch from s.sampled_at - max(a.ended_at))::float8 as to_close,
       extract(epoch from s.ledgered_at - s.sampled_at)::float8 as to_ledger,
       extract(epoch from s.recorded_at - s.ledgered_at)::float8 as to_record
from steps s
join rollouts r on r.run = s.run and r.step = s.step and r.kind = 'train'
join attempts a using (rollout_id)
where s.run = $1 and s.step > 0
group by s.run, s.step order by s.step
"""


def prepare(folder: Path) -> dict[str, Any]:
    """A tiny policy, tasks, and a run over all sizes."""
    make_tiny_policy(folder / "policy")
    tasks = [orjson.dumps({"number": number}) for number in range(64)]
    (folder / "train.jsonl").write_bytes(b"\n".join(tasks))
    return {
        "agent": "one_call",
        "model": "policy",
        "data": {"train": "train.jsonl"},
        "isolation": "shared",
        "group_size": GROUP,
        "batch_size": SIZES[0] // GROUP,
        "steps": STEPS_EACH * len(SIZES),
        "sampling": {"max_tokens": 4},
        "vllm": {"max_model_len": 64},
    }


async def play(folder: Path) -> list[dict[str, float]]:
    """Run it; one row for each step."""
    file = prepare(folder)
    async with EmbeddedStack(folder / "home", agents=[AGENT], flags={"data_root": folder}) as stack:
        await stack.wait_ready()
        client, database = await connect_temporal(stack.settings), await connect_database(stack.settings)
        handle = await client.start_workflow(
            names.TRAINING_WORKFLOW, file, id=names.train_id(RUN), task_queue=names.ORCHESTRATOR_QUEUE
        )
        for number, size in enumerate(SIZES[1:], start=1):
            await planned(database, number * STEPS_EACH)
            await handle.execute_update("set_hyperparameters", {"batch_size": size // GROUP})
        await handle.result()
        rows = [dict(row) for row in await database.pool.fetch(TIMES, RUN)]
        await database.close()
    return rows


async def planned(database: Database, step: int) -> None:
    """Return when a step is planned."""
    while not await database.pool.fetchval("select 1 from steps where run = $1 and step = $2", RUN, step):  # noqa: ASYNC110
        await asyncio.sleep(0.05)


def overheads(rows: list[dict[str, Any]]) -> dict[int, list[float]]:
    """Milliseconds by rollouts a step; the first step of each size is a warm-up and not counted."""
    found: dict[int, list[float]] = {}
    for row in rows:
        if row["whole"] is None or row["file_seconds"] is None:
            continue
        rest = row["whole"] - row["rollout_seconds"] - row["update_seconds"] - row["file_seconds"]
        found.setdefault(row["rollouts"], []).append(1000 * rest)
    return {size: values[1:] if len(values) > 1 else values for size, values in found.items()}


def fit(points: dict[int, float]) -> tuple[float, float]:
    """Least squares: fixed milliseconds, and milliseconds a rollout."""
    line = statistics.linear_regression(list(points), list(points.values()))
    return line.intercept, line.slope


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """A step's times, to the millisecond."""
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with open_folder() as folder:
        rows = asyncio.run(play(folder))
    found = overheads(rows)
    medians = {size: statistics.median(values) for size, values in found.items()}
    fixed, each = fit(medians)
    if arguments.json:
        print(json.dumps({"fixed_ms": fixed, "ms_per_rollout": each, "median_ms": medians, "steps": rows}, default=str))
        return
    print("a step's overhead apart from rollouts, update and files")
    for size, milliseconds in medians.items():
        print(f"  {size:4} rollouts a step   {milliseconds:7.0f} ms (median of {len(found[size])} steps)")
    print(f"  fixed part {fixed:.0f} ms (wanted: under 400), and {each:.2f} ms a rollout (wanted: under 1)")
    for row in rows:
        print("  " + " ".join(f"{name}={value}" for name, value in shown(row).items()), file=sys.stderr)


if __name__ == "__main__":
    main()
