"""Each fault point kills its process once, and the run ends as if nothing had happened."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Sequence

import pytest
import pytest_asyncio
from temporalio.client import WorkflowFailureError

from relight.cli.store_reader import StoreReader
from relight.errors import StoreError
from relight.faults import FaultPoint, arm, is_armed
from relight.operators.operator import send_command
from relight.types import names
from tests.chaos.stack import ChaosStack, Outcome, chaos_stack, open_folder

STEPS = 14
REFERENCE = "undisturbed"
POINTS = {
    "store": [FaultPoint.OPENED, FaultPoint.FINISHED, FaultPoint.GENERATION_COMMITTED],
    "gateway": [FaultPoint.CALL_COMMITTED, FaultPoint.ANSWER_SENT],
    "runner": [FaultPoint.ATTEMPT_KNOWN, FaultPoint.AGENT_ENDED, FaultPoint.ATTEMPT_RECORDED],
    "orchestrator": [FaultPoint.PLANNED, FaultPoint.BATCH_CLOSED],
    "gpu-worker": [
        FaultPoint.LEDGERED,
        FaultPoint.TRAINED,
        FaultPoint.SAVED,
        FaultPoint.VERSION_RECORDED,
        FaultPoint.PUBLISHED,
        FaultPoint.ACKNOWLEDGED,
        FaultPoint.STEP_RECORDED,
    ],
}
CANCELS = [
    (FaultPoint.CANCEL_WRITTEN, "http"),
    (FaultPoint.CANCEL_TO_SEND, "http"),
    (FaultPoint.CANCEL_TO_SEND, "update"),
    (FaultPoint.CANCEL_SENT, "update"),
]
"""Between the row of a cancel, its answer and Temporal's own cancel; and the way by which it is asked for."""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def chaos() -> AsyncGenerator[ChaosStack]:
    with open_folder() as folder:
        async with chaos_stack(folder) as stack:
            yield stack


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def undisturbed(chaos: ChaosStack) -> Outcome:
    await (await chaos.start(REFERENCE, STEPS)).result()
    return await chaos.outcome(REFERENCE)


def test_every_fault_point_is_reached() -> None:
    elsewhere = {FaultPoint.UPLOADING}  # in test_checkpoints.py: this run's storage is a directory
    of_cancels = {point for point, _ in CANCELS}
    assert {point for points in POINTS.values() for point in points} | elsewhere | of_cancels == set(FaultPoint)


@pytest.mark.asyncio(loop_scope="module")
async def test_two_runs_without_faults_are_equal_bit_for_bit(chaos: ChaosStack, undisturbed: Outcome) -> None:
    await (await chaos.start("again", STEPS)).result()
    assert await chaos.outcome("again") == undisturbed
    assert undisturbed.status == "finished"
    assert undisturbed.steps == list(range(1, STEPS + 1))
    assert len(set(undisturbed.weights)) == STEPS + 1
    assert len(undisturbed.trained) == 8 * STEPS
    assert not undisturbed.ran_again


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("processes", [("store", "gateway", "runner", "orchestrator"), ("gpu-worker",)], ids="-".join)
async def test_a_run_has_the_same_result_whichever_fault_point_kills_its_processes(
    chaos: ChaosStack, undisturbed: Outcome, processes: Sequence[str]
) -> None:
    run = f"killed-{processes[0]}"
    restarts = {process: chaos.stack.process(process).restarts for process in processes}
    handle = await chaos.start(run, STEPS)
    for process in processes:
        for point in POINTS[process]:
            await kill_at(chaos, run, point)
    await handle.result()
    since = {process: chaos.stack.process(process).restarts - restarts[process] for process in processes}
    assert since == {process: len(POINTS[process]) for process in processes}
    assert await chaos.outcome(run) == undisturbed


async def kill_at(chaos: ChaosStack, run: str, point: FaultPoint) -> None:
    """Arm the point, and return when a process has died there and the run has progressed since."""
    arm(chaos.faults, point)
    async with asyncio.timeout(90):
        while is_armed(chaos.faults, point):  # noqa: ASYNC110  # a file
            await asyncio.sleep(0.05)
        recorded = await chaos.recorded(run)
        while await chaos.recorded(run) == recorded < STEPS:  # noqa: ASYNC110  # a row
            await asyncio.sleep(0.1)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("point", "way"), CANCELS)
