"""A Temporal server for one workflow, with a clock that jumps to whatever comes next: a day of waiting in a second.

It drives the SDK's own workflow instances and counts the events that a server would write: three for each workflow
task, and those of its commands and answers.
`test_the_simulated_server_counts_events_as_a_real_one_does` compares the two.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf.message import Message
from temporalio.bridge.proto.child_workflow import ParentClosePolicy
from temporalio.bridge.proto.child_workflow import StartChildWorkflowExecutionFailedCause as Cause
from temporalio.bridge.proto.workflow_activation import (
    InitializeWorkflow,
    RemoveFromCache,
    WorkflowActivation,
    WorkflowActivationJob,
)
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.common import Priority, TypedSearchAttributes
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DefaultFailureConverter
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails
from temporalio.workflow import Info, _Definition  # the SDK has no public way to ask for a definition

CONVERTER = pydantic_data_converter.payload_converter
SUGGESTED = 4096
"""Events after which a server suggests to continue as new."""
WORKFLOW_TASK = 3
EVENTS = {
    "fire_timer": 1,
    "resolve_activity": 2,
    "signal_workflow": 1,
    "resolve_child_workflow_execution_start": 1,
    "resolve_child_workflow_execution": 1,
    "start_timer": 1,
    "cancel_timer": 1,
    "schedule_activity": 1,
    "start_child_workflow_execution": 1,
    "upsert_workflow_search_attributes": 1,
    "continue_as_new_workflow_execution": 1,
    "complete_workflow_execution": 1,
    "fail_workflow_execution": 1,
}
"""Events of each job and each command; an update has one when it is accepted and one when it is answered."""
TAKES = timedelta(milliseconds=20)
"""An activity that is answered, or a child's start."""
ALREADY_STARTED = "already started"
RUNS = "runs"
ENDS_EARLY = "ends early"
"""It is terminated as soon as it has started."""

Answer = Callable[[Any], Any]


def always(value: Any) -> Answer:
    """The same answer to every question."""

    def answer(question: Any) -> Any:
        return value

    return answer


