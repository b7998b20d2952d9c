"""A run without a model: the real workflows, planning, store and ledger; scripted agents and a trainer that adds one.

The GPU worker and the runner are scripted here because these tests need faults and speed; the real ones run the same
workflows in tests/e2e.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import orjson
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from relight.activities.orchestrator import OrchestratorActivities
from relight.observability.process_reports import Doing
from relight.runner.agent_call import AgentCall, AgentOutcome
from relight.runner.attempt_activity import result_of
from relight.runner.collector import OnSpan
from relight.runner.grading_activity import GradingActivities
from relight.runner.process_isolation import AgentRunner
from relight.store.attempts.postgres import PostgresStore
from relight.store.database import Database
from relight.store.training import ledger
from relight.store.training.ledger import PolicyVersion, Sample, choose, get_step, read_candidates
from relight.store.training.plans import ResolvedPlan, begin_update
from relight.temporal.activity_interceptor import ActivityInterceptor
from relight.types import names
from relight.types.payloads import (
    AttemptInput,
    EngineState,
    GpuClaim,
    GradeInput,
    RolloutResult,
    RunRequest,
    StepInput,
    UpdateResult,
)
from relight.types.wire import FinishRequest, OpenedAttempt, OpenRequest
from relight.worker.orchestrator import activities_of, make_worker
from tests.support.store_kit import grading_of

Agent = Callable[[OpenedAttempt], Awaitable[FinishRequest]]
Grader = Callable[[AgentCall], Awaitable[AgentOutcome]]


async def always_right(attempt: OpenedAttempt) -> FinishRequest:
    """Reward 1 for samples with an even number in their id's last digit, else 0: groups have something to compare."""
    reward = float(int(attempt.rollout_id[-1]) % 2 == 0)
    return FinishRequest(attempt_id=attempt.attempt_id, fence=attempt.fence, reward=reward)


async def heartbeat() -> None:
    """A cancel comes with the answer to a heartbeat."""
    while True:
        activity.heartbeat()
        await asyncio.sleep(0.5)


class ScriptedRunner:
    """Runs attempts as the agent function says; counts how often each rollout ran."""

    def __init__(self, store: PostgresStore, agent: Agent) -> None:
        self.store = store
        self.agent = agent
        self.ran: Counter[str] = Counter()
        self.own_rewards: dict[str, float | None] = {}
        """By attempt, where a grader had the last word."""

    @activity.defn(name=names.RUN_ATTEMPT)
    async def run_attempt(self, attempt: AttemptInput) -> RolloutResult:
        info = activity.info()
        answer = await self.store.open_attempt(
            OpenRequest(
                rollout_id=attempt.rollout_id,
                try_number=attempt.try_number,
                execution=f"{info.workflow_run_id}/{info.activity_id}/{info.attempt}/{info.started_time.isoformat()}",
                worker_id="scripted",
            )
        )
        if answer.state == "wait":
            raise ApplicationError(answer.reason, type="Waiting")
        if answer.state == "gone":
            return RolloutResult(rollout_id=attempt.rollout_id, gone=True, message=answer.reason)
        outcome = answer.outcome
        if answer.attempt:
            self.ran[attempt.rollout_id] += 1
            beating = asyncio.create_task(heartbeat())
            try:
                finish = await self.agent(answer.attempt)
                if answer.attempt.grader and finish.failure_class is None:
                    return await self.await_grading(answer.attempt, finish)
                outcome = await self.store.finish_attempt(finish)
            finally:
                beating.cancel()
        assert outcome is not None
        return result_of(outcome)

    async def await_grading(self, opened: OpenedAttempt, finish: FinishRequest) -> RolloutResult:
        """As the runner does where the run has a grader."""
        self.own_rewards[opened.attempt_id] = finish.reward
        await self.store.await_grading(grading_of(opened, output=f"answer of {opened.rollout_id}"))
        grade = GradeInput.taken_from(opened)
        return RolloutResult.taken_from(grade, succeeded=True, grade=grade)


class ScriptedGraders:
    """Runs no process: what a grader gives is what the function says."""

    def __init__(self, grader: Grader) -> None:
        self.grader = grader

    async def call(self, call: AgentCall, *, on_span: OnSpan | None = None) -> AgentOutcome:
        return await self.grader(call)


