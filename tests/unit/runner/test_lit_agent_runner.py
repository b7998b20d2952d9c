"""`LitAgentRunner`, by hand against a store in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

import relight
from relight.emitter import emit_message, emit_reward
from relight.emitter.reading import find_final_reward
from relight.errors import ConflictError, PostgresError
from relight.litagent import LitAgent, rollout
from relight.runner import LitAgentRunner
from relight.runner.base import RunContext, Runner
from relight.runner.worker_heartbeat import system_snapshot
from relight.store.memory.lightning import InMemoryLightningStore
from relight.tracer.base import Tracer
from relight.tracer.dummy import DummyTracer
from relight.types.hooks import Hook
from relight.types.resources import LLM, NamedResources, PromptTemplate, ProxyLLM
from relight.types.rollout import Attempt, AttemptedRollout, RolloutConfig
from relight.types.store import Worker
from relight.types.tracer import Span
from tests.support.lightning_kit import prompts

Store = InMemoryLightningStore


@pytest.fixture
async def store() -> Store:
    """With resources."""
    store = InMemoryLightningStore()
    await store.update_resources("rs", prompts())
    return store


def running(
    agent: LitAgent[Any], store: Store, *hooks: Hook, tracer: Tracer | None = None, **options: Any
) -> RunContext[LitAgentRunner[Any]]:
    """A runner within its context."""
    runner = LitAgentRunner[Any](tracer or DummyTracer(), poll_interval=0.01, interval_jitter=0.0, **options)
    return runner.run_context(agent=agent, store=store, hooks=hooks)


async def last_attempt(store: Store) -> Attempt:
    """That of the newest rollout."""
    found = (await store.query_rollouts())[-1]
    assert isinstance(found, AttemptedRollout)
    return found.attempt


async def names(store: Store) -> list[str]:
    """Names of the newest rollout's spans."""
    return [span.name for span in await store.query_spans((await store.query_rollouts())[-1].rollout_id)]


