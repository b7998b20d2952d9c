"""Attempts in processes of their own: what they give, how they end, what they leave behind."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relight.processes import linux
from relight.runner.agent_call import AgentOutcome
from relight.runner.process_isolation import IsolatedRunner
from relight.types.resources import LLM, PromptTemplate
from relight.types.rollout import FailureClass
from tests.unit.runner.support import MAX_SPANS, MISBEHAVING, Seen, call

pytestmark = pytest.mark.asyncio(loop_scope="module")

Pids = Callable[[], list[int]]


async def test_a_sync_agent_returns_its_reward(runner: IsolatedRunner) -> None:
    outcome = await runner.call(call("well", reward=0.25))
    assert (outcome.kind, outcome.reward, outcome.failure_class, outcome.message) == ("returned", 0.25, None, "")
    assert outcome.exit.code == 0
    assert outcome.exit.peak_rss_bytes > 0
    assert [span.name for span in outcome.spans] == ["agentlightning.annotation"]


async def test_an_async_agent_returns_named_rewards_with_the_primary_one_first(runner: IsolatedRunner) -> None:
    outcome = await runner.call(call("well_async"))
    assert list(outcome.rewards.items()) == [("exact", 0.5), ("short", 1.0)]


async def test_many_calls_run_at_once(runner: IsolatedRunner, tmp_path: Path) -> None:
    seen = [Seen() for _ in range(20)]
    async with asyncio.TaskGroup() as group:
        calls = [
            group.create_task(runner.call(call("neighbour", f"at-{n}", go=str(tmp_path / "go")), on_span=seen[n]))
            for n in range(20)
        ]
        for one in seen:
            await one.ready.wait()
        (tmp_path / "go").touch()
    assert {one.result().reward for one in calls} == {0.75}


async def test_an_agent_gets_its_model_and_rollout_and_none_of_the_runners_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RELIGHT_ADMIN_TOKEN", "hunter2")
    monkeypatch.setenv("DATABASE_URL", "postgres://hunter2")
    monkeypatch.setenv("SEARCH_KEY", "passed on")
    llm = LLM(endpoint="http://gateway/v1", model="policy", api_key="of this attempt")
    rollout = {
        "rollout_id": "ro-1",
        "start_time": 1.0,
        "mode": "train",
        "attempt": {"rollout_id": "ro-1", "attempt_id": "at-1", "sequence_id": 1, "start_time": 1.0},
    }
    resources = {"prompt": PromptTemplate(template="{x}")}
    async with IsolatedRunner(MISBEHAVING, passed_environment=["SEARCH_KEY"]) as runner:
        outcome = await runner.call(call("inspects_its_call", llm=llm, rollout=rollout, resources=resources))
    assert outcome.kind == "returned", outcome
    seen = outcome.spans[0].attributes
    assert "OPENAI_BASE_URL=http://gateway/v1" in seen["environment"]
    assert "OPENAI_API_KEY=of this attempt" in seen["environment"]
    assert "SEARCH_KEY=passed on" in seen["environment"]
    assert "hunter2" not in str(seen)
    assert seen["llm.model"] == "policy"
    assert seen["rollout.attempt.attempt_id"] == "at-1"
    assert seen["resources"] == ["prompt", "main_llm"]


async def test_the_fork_server_has_one_thread_and_no_heavy_module(runner: IsolatedRunner) -> None:
    report = await runner.start()
    assert report.threads == 1
    assert len(os.listdir(f"/proc/{report.pid}/task")) == 1
    llm = LLM(endpoint="http://gateway/v1", model="policy")
    rollout = {
        "rollout_id": "ro-1",
        "start_time": 1.0,
        "attempt": {"rollout_id": "ro-1", "attempt_id": "at-1", "sequence_id": 1, "start_time": 1.0},
    }
    outcome = await runner.call(call("inspects_its_call", llm=llm, rollout=rollout))
    modules = set(outcome.output.split("modules ", 1)[1].split())
    assert "relight.emitter" in modules
    assert modules.isdisjoint({"torch", "vllm", "verl", "temporalio", "grpc", "asyncpg", "aiohttp", "fastapi"})


async def test_a_task_of_megabytes_arrives_whole(runner: IsolatedRunner) -> None:
    outcome = await runner.call(call("well", reward=0.5, text="\u2603" * 8_000_000))
    assert outcome.reward == 0.5


async def test_an_agents_traceback_starts_at_its_own_first_frame(runner: IsolatedRunner) -> None:
    outcome = await runner.call(call("raises", text="no such thing"))
    assert (outcome.kind, outcome.failure_class) == ("raised", FailureClass.AGENT_ERROR)
    assert outcome.error is not None
    assert outcome.message == "LookupError: no such thing"
    assert outcome.error.traceback.splitlines()[1].strip().startswith(f'File "{MISBEHAVING[0].rpartition(":")[0]}"')
    assert outcome.output == "before the end\n"


async def test_sys_exit_is_an_error_of_the_agent(runner: IsolatedRunner) -> None:
    outcome = await runner.call(call("leaves"))
    assert (outcome.kind, outcome.message) == ("raised", "SystemExit: enough")


@pytest.mark.parametrize(
    ("agent", "exit_code", "by_signal", "message"),
    [
        ("exits", 7, None, "the agent's process exited with 7 before it returned"),
        ("segfaults", None, signal.SIGSEGV, "the agent's process was ended by SIGSEGV"),
        ("kills_itself", None, signal.SIGKILL, "the agent's process was ended by SIGKILL"),
    ],
)
async def test_a_process_that_ends_without_a_result_died(
    runner: IsolatedRunner, agent: str, exit_code: int | None, by_signal: int | None, message: str
) -> None:
    outcome = await runner.call(call(agent))
    assert (outcome.kind, outcome.exit.code, outcome.exit.signal) == ("died", exit_code, by_signal)
    assert (outcome.failure_class, outcome.message) == (FailureClass.AGENT_ERROR, message)


async def test_exit_code_0_without_a_result_is_no_success(runner: IsolatedRunner) -> None:
    outcome = await runner.call(call("exits", code=0))
    assert (outcome.kind, outcome.exit.code, outcome.failure_class) == ("died", 0, FailureClass.AGENT_ERROR)


async def _killed(runner: IsolatedRunner, seen: Seen, agent: str, **task: Any) -> AgentOutcome:
    async with asyncio.TaskGroup() as group:
        running = group.create_task(runner.call(call(agent, **task), on_span=seen))
        await seen.ready.wait()
        assert await runner.kill("at-1", FailureClass.TIMEOUT, "took too long")
    return running.result()


@pytest.mark.parametrize("agent", ["busy", "stubborn", "stops_itself", "patient"])
async def test_an_agent_that_hangs_is_killed(runner: IsolatedRunner, seen: Seen, agent: str) -> None:
    outcome = await _killed(runner, seen, agent)
    assert (outcome.kind, outcome.failure_class, outcome.exit.signal) == (
        "killed",
        FailureClass.TIMEOUT,
        signal.SIGKILL,
    )
    assert outcome.message == "took too long"


async def test_spans_arrive_while_the_agent_runs_and_outlive_it(runner: IsolatedRunner, seen: Seen) -> None:
    outcome = await _killed(runner, seen, "emits_then_hangs")
    names = [span.name.rpartition(".")[2] for span in seen.spans]
    assert names == ["annotation", "operation", "message"]
    assert seen.spans[0].parent_id == seen.spans[1].span_id
    assert len({span.trace_id for span in seen.spans}) == 1
    assert outcome.reward == 0.25
    assert outcome.spans == ()


@pytest.mark.parametrize("hang", [True, False])
@pytest.mark.parametrize("agent", ["has_children", "daemonizes"])
async def test_nothing_that_an_attempt_started_outlives_it(
    runner: IsolatedRunner, seen: Seen, pids: Pids, tmp_path: Path, agent: str, hang: bool
) -> None:
    task = {"pids": str(tmp_path / "pids"), "hang": hang}
    if hang:
        outcome = await _killed(runner, seen, agent, **task)
        assert outcome.kind == "killed"
    else:
        outcome = await runner.call(call(agent, **task))
        assert outcome.reward == 1.0
    assert len(pids()) == 3
    assert not [pid for pid in pids() if linux.alive(pid)]


async def test_cancelling_the_call_kills_the_attempt(
    runner: IsolatedRunner, seen: Seen, pids: Pids, tmp_path: Path
) -> None:
    running = asyncio.create_task(
        runner.call(call("has_children", pids=str(tmp_path / "pids"), hang=True), on_span=seen)
    )
    await seen.ready.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not [pid for pid in pids() if linux.alive(pid)]
    assert (await runner.call(call("well"))).reward == 1.0


NEIGHBOURS = [
    "busy",
    "exits",
    "segfaults",
    "kills_itself",
    "stops_itself",
    "raises",
    "daemonizes",
    "eats_memory",
    "garbage",
]


@pytest.mark.parametrize("agent", NEIGHBOURS)
async def test_other_attempts_are_not_affected(runner: IsolatedRunner, tmp_path: Path, agent: str) -> None:
    quiet = Seen()
    async with asyncio.TaskGroup() as group:
        neighbour = group.create_task(runner.call(call("neighbour", "at-2", go=str(tmp_path / "go")), on_span=quiet))
        await quiet.ready.wait()
        loud = Seen()
        misbehaving = call(agent, pids=str(tmp_path / "pids"), text="x", memory_limit_bytes=200 * 1024 * 1024)
        bad = group.create_task(runner.call(misbehaving, on_span=loud))
        if agent in ("busy", "stops_itself"):
            await loud.ready.wait()
            await runner.kill("at-1", FailureClass.UNRESPONSIVE)
        await bad
        (tmp_path / "go").touch()
    assert neighbour.result().reward == 0.75


async def test_children_of_a_running_attempt_are_no_leftovers_of_another(
    runner: IsolatedRunner, seen: Seen, pids: Pids, tmp_path: Path
) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(runner.call(call("daemonizes", "at-2", pids=str(tmp_path / "pids"), hang=True), on_span=seen))
        await seen.ready.wait()
        await runner.call(call("well"))
        assert all(linux.alive(pid) for pid in pids())
        await runner.kill("at-2", FailureClass.CANCELLED)
    assert not any(linux.alive(pid) for pid in pids())


async def test_an_agent_that_forks_and_returns_twice_has_one_result(runner: IsolatedRunner) -> None:
    outcome = await runner.call(call("forks_and_both_return"))
    assert (outcome.reward, len(outcome.spans), outcome.spans_dropped) == (1.0, 1, 0)


async def test_spans_from_threads_and_child_processes_arrive_whole(runner: IsolatedRunner) -> None:
    outcome = await runner.call(call("emits_from_everywhere"))
    numbers = [(s.attributes["index"], s.attributes["number"]) for s in outcome.spans if "index" in s.attributes]
    assert sorted(numbers) == [(index, number) for index in range(4) for number in range(50)]
    assert outcome.spans_dropped == 0


async def test_spans_over_the_limit_are_dropped_and_the_reward_still_counts(
    runner: IsolatedRunner,
) -> None:
    outcome = await runner.call(call("floods_spans", count=500))
    assert (len(outcome.spans), outcome.spans_dropped, outcome.reward) == (MAX_SPANS, 501 - MAX_SPANS, 0.5)


async def test_200_mb_of_output_leave_a_tail_and_a_count(runner: IsolatedRunner) -> None:
    outcome = await runner.call(call("prints", bytes=200_000_000))
    assert outcome.reward == 1.0
    assert outcome.output_bytes > 199_000_000
    assert len(outcome.output.encode()) <= 64 * 1024
    assert outcome.output.endswith("\nthe end \u2603\n")


async def test_output_that_is_no_text_can_be_stored(runner: IsolatedRunner) -> None:
    outcome = await runner.call(call("prints_to_stderr_by_descriptor"))
    assert outcome.output == "raw \ufffd\ufffd bytes\n"


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("nan", "reward must be a finite number, not nan"),
        ("text", "returned str of length 10000000"),
        ("object", "returned object"),
        ("names", "call the reward to train on 'primary'"),
    ],
)
async def test_a_value_that_is_no_reward_is_data(runner: IsolatedRunner, what: str, says: str) -> None:
    outcome = await runner.call(call("gives", what=what))
    assert (outcome.kind, outcome.reward, outcome.failure_class) == ("returned", None, FailureClass.INVALID_REWARD)
    assert says in outcome.message
    assert len(outcome.message) < 1000


async def test_an_agent_over_its_memory_limit_gets_its_own_class(runner: IsolatedRunner) -> None:
    outcome = await runner.call(call("eats_memory", memory_limit_bytes=200 * 1024 * 1024))
    assert (outcome.kind, outcome.failure_class) == ("raised", FailureClass.OUT_OF_MEMORY)
    assert outcome.error is not None
    assert outcome.error.type == "MemoryError"
    assert "eats_memory" in outcome.error.traceback
    assert outcome.exit.peak_rss_bytes < 400 * 1024 * 1024


async def test_an_invalid_frame_on_the_result_channel_ends_the_attempt(runner: IsolatedRunner) -> None:
    outcome = await runner.call(call("garbage"))
    assert (outcome.kind, outcome.failure_class) == ("died", FailureClass.AGENT_ERROR)
    assert "an invalid message" in outcome.message


async def test_an_error_of_the_span_callback_reaches_the_caller(runner: IsolatedRunner) -> None:
    def fail(span: object) -> None:
        raise OSError("outbox is full")

    with pytest.raises(OSError, match="outbox is full"):
        await runner.call(call("well"), on_span=fail)
    assert (await runner.call(call("well"))).reward == 1.0


async def test_killing_an_unknown_attempt_reports_false(runner: IsolatedRunner) -> None:
    assert not await runner.kill("at-9", FailureClass.TIMEOUT)


async def test_two_calls_of_one_id_are_refused(runner: IsolatedRunner, seen: Seen, tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(runner.call(call("neighbour", go=str(tmp_path / "go")), on_span=seen))
        await seen.ready.wait()
        with pytest.raises(ValueError, match="running already"):
            await runner.call(call("well"))
        (tmp_path / "go").touch()


async def test_when_the_fork_server_dies_its_attempts_end_and_the_next_call_has_a_new_one(
    runner: IsolatedRunner, seen: Seen, pids: Pids, tmp_path: Path
) -> None:
    first = (await runner.start()).pid
    async with asyncio.TaskGroup() as group:
        running = group.create_task(
            runner.call(call("daemonizes", pids=str(tmp_path / "pids"), hang=True), on_span=seen)
        )
        await seen.ready.wait()
        os.kill(first, signal.SIGKILL)
    outcome = running.result()
    assert (outcome.kind, outcome.failure_class) == ("died", FailureClass.INFRASTRUCTURE)
    assert outcome.message == "the fork server died"
    assert not [pid for pid in pids() if linux.alive(pid)]
    assert (await runner.call(call("well"))).reward == 1.0
    assert (await runner.start()).pid != first


async def test_an_agent_that_kills_the_fork_server_is_an_infrastructure_failure(unconfined: IsolatedRunner) -> None:
    assert (await unconfined.call(call("kills_fork_server"))).failure_class is FailureClass.INFRASTRUCTURE
    assert (await unconfined.call(call("kills_fork_server"))).failure_class is FailureClass.INFRASTRUCTURE
    assert (await unconfined.call(call("well"))).reward == 1.0


async def test_a_stopped_fork_server_is_replaced(unconfined: IsolatedRunner, seen: Seen) -> None:
    first = (await unconfined.start()).pid
    outcome = await _killed(unconfined, seen, "stops_fork_server")
    assert outcome.kind == "killed"
    assert not linux.alive(first)
    assert (await unconfined.call(call("well"))).reward == 1.0


async def test_closing_the_runner_ends_its_attempts(seen: Seen, pids: Pids, tmp_path: Path) -> None:
    runner = IsolatedRunner(MISBEHAVING)
    template = (await runner.start()).pid
    async with asyncio.TaskGroup() as group:
        running = group.create_task(
            runner.call(call("daemonizes", pids=str(tmp_path / "pids"), hang=True), on_span=seen)
        )
        await seen.ready.wait()
        await runner.close()
    assert running.result().failure_class is FailureClass.INFRASTRUCTURE
    assert not [pid for pid in (template, *pids()) if linux.alive(pid)]


async def test_calls_leak_no_file_descriptors(runner: IsolatedRunner) -> None:
    template = (await runner.start()).pid
    await runner.call(call("well"))
    before = len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{template}/fd"))
    for agent in ("well", "exits", "raises", "garbage"):
        await runner.call(call(agent, text="x"))
    assert (len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{template}/fd"))) == before


async def test_numpys_random_numbers_differ_between_attempts(runner: IsolatedRunner) -> None:
    pytest.importorskip("numpy")
    drawn = {(await runner.call(call("random_numbers"))).reward for _ in range(3)}
    assert len(drawn) == 3


async def test_calls_that_are_cancelled_at_any_moment_leave_nothing(
    runner: IsolatedRunner, pids: Pids, tmp_path: Path
) -> None:
    """Killed or cancelled before the fork, while a long task is sent, while it runs, while it ends."""
    template = (await runner.start()).pid
    await runner.call(call("well"))
    before = len(os.listdir("/proc/self/fd"))
    draw = random.Random(7)

    async def one(number: int) -> None:
        text = "x" * draw.choice([0, 0, 3_000_000])
        misbehaving = call(
            "has_children", f"at-{number}", pids=str(tmp_path / "pids"), hang=draw.random() < 0.5, text=text
        )
        running = asyncio.create_task(runner.call(misbehaving))
        await asyncio.sleep(draw.random() * 0.2)
        if draw.random() < 0.5:
            running.cancel()
        else:
            await runner.kill(misbehaving.call_id, FailureClass.CANCELLED)
        await asyncio.wait([running])

    for start in range(0, 40, 8):
        await asyncio.gather(*(one(number) for number in range(start, start + 8)))
    assert not [pid for pid in pids() if linux.alive(pid)]
    assert linux.children(template) == []
    assert len(os.listdir("/proc/self/fd")) == before
    assert (await runner.start()).pid == template