class SimulatedServer:
    """Plays a workflow from `begin` on.

    Args:
        activities: what each answers, by name; an exception is one that is not tried again, None comes never.
        children: by workflow id or type, `RUNS`, `ALREADY_STARTED`, `ENDS_EARLY` or what it returns.
    """

    def __init__(
        self,
        workflow: type,
        workflow_id: str,
        argument: Any,
        activities: Mapping[str, Answer],
        children: Mapping[str, Any] | None = None,
    ) -> None:
        self.definition = _Definition.must_from_class(workflow)
        self.workflow_id = workflow_id
        self.argument = CONVERTER.to_payload(argument)
        self.activities = activities
        self.children = children or {}
        self.now = datetime(2030, 1, 1, tzinfo=UTC)
        self.events: list[int] = []
        """Of each execution, the newest last."""
        self.arguments: list[Any] = []
        """What each continue-as-new carried."""
        self.waited: list[str] = []
        """Activities in the order in which they were asked for."""
        self.answered: dict[str, Any] = {}
        """Updates, by id."""
        self.at_continue: list[WorkflowActivationJob] = []
        """What arrives while the next continue-as-new is on its way: the server refuses that, and it is done anew."""
        self.open_children: dict[int, str] = {}
        """Ids of those that the newest execution started and would cancel at its end."""
        self.cancelled: list[str] = []
        """Children that were open at a continue-as-new which cancels them."""
        self.signalled: list[tuple[str, str]] = []
        """Signals that it sent to other workflows: their ids, and the signals' names."""
        self.result: Any = None
        self.ended = False
        self._agenda: list[tuple[datetime, int, WorkflowActivationJob]] = []
        self._order = itertools.count()
        self._played: list[WorkflowActivation] = []
        self._instance: WorkflowInstance | None = None

    @property
    def executions(self) -> int:
        return len(self.events)

    async def play(self, until: timedelta) -> None:
        """Let that much time go by; in a thread, since a workflow instance is an event loop of its own."""
        await asyncio.to_thread(self._play, until)

    def _play(self, until: timedelta) -> None:
        end = self.now + until
        if not self.events:
            self._begin_execution()
        while not self.ended and self._agenda and self._agenda[0][0] <= end:
            self._task(self._due())
        self.now = end

    async def close(self) -> None:
        """Evict the workflow, as a worker's cache does."""
        await asyncio.to_thread(self._evict)

    def _evict(self) -> None:
        if self._instance:
            job = WorkflowActivationJob(remove_from_cache=RemoveFromCache())
            self._instance.activate(self._activation([job]))
            self._instance = None

    def signal(self, name: str, value: Any) -> WorkflowActivationJob:
        job = WorkflowActivationJob()
        job.signal_workflow.signal_name = name
        job.signal_workflow.input.append(CONVERTER.to_payload(value))
        return job

    def end_child(self, workflow_id: str, result: Any) -> None:
        """Have an open child return a result."""
        (seq,) = (seq for seq, child in self.open_children.items() if child == workflow_id)
        self._at(timedelta(), self._child_ended(seq, result))

    def update(self, update_id: str, name: str, value: Any) -> WorkflowActivationJob:
        job = WorkflowActivationJob()
        job.do_update.id = job.do_update.protocol_instance_id = update_id
        job.do_update.name = name
        job.do_update.run_validator = True
        job.do_update.input.append(CONVERTER.to_payload(value))
        return job

    def send(self, job: WorkflowActivationJob, after: timedelta = timedelta()) -> None:
        """Have something arrive at the workflow."""
        self._at(after, job)

    def _at(self, after: timedelta, job: WorkflowActivationJob) -> None:
        heapq.heappush(self._agenda, (self.now + after, next(self._order), job))

    def _due(self) -> list[WorkflowActivationJob]:
        """Everything of the next moment at which anything happens."""
        jobs: list[WorkflowActivationJob] = []
        self.now = self._agenda[0][0]
        while self._agenda and self._agenda[0][0] == self.now:
            *_, job = heapq.heappop(self._agenda)
            jobs.append(job)
            if job.HasField("resolve_child_workflow_execution"):
                self.open_children.pop(job.resolve_child_workflow_execution.seq, None)
        return jobs

    def _begin_execution(self) -> None:
        self._evict()
        continued = bool(self.events)
        self.events.append(1)
        self._played = []
        self._agenda = [entry for entry in self._agenda if entry[2].WhichOneof("variant") in ("signal_workflow",)]
        heapq.heapify(self._agenda)
        job = WorkflowActivationJob(initialize_workflow=InitializeWorkflow(workflow_id=self.workflow_id))
        job.initialize_workflow.workflow_type = self.definition.name or ""
        job.initialize_workflow.arguments.append(self.argument)
        job.initialize_workflow.continued_from_execution_run_id = "before" if continued else ""
        self._instance = self._new_instance(continued)
        self._task([job])

    def _new_instance(self, continued: bool) -> WorkflowInstance:
        details = WorkflowInstanceDetails(
            payload_converter_factory=pydantic_data_converter.payload_converter_class,
            failure_converter_class=DefaultFailureConverter,
            interceptor_classes=[],
            defn=self.definition,
            info=_info(self.workflow_id, self.definition.name or "", self.now, continued),
            randomness_seed=7,
            extern_functions={},
            disable_eager_activity_execution=False,
            worker_level_failure_exception_types=[],
            patch_activation_callback=None,
            last_completion_result=Message(),  # type: ignore[arg-type]
            last_failure=None,
        )

        async def create() -> WorkflowInstance:  # it needs a running loop
            return UnsandboxedWorkflowRunner().create_instance(details)

        return asyncio.run(create())

    def _activation(self, jobs: list[WorkflowActivationJob]) -> WorkflowActivation:
        activation = WorkflowActivation(run_id=f"execution-{self.executions}", jobs=jobs)
        activation.timestamp.FromDatetime(self.now)
        activation.history_length = self.events[-1] + 2
        activation.continue_as_new_suggested = activation.history_length > SUGGESTED
        return activation

    def _task(self, jobs: list[WorkflowActivationJob]) -> None:
        """One workflow task."""
        if not jobs:
            return
        self.events[-1] += sum(EVENTS.get(job.WhichOneof("variant") or "", 0) for job in jobs)
        activation = self._activation(jobs)
        commands = self._activate(activation)
        if self.at_continue and any(c.HasField("continue_as_new_workflow_execution") for c in commands):
            activation, commands = self._refuse(activation)
        self._played.append(activation)
        self.events[-1] += WORKFLOW_TASK
        for command in commands:
            self.events[-1] += EVENTS.get(command.WhichOneof("variant") or "", 0)
            self._obey(command)

    def _refuse(self, activation: WorkflowActivation) -> tuple[WorkflowActivation, list[WorkflowCommand]]:
        """Something came while the task was done: its commands are not taken, and the workflow is played anew."""
        late, self.at_continue = self.at_continue, []
        self.events[-1] += WORKFLOW_TASK + sum(EVENTS.get(job.WhichOneof("variant") or "", 0) for job in late)
        self._evict()
        self._instance = self._new_instance(self.executions > 1)
        for old in self._played:
            again = WorkflowActivation()
            again.CopyFrom(old)
            again.is_replaying = True
            self._activate(again)
        merged = WorkflowActivation()
        merged.CopyFrom(activation)
        merged.jobs.extend(late)
        return merged, self._activate(merged)

    def _activate(self, activation: WorkflowActivation) -> list[WorkflowCommand]:
        assert self._instance is not None
        completion = self._instance.activate(activation)
        assert not completion.HasField("failed"), completion.failed
        return list(completion.successful.commands)

    def _obey(self, command: WorkflowCommand) -> None:
        kind = command.WhichOneof("variant") or ""
        if kind == "start_timer":
            timer = WorkflowActivationJob()
            timer.fire_timer.seq = command.start_timer.seq
            self._at(command.start_timer.start_to_fire_timeout.ToTimedelta(), timer)
        elif kind == "cancel_timer":
            self._drop_timer(command.cancel_timer.seq)
        elif kind == "schedule_activity":
            self._schedule(command)
        elif kind == "start_child_workflow_execution":
            self._start_child(command)
        elif kind == "signal_external_workflow_execution":
            self._signal_other(command)
        elif kind == "update_response":
            self._hear(command)
        elif kind == "continue_as_new_workflow_execution":
            self.argument = command.continue_as_new_workflow_execution.arguments[0]
            self.arguments.append(CONVERTER.from_payload(self.argument))
            self.cancelled += self.open_children.values()
            self.open_children.clear()
            self._begin_execution()
        elif kind in ("complete_workflow_execution", "fail_workflow_execution"):
            self.ended = True
            self.result = command

    def _drop_timer(self, seq: int) -> None:
        self._agenda = [e for e in self._agenda if not (e[2].HasField("fire_timer") and e[2].fire_timer.seq == seq)]
        heapq.heapify(self._agenda)

    def _schedule(self, command: WorkflowCommand) -> None:
        scheduled = command.schedule_activity
        self.waited.append(scheduled.activity_type)
        answer = self.activities[scheduled.activity_type](CONVERTER.from_payload(scheduled.arguments[0]))
        if answer is None:
            return
        job = WorkflowActivationJob()
        job.resolve_activity.seq = scheduled.seq
        if isinstance(answer, ApplicationError):
            failure = job.resolve_activity.result.failed.failure
            failure.activity_failure_info.activity_type.name = scheduled.activity_type
            failure.cause.message = answer.message
            failure.cause.application_failure_info.type = answer.type or ""
        else:
            job.resolve_activity.result.completed.result.CopyFrom(CONVERTER.to_payload(answer))
        self._at(TAKES, job)

    def _start_child(self, command: WorkflowCommand) -> None:
        started = command.start_child_workflow_execution
        job = WorkflowActivationJob()
        job.resolve_child_workflow_execution_start.seq = started.seq
        kind = self.children.get(started.workflow_id, self.children.get(started.workflow_type))
        if kind == ALREADY_STARTED:
            failed = job.resolve_child_workflow_execution_start.failed
            failed.workflow_id, failed.workflow_type = started.workflow_id, started.workflow_type
            failed.cause = Cause.START_CHILD_WORKFLOW_EXECUTION_FAILED_CAUSE_WORKFLOW_ALREADY_EXISTS
        else:
            job.resolve_child_workflow_execution_start.succeeded.run_id = "child"
            if started.parent_close_policy != ParentClosePolicy.PARENT_CLOSE_POLICY_ABANDON:
                self.open_children[started.seq] = started.workflow_id
        self._at(TAKES, job)
        if kind not in (ALREADY_STARTED, RUNS):
            self._at(2 * TAKES, self._child_ended(started.seq, kind))

    def _signal_other(self, command: WorkflowCommand) -> None:
        signal = command.signal_external_workflow_execution
        self.signalled.append((signal.workflow_execution.workflow_id, signal.signal_name))
        job = WorkflowActivationJob()
        job.resolve_signal_external_workflow.seq = signal.seq
        self._at(TAKES, job)

    def _child_ended(self, seq: int, kind: Any) -> WorkflowActivationJob:
        job = WorkflowActivationJob()
        ended = job.resolve_child_workflow_execution
        ended.seq = seq
        if kind == ENDS_EARLY:
            ended.result.failed.failure.child_workflow_execution_failure_info.SetInParent()
            ended.result.failed.failure.cause.terminated_failure_info.SetInParent()
        else:
            ended.result.completed.result.CopyFrom(CONVERTER.to_payload(kind))
        return job

    def _hear(self, command: WorkflowCommand) -> None:
        response = command.update_response
        self.events[-1] += not response.HasField("rejected")
        if response.HasField("completed"):
            self.answered[response.protocol_instance_id] = CONVERTER.from_payload(response.completed)


def _info(workflow_id: str, workflow_type: str, now: datetime, continued: bool) -> Info:
    return Info(
        attempt=1,
        continued_run_id="before" if continued else None,
        cron_schedule=None,
        execution_timeout=None,
        first_execution_run_id="first",
        headers={},
        namespace="default",
        original_execution_run_id="first",
        parent=None,
        root=None,
        raw_memo={},
        retry_policy=None,
        run_id="now",
        run_timeout=None,
        search_attributes={},
        start_time=now,
        workflow_start_time=now,
        task_queue="relight",
        task_timeout=timedelta(seconds=10),
        typed_search_attributes=TypedSearchAttributes.empty,
        workflow_id=workflow_id,
        workflow_type=workflow_type,
        priority=Priority.default,
    )