class Recorded(Hook):
    """Keeps its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.spans: list[Span] = []

    async def on_rollout_start(self, *, agent: Any, runner: Any, rollout: AttemptedRollout) -> None:
        self.calls.append(f"start {rollout.input} {runner.get_worker_id()}")

    async def on_trace_start(self, tracer: Any) -> None:
        self.calls.append(f"trace {type(tracer).__name__}")

    def on_trace_end(self) -> None:  # type: ignore[override] # hooks may be synchronous, and take what they need
        self.calls.append("trace end")

    async def on_rollout_end(self, **given: Any) -> None:
        self.calls.append(f"end {sorted(given)}")
        self.spans = given["spans"]


@rollout
def rewarded(task: Any) -> float:
    """Emits a message, and returns a reward."""
    emit_message("thinking")
    return 0.5


@pytest.mark.parametrize("as_async", [True, False])
async def test_a_step_runs_an_agent_and_returns_its_rollout(store: Store, as_async: bool) -> None:
    context, hook = running(rewarded, store, recorded := Recorded()), recorded
    if as_async:
        async with context as runner:
            ended = await runner.step("a", mode="train")
    else:
        with context as runner:
            ended = await runner.step("a", mode="train")
    assert (ended.status, ended.reward, ended.mode) == ("succeeded", 0.5, "train")
    assert await names(store) == ["agentlightning.message", "agentlightning.annotation"]
    assert hook.calls == [
        "start a Worker-0",
        "trace DummyTracer",
        "trace end",
        "end ['agent', 'rollout', 'runner', 'spans']",
    ]
    assert find_final_reward(hook.spans) == 0.5
    assert (runner.worker_id, runner.get_worker_id()) == (None, "Worker-Unknown")
    with pytest.raises(ValueError, match="run_context"):
        runner.get_agent()
    with pytest.raises(ValueError, match="run_context"):
        runner.get_store()


async def test_resources_of_a_step_are_the_agents(store: Store) -> None:
    @rollout
    async def agent(task: Any, llm: LLM, prompt_template: PromptTemplate) -> float:
        return float(llm.model == "m" and prompt_template.template == "{x}")

    given = {"model": LLM(endpoint="http://e", model="m"), "prompt": PromptTemplate(template="{x}")}
    with running(agent, store) as runner:
        assert (await runner.step("a", resources=given)).reward == 1.0
        with pytest.raises(ValueError, match="asks for an LLM"):
            await runner.step("a", resources=prompts())


async def test_a_proxys_model_is_bound_to_the_attempt(store: Store) -> None:
    @rollout
    async def agent(task: Any, llm: LLM, rollout: AttemptedRollout) -> float:
        path = f"http://e/rollout/{rollout.rollout_id}/attempt/{rollout.attempt.attempt_id}/v1"
        return float((llm.endpoint, llm.model, llm.api_key) == (path, "m", "key"))

    with running(agent, store) as runner:
        given: NamedResources = {"model": ProxyLLM(endpoint="http://e/v1", model="m", api_key="key")}
        assert (await runner.step("a", resources=given)).reward == 1.0


async def test_the_mode_chooses_the_method_and_the_agent_knows_its_runner(store: Store) -> None:
    class Modes(LitAgent[Any]):
        async def training_rollout_async(self, task: Any, resources: Any, rollout: Any) -> float:
            return 0.25

        async def validation_rollout_async(self, task: Any, resources: Any, rollout: Any) -> float:
            assert self.tracer is self.runner.tracer
            await self.runner.get_store().update_worker("seen", {})
            return 0.75

    with running(Modes(), store) as runner:
        assert [(await runner.step("a", mode=mode)).reward for mode in ("train", "val", None)] == [0.25, 0.75, 0.75]
    assert await store.get_worker_by_id("seen")
    with pytest.raises(ValueError, match="has no runner"):
        Modes().get_runner()


async def test_what_an_agent_raises_fails_its_attempt_with_its_message_and_keeps_its_spans(store: Store) -> None:
    @rollout
    def failing(task: Any) -> None:
        emit_message("before")
        raise KeyError("lost")

    hook = Recorded()
    with running(failing, store, hook) as runner, pytest.raises(KeyError, match="lost"):
        await runner.step("a")
    attempt = await last_attempt(store)
    assert (attempt.status, attempt.metadata["error"]) == ("failed", "KeyError: 'lost'")
    assert await names(store) == ["agentlightning.message"]
    assert (hook.calls[-1][:3], len(hook.spans)) == ("end", 1)


@pytest.mark.parametrize(("value", "why"), [("text", "the agent returned str"), (float("nan"), "nan"), ([1], "list")])
async def test_a_value_that_is_no_reward_fails_the_attempt(store: Store, value: Any, why: str) -> None:
    with running(rollout(lambda task: value), store) as runner, pytest.raises(TypeError, match=why):
        await runner.step("a")
    assert why in (await last_attempt(store)).metadata["error"]


async def test_spans_that_an_agent_returns_are_stored_once(store: Store) -> None:
    with running(
        rollout(lambda task: [emit_reward(0.25, propagate=False), emit_reward(0.75, propagate=False)]), store
    ) as runner:
        assert (await runner.step("a")).reward == 0.75
    assert await names(store) == ["agentlightning.annotation"] * 2


class Foreign(Tracer):
    """A tracer of before 0.3: a synchronous context, and nothing recorded of what is emitted."""

    @contextmanager
    def trace_context(self, name: str | None = None, **ids: Any) -> Generator[None]:  # type: ignore[override]
        yield


async def test_a_tracer_that_records_no_emitted_spans_loses_no_returned_ones(store: Store) -> None:
    hook = Recorded()
    with running(rollout(lambda task: 0.5), store, tracer=Foreign()) as runner:
        assert (await runner.step("a")).reward == 0.5
    with running(rollout(lambda task: [emit_reward(0.75)]), store, hook, tracer=Foreign()) as runner:
        assert (await runner.step("b")).reward == 0.75
    assert [span.name for span in hook.spans] == ["agentlightning.annotation"]


async def test_without_resources_an_attempt_fails_and_says_what_is_missing() -> None:
    empty = InMemoryLightningStore()
    with running(rewarded, empty) as runner, pytest.raises(LookupError, match=r"no resources; add some"):
        await runner.step("a")
    assert (await last_attempt(empty)).status == "failed"


async def test_iter_runs_so_many_rollouts_and_goes_on_after_one_that_failed(store: Store) -> None:
    seen: list[int] = []

    @rollout
    def agent(task: int) -> None:
        seen.append(task)
        if task == 0:
            raise RuntimeError("the first")

    for number in range(3):
        await store.enqueue_rollout(number)
    with running(agent, store, max_rollouts=2) as runner:
        await asyncio.wait_for(runner.iter(), 20)
    assert seen == [0, 1]
    assert [row.status for row in await store.query_rollouts()] == ["failed", "succeeded", "queuing"]


async def test_iter_stops_when_it_is_asked_to_and_reports_its_worker(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, reported = threading.Event(), threading.Event()
    update = store.update_worker

    async def update_worker(worker_id: str, heartbeat_stats: dict[str, Any]) -> Worker:
        worker = await update(worker_id, heartbeat_stats)
        reported.set()
        return worker

    monkeypatch.setattr(store, "update_worker", update_worker)

    @rollout
    def agent(task: Any) -> float:
        stop.set()
        return float(reported.wait(20))

    for mode in ("thread", "asyncio"):
        stop.clear()
        reported.clear()
        await store.enqueue_rollout(mode)
        with running(agent, store, heartbeat_launch_mode=mode, heartbeat_interval=0.05) as runner:
            await asyncio.wait_for(runner.iter(event=stop), 30)
    assert [row.reward for row in await store.query_rollouts()] == [1.0, 1.0]
    worker = await store.get_worker_by_id("Worker-0")
    assert worker is not None
    assert {"host", "mem_total_gb", "disk_used_gb", "timestamp"} <= (worker.heartbeat_stats or {}).keys()
    assert "gpus" in system_snapshot(include_gpu=True)


async def test_a_synchronous_agent_does_not_block_the_event_loop(store: Store) -> None:
    gate = threading.Event()
    with running(rollout(lambda task: float(gate.wait(20))), store) as runner:
        step = asyncio.create_task(runner.step("a"))
        await asyncio.sleep(0)
        gate.set()  # by the event loop, which the agent would hold up for 20 s
        assert (await step).reward == 1.0


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_an_attempt_ends_at_its_deadline_and_no_hook_runs_any_more(store: Store, kind: str) -> None:
    forever = threading.Event()

    async def waiting(task: Any) -> None:
        await asyncio.Event().wait()

    hook = Recorded()
    await store.enqueue_rollout("a", config=RolloutConfig(timeout_seconds=0.2))
    agent = rollout(waiting) if kind == "async" else rollout(lambda task: forever.wait())
    with running(agent, store, hook, max_rollouts=1) as runner:
        await asyncio.wait_for(runner.iter(), 20)
    forever.set()
    attempt = await last_attempt(store)
    assert attempt.status == "timeout"
    assert "no further hook has run" in attempt.metadata["error"]
    assert [call.partition(" ")[0] for call in hook.calls] == ["start", "trace"]


async def test_a_hook_that_raises_is_recorded_and_harms_neither_the_attempt_nor_other_hooks(store: Store) -> None:
    class Broken(Hook):
        async def on_trace_start(self, **given: Any) -> None:
            raise RuntimeError("broken")

    hook = Recorded()
    with running(rewarded, store, Broken(), hook) as runner:
        assert (await runner.step("a")).status == "succeeded"
    assert len(hook.calls) == 4
    assert (await last_attempt(store)).metadata == {"hook_errors": ["on_trace_start of Broken: RuntimeError: broken"]}


async def test_an_end_that_can_not_be_recorded_is_an_error_unless_another_one_is(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreachable(*ids: str, **changes: Any) -> Attempt:
        raise PostgresError("can't reach Postgres")

    async def decided(*ids: str, **changes: Any) -> Attempt:
        raise ConflictError("ended as timeout")

    with running(rewarded, store, max_rollouts=1) as runner:
        monkeypatch.setattr(store, "update_attempt", decided)
        await runner.step("a")
        monkeypatch.setattr(store, "update_attempt", unreachable)
        with pytest.raises(PostgresError):
            await runner.step("a")
        await store.enqueue_rollout("a")
        with pytest.raises(PostgresError):
            await asyncio.wait_for(runner.iter(), 20)


async def test_a_cancelled_step_leaves_no_attempt_open(store: Store) -> None:
    started = asyncio.Event()

    @rollout
    async def agent(task: Any) -> None:
        started.set()
        await asyncio.Event().wait()

    with running(agent, store) as runner:
        step = asyncio.create_task(runner.step("a"))
        await started.wait()
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
    assert (await last_attempt(store)).status == "failed"


class Ends(DummyTracer):
    """Counts what is called, and fails where it is told to."""

    def __init__(self, fails: str = "") -> None:
        self.calls: list[str] = []
        self.fails = fails

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fails:
            raise RuntimeError(name)

    def init(self, *args: Any, **kwargs: Any) -> None:
        self._called("init")

    def init_worker(self, *args: Any, **kwargs: Any) -> None:
        self._called("init_worker")

    def teardown_worker(self, *args: Any, **kwargs: Any) -> None:
        self._called("teardown_worker")

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        self._called("teardown")


@pytest.mark.parametrize(
    ("fails", "called"),
    [
        ("init", ["init"]),
        ("init_worker", ["init", "init_worker", "teardown"]),
        ("teardown_worker", ["init", "init_worker", "teardown_worker", "teardown"]),
        ("teardown", ["init", "init_worker", "teardown_worker", "teardown"]),
    ],
)
def test_what_a_context_has_begun_it_ends(fails: str, called: list[str], caplog: pytest.LogCaptureFixture) -> None:
    tracer = Ends(fails)
    context = running(rewarded, InMemoryLightningStore(), tracer=tracer)
    if fails.startswith("init"):
        with pytest.raises(RuntimeError, match=fails), context:
            pass
    else:
        with context:
            pass
        assert "Error during runner" in caplog.text
    assert tracer.calls == called


def test_its_names_are_where_0_3_has_them() -> None:
    assert relight.LitAgentRunner is LitAgentRunner
    assert (relight.Runner, relight.Hook) == (Runner, Hook)
    with pytest.raises(RuntimeError, match="iter"):
        Runner[Any]().run()
    with pytest.raises(ValueError, match="heartbeat_launch_mode: 'x'"):
        LitAgentRunner[Any](DummyTracer(), heartbeat_launch_mode="x")  # type: ignore[arg-type]


class Unequal(float):
    """A reward whose comparison is no truth value, as numpy's with a list."""

    def __eq__(self, other: object) -> Any:
        raise ValueError("the truth value is ambiguous")

    __hash__ = float.__hash__


async def test_a_reward_of_any_kind_of_number_counts(store: Store) -> None:
    @rollout
    def agent(task: Any) -> float:
        return Unequal(0.5)

    with running(agent, store) as runner:
        assert (await runner.step("a")).reward == 0.5


async def test_a_cancelled_task_of_the_agents_own_fails_its_attempt_alone(store: Store) -> None:
    @rollout
    async def agent(task: Any) -> float:
        if task == "cancels":
            waiting = asyncio.create_task(asyncio.sleep(60))
            waiting.cancel()
            await waiting
        return 1.0

    await store.enqueue_rollout("cancels")
    await store.enqueue_rollout("goes on")
    with running(agent, store, max_rollouts=2) as runner:
        await runner.iter()
    ended = {str(found.input): found.status for found in await store.query_rollouts()}
    assert ended == {"cancels": "failed", "goes on": "succeeded"}
