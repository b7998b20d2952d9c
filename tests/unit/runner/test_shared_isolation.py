"""Attempts that share a process: the same results, and what happens to neighbours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from relight.runner.shared_isolation import SharedRunner
from relight.semconv import AGL_ANNOTATION, AGL_MESSAGE
from relight.types.rollout import FailureClass
from tests.unit.runner.support import MISBEHAVING, Seen, call

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncGenerator[SharedRunner]:
    async with SharedRunner(MISBEHAVING, cancel_grace_seconds=0.5) as started:
        yield started


async def test_calls_share_one_process_with_separate_output_spans_and_errors(shared: SharedRunner) -> None:
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(shared.call(call("raises", f"r-{n}", text=f"text {n}"))) for n in range(5)]
        more = [group.create_task(shared.call(call("well", f"w-{n}", reward=n / 10))) for n in range(5)]
        last = group.create_task(shared.call(call("well_async", "a")))
    for n, one in enumerate(calls):
        assert one.result().message == f"LookupError: text {n}"
        assert one.result().output == "before the end\n"
    assert [one.result().reward for one in more] == [0.0, 0.1, 0.2, 0.3, 0.4]
    assert [len(one.result().spans) for one in more] == [1] * 5
    assert last.result().reward == 0.5


async def test_sys_exit_ends_its_own_call_only(shared: SharedRunner, seen: Seen, tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as group:
        quiet = group.create_task(shared.call(call("neighbour", "n", go=str(tmp_path / "go")), on_span=seen))
        await seen.ready.wait()
        assert (await shared.call(call("leaves"))).message == "SystemExit: enough"
        (tmp_path / "go").touch()
    assert quiet.result().reward == 0.75


async def test_a_span_that_may_be_of_several_attempts_is_counted_on_each_and_given_to_none(
    shared: SharedRunner, seen: Seen, tmp_path: Path
) -> None:
    async with asyncio.TaskGroup() as group:
        quiet = group.create_task(shared.call(call("neighbour", "n", go=str(tmp_path / "go")), on_span=seen))
        await seen.ready.wait()
        unclear = await shared.call(call("emits_without_a_context", "two"))
        (tmp_path / "go").touch()
    alone = await shared.call(call("emits_without_a_context", "one"))
    assert (unclear.spans_dropped, len(unclear.spans)) == (1, 1)  # the reward
    assert (quiet.result().spans_dropped, len(seen.spans)) == (1, 2)
    assert (alone.spans_dropped, [span.name for span in alone.spans]) == (0, [AGL_MESSAGE, AGL_ANNOTATION])


async def test_a_killed_call_does_not_affect_others_in_its_process(
    shared: SharedRunner, seen: Seen, tmp_path: Path
) -> None:
    quiet_seen = Seen()
    async with asyncio.TaskGroup() as group:
        quiet = group.create_task(shared.call(call("neighbour", "n", go=str(tmp_path / "go")), on_span=quiet_seen))
        patient = group.create_task(shared.call(call("patient"), on_span=seen))
        await seen.ready.wait()
        await quiet_seen.ready.wait()
        assert await shared.kill("at-1", FailureClass.CANCELLED, "on request")
        (tmp_path / "go").touch()
    assert (patient.result().kind, patient.result().message) == ("killed", "on request")
    assert quiet.result().reward == 0.75


@pytest.mark.parametrize("agent", ["stubborn", "busy", "busy_async", "thread_patient", "stops_itself"])
async def test_a_call_that_ignores_its_cancellation_ends_the_process_and_the_others_are_infrastructure(
    shared: SharedRunner, seen: Seen, tmp_path: Path, agent: str
) -> None:
    quiet_seen = Seen()
    async with asyncio.TaskGroup() as group:
        quiet = group.create_task(shared.call(call("neighbour", "n", go=str(tmp_path / "go")), on_span=quiet_seen))
        await quiet_seen.ready.wait()
        stubborn = group.create_task(shared.call(call(agent), on_span=seen))
        await seen.ready.wait()
        await shared.kill("at-1", FailureClass.TIMEOUT)
    assert (stubborn.result().kind, stubborn.result().failure_class) == ("killed", FailureClass.TIMEOUT)
    assert (quiet.result().kind, quiet.result().failure_class) == ("died", FailureClass.INFRASTRUCTURE)
    assert "shared with attempt at-1 was killed" in quiet.result().message
    assert (await shared.call(call("well"))).reward == 1.0


async def test_an_agent_that_claims_to_have_blocked_its_process_moves_deadlines_by_no_more_than_has_passed(
    shared: SharedRunner, seen: Seen, tmp_path: Path
) -> None:
    async with asyncio.TaskGroup() as group:
        quiet = group.create_task(shared.call(call("neighbour", "n", go=str(tmp_path / "go")), on_span=seen))
        await seen.ready.wait()
        assert (await shared.call(call("claims_to_have_blocked"))).reward == 1.0
        assert 0 < shared.held_seconds("n") < 3e6, "it claimed a year"
        (tmp_path / "go").touch()
    assert quiet.result().reward == 0.75


async def test_a_process_that_dies_fails_all_its_calls_as_infrastructure(
    shared: SharedRunner, seen: Seen, tmp_path: Path
) -> None:
    async with asyncio.TaskGroup() as group:
        quiet = group.create_task(shared.call(call("neighbour", "n", go=str(tmp_path / "go")), on_span=seen))
        await seen.ready.wait()
        loud = group.create_task(shared.call(call("exits")))
    for outcome in (quiet.result(), loud.result()):
        assert (outcome.kind, outcome.failure_class) == ("died", FailureClass.INFRASTRUCTURE)
        assert "ended (exit code 7" in outcome.message


async def test_a_process_death_counts_for_the_only_call_in_it(shared: SharedRunner) -> None:
    outcome = await shared.call(call("exits"))
    assert (outcome.kind, outcome.exit.code, outcome.failure_class) == ("died", 7, FailureClass.AGENT_ERROR)


async def test_an_isolated_call_gets_a_process_of_its_own(shared: SharedRunner, seen: Seen, tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as group:
        quiet = group.create_task(shared.call(call("neighbour", "n", go=str(tmp_path / "go")), on_span=seen))
        await seen.ready.wait()
        outcome = await shared.call(call("exits", alone=True))
        assert (outcome.kind, outcome.failure_class) == ("died", FailureClass.AGENT_ERROR)
        lonely = Seen()
        hanging = group.create_task(shared.call(call("busy", "b", alone=True), on_span=lonely))
        await lonely.ready.wait()
        assert await shared.kill("b", FailureClass.TIMEOUT)
        assert hanging.done() or (await hanging).kind == "killed"
        (tmp_path / "go").touch()
    assert quiet.result().reward == 0.75


async def test_cancelling_the_call_cancels_the_agent(shared: SharedRunner, seen: Seen) -> None:
    running = asyncio.create_task(shared.call(call("patient"), on_span=seen))
    await seen.ready.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await shared.call(call("well"))).reward == 1.0


async def test_long_output_is_cut_to_its_tail(shared: SharedRunner) -> None:
    outcome = await shared.call(call("prints", bytes=5_000_000))
    assert outcome.output_bytes > 4_900_000
    assert len(outcome.output.encode()) <= 64 * 1024
    assert outcome.output.endswith("the end \u2603\n")


async def test_a_large_task_and_a_large_result_pass(shared: SharedRunner) -> None:
    assert (await shared.call(call("well", text="x" * 5_000_000))).reward == 1.0
    assert (await shared.call(call("gives", what="text"))).failure_class is FailureClass.INVALID_REWARD