async def test_rule_20_a_recorded_cancel_ends_its_run_whichever_process_dies(
    chaos: ChaosStack, point: FaultPoint, way: str
) -> None:
    run = f"{point}-{way}"
    await chaos.start(run, 500)
    await until_sampling(chaos, run)
    arm(chaos.faults, point)
    if way == "http":
        await cancel(chaos, run, lost=point is FaultPoint.CANCEL_WRITTEN)
    else:
        await send_command(chaos.client, run, names.CANCEL, {"actor": "ada"})
    await ends_cancelled(chaos, run)
    assert not is_armed(chaos.faults, point)


@pytest.mark.asyncio(loop_scope="module")
async def test_rule_20_a_cancel_is_answered_while_temporal_is_down_and_ends_the_run_when_it_is_back(
    chaos: ChaosStack,
) -> None:
    await chaos.start("unreached", 500)
    await until_sampling(chaos, "unreached")
    async with chaos.held_down("temporal"):
        await cancel(chaos, "unreached")
    await ends_cancelled(chaos, "unreached")


@pytest.mark.asyncio(loop_scope="module")
async def test_rule_20_a_cancel_during_an_update_ends_the_run_though_gpu_worker_and_orchestrator_are_killed(
    chaos: ChaosStack,
) -> None:
    await chaos.start("updating", 500)
    await until_sampling(chaos, "updating")
    hold = chaos.holds["gpu-worker"]
    hold.open.clear()
    try:
        arm(chaos.faults, FaultPoint.LEDGERED)
        async with asyncio.timeout(60):
            while is_armed(chaos.faults, FaultPoint.LEDGERED):  # noqa: ASYNC110  # a file
                await asyncio.sleep(0.05)
        await cancel(chaos, "updating")
        chaos.stack.kill("orchestrator", signal.SIGKILL)
    finally:
        hold.open.set()
    await ends_cancelled(chaos, "updating")
    ledgered = await chaos.recorded("updating") + 1
    query = "select max(version) from policy_versions where run = 'updating'"
    assert await chaos.database.pool.fetchval(query) == ledgered - 1


async def until_sampling(chaos: ChaosStack, run: str) -> None:
    async with asyncio.timeout(60):
        while await chaos.recorded(run) < 1:  # noqa: ASYNC110  # a row
            await asyncio.sleep(0.05)


async def cancel(chaos: ChaosStack, run: str, lost: bool = False) -> None:
    """As `relight cancel` does. The answer is lost where the store dies before it."""
    async with StoreReader.from_settings(chaos.stack.settings) as store:
        try:
            done = await store.give_command(run, names.CANCEL, {"actor": "ada"}, f"cancel-{run}")
        except StoreError:
            assert lost
        else:
            assert done.result is not None


async def ends_cancelled(chaos: ChaosStack, run: str) -> None:
    """The run ends, nothing of it was planned since, and one audit row says who ended it."""
    pool = chaos.database.pool
    assert await pool.fetchval("select cancel_requested from runs where run = $1", run) is not None
    asked = await pool.fetchval("select clock_timestamp()")
    async with asyncio.timeout(90):
        with pytest.raises(WorkflowFailureError):
            await chaos.client.get_workflow_handle(names.train_id(run)).result()
    assert await pool.fetchval("select status from runs where run = $1", run) == "cancelled"
    for table, moment in (("steps", "planned_at"), ("rollouts", "created_at")):
        assert await pool.fetchval(f"select count(*) from {table} where run = $1 and {moment} > $2", run, asked) == 0
    late = "select count(*) from attempts a join rollouts r using (rollout_id) where run = $1 and a.started_at > $2"
    assert await pool.fetchval(late, run, asked) == 0
    audit = await pool.fetch("select actor, action from audit where run = $1", run)
    assert [tuple(row) for row in audit] == [("ada", "cancel")]
