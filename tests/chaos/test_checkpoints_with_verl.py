"""The real verl between kills, and on another machine: its checkpoints carry all that the next update depends on.

The engine is the deterministic one, so that runs can be compared bit for bit: verl's updates on a CPU are repeatable.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from relight.faults import FaultPoint
from tests.chaos.bucket import s3_server
from tests.chaos.checkpoint_kit import (
    URL,
    gone_for_good,
    gpu_worker,
    in_the_middle_of,
    metric,
    process_died_at,
    soon_lost,
    version_is_recorded,
)
from tests.chaos.stack import FAST, TASKS, chaos_stack, open_folder
from tests.support.tiny_policy import make_tiny_policy

STEPS = 5


def prepare(folder: Path) -> None:
    make_tiny_policy(folder / "policy")
    tasks = [orjson.dumps({"question": f"{number}?"}) for number in range(TASKS)]
    (folder / "train.jsonl").write_bytes(b"\n".join(tasks))


WITH_VERL = replace(
    FAST,
    prepare=prepare,
    file={**FAST.file, "algorithm": {"learning_rate": 1e-3}},
    environment={name: value for name, value in FAST.environment.items() if name != "RELIGHT_TRAINER_MODULE"},
)


@pytest.mark.long
@pytest.mark.timeout(1500)
async def test_verl_continues_between_checkpoints_and_on_another_machine_with_the_same_result() -> None:
    with s3_server(), soon_lost(), open_folder() as folder, open_folder() as home:
        async with chaos_stack(folder, parts=WITH_VERL) as chaos:
            await (await chaos.start("undisturbed", STEPS)).result()
            undisturbed = await chaos.outcome("undisturbed")
            assert len(set(undisturbed.weights)) == STEPS + 1
            handle = await chaos.start("moved", STEPS, checkpoints=URL, checkpoint_every=2)
            await version_is_recorded(chaos, "moved", 3)
            await process_died_at(
                chaos, FaultPoint.TRAINED
            )  # making version 4, from checkpoint 2 and a replay of step 3
            await in_the_middle_of(chaos, "moved", 5)
            await gone_for_good(chaos)
            async with gpu_worker(chaos, home, "machine-2"):
                await handle.result()
                assert await chaos.outcome("moved") == undisturbed
                assert await metric(chaos, "moved", "replay/differs") == 0