class ScriptedGpuHost:
    """Writes ledger, versions and steps as the GPU worker does, with weights that are a number in a file."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self.folder = folder
        self.updates: Counter[int] = Counter()
        self.fail: Callable[[int], Exception | None] = lambda step: None

    @activity.defn(name=names.CLAIM_GPU)
    async def claim_gpu(self, request: RunRequest) -> GpuClaim:
        return GpuClaim(granted=True, host="scripted", task_queue=names.GPU_QUEUE)

    @activity.defn(name=names.PREPARE_ENGINES)
    async def prepare_engines(self, request: RunRequest) -> EngineState:
        lease = await self._lease(request.run)
        await ledger.record_version(self.database, request.run, PolicyVersion(0, "w0", "given", None), lease)
        return EngineState(engines=1, version=0)

    @activity.defn(name=names.RELEASE_GPU)
    async def release_gpu(self, request: RunRequest) -> RunRequest:
        return request

    @activity.defn(name=names.UPDATE_POLICY)
    async def update_policy(self, step_input: StepInput) -> UpdateResult:
        if error := self.fail(step_input.step):
            raise error
        await begin_update(self.database, step_input)
        plan = ResolvedPlan.model_validate((await get_step(self.database, step_input.run, step_input.step))["plan"])
        candidates = await read_candidates(self.database, step_input.run, step_input.step, plan)
        chosen = choose(candidates, plan.group_size, plan.failures.short_groups)
        samples = [Sample(candidate, candidate.reward or 0.0) for candidate in chosen]
        await ledger.write_ledger(
            self.database, step_input.run, step_input.step, samples, [], {"rollouts": len(samples)}
        )
        self.updates[step_input.step] += 1
        path = self.folder / f"{step_input.run}-{step_input.step}"
        path.write_bytes(orjson.dumps(step_input.step))
        lease = await self._lease(step_input.run)
        version = PolicyVersion(step_input.step, f"w{step_input.step}", str(path), str(path))
        await ledger.record_version(self.database, step_input.run, version, lease, unchanged=not samples)
        await ledger.record_step(self.database, step_input.run, step_input.step, {}, {"update": 0.0})
        rewards = [sample.candidate.reward or 0.0 for sample in samples]
        mean = sum(rewards) / len(rewards) if rewards else None
        return UpdateResult(version=step_input.step, reward_mean=mean)

    async def _lease(self, run: str) -> tuple[str, str, int]:
        fence = await ledger.take_lease(self.database, f"policy/{run}", "scripted", 60)
        assert fence is not None
        return f"policy/{run}", "scripted", fence


class Cluster:
    """Everything that plays a run here."""

    def __init__(self, client: Client, database: Database, runner: ScriptedRunner, gpu: ScriptedGpuHost) -> None:
        self.client = client
        self.database = database
        self.runner = runner
        self.gpu = gpu

    async def start(self, run: str, file: dict[str, Any]) -> Any:
        """Start a run as `temporal workflow start` does: with the file's JSON."""
        return await self.client.start_workflow(
            names.TRAINING_WORKFLOW, file, id=names.train_id(run), task_queue=names.ORCHESTRATOR_QUEUE
        )


@asynccontextmanager
async def cluster(
    client: Client,
    database: Database,
    folder: Path,
    agent: Agent = always_right,
    cached_workflows: int = 2000,
    prefix: str = names.RUNNER_QUEUE,
) -> AsyncGenerator[Cluster]:
    """The orchestrator with the real activities, and scripted runner and GPU host, on the usual task queues."""
    store = await PostgresStore.create(database, "http://127.0.0.1:9")
    runner, gpu = ScriptedRunner(store, agent), ScriptedGpuHost(database, folder)
    activities = activities_of(OrchestratorActivities(database, client, folder))
    queue = names.runner_queue(prefix, "echo")
    async with (
        make_worker(client, names.ORCHESTRATOR_QUEUE, activities, max_cached_workflows=cached_workflows),
        Worker(client, task_queue=queue, activities=[runner.run_attempt], max_concurrent_activities=50),
        Worker(
            client,
            task_queue=names.GPU_QUEUE,
            activities=activities_of(gpu),
            max_concurrent_activities=4,
            interceptors=[ActivityInterceptor(2.0, Doing())],
        ),
    ):
        yield Cluster(client, database, runner, gpu)


def write_tasks(folder: Path, count: int = 10) -> None:
    """Data sets `train.jsonl` and `heldout.jsonl`, and a model directory that looks like one."""
    for name in ("train", "heldout"):
        lines = [orjson.dumps({"question": f"{name} {number}"}) for number in range(count)]
        (folder / f"{name}.jsonl").write_bytes(b"\n".join(lines))
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text('{"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}')
    (model / "tokenizer.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}      ")


def run_file(**changes: Any) -> dict[str, Any]:
    """A small run: 3 steps of 2 groups of 4, held-out tasks at both ends. Scripted agents call no model."""
    return {
        "agent": "echo",
        "model": "model",
        "data": {"train": "train.jsonl", "evaluation": "heldout.jsonl"},
        "group_size": 4,
        "batch_size": 2,
        "steps": 3,
        "preflight": False,
        **changes,
    }


@asynccontextmanager
async def served_grader(
    client: Client, database: Database, grader: Grader, prefix: str = names.RUNNER_QUEUE
) -> AsyncGenerator[None]:
    """The real grading on the queue of the grader `judge`, with a function for the grader's process."""
    store = await PostgresStore.create(database, "http://127.0.0.1:9")
    grading = GradingActivities(store, cast(AgentRunner, ScriptedGraders(grader)))
    queue = names.runner_queue(prefix, "judge")
    async with Worker(
        client,
        task_queue=queue,
        activities=[grading.grade_attempt, grading.regrade_attempt],
        max_concurrent_activities=50,
        interceptors=[ActivityInterceptor(2.0, Doing())],
    ):
        yield


async def eventually(check: Callable[[], Awaitable[Any]], seconds: float = 30) -> Any:
    """The first true answer of `check`, asked again and again."""
    async with asyncio.timeout(seconds):
        while not (answer := await check()):  # noqa: ASYNC110 - asks another process, which sets no event
            await asyncio.sleep(0.1)
        return answer
