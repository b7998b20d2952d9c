"""Rollouts that are enqueued for a run: whose engines serve them, when they wait, and how they end."""

from __future__ import annotations

import pytest

from relight.errors import ConflictError, NotFoundError
from relight.store.attempts.attempt_tokens import attempt_url, token_hash
from relight.types.names import POLICY
from relight.types.resources import LLM, NamedResources
from relight.types.rollout import AttemptStatus, RolloutStatus
from relight.types.store import Dispatch, EnqueueRolloutRequest
from relight.types.wire import (
    CallContext,
    Choice,
    FinishRequest,
    GenerationRecord,
    OpenAnswer,
    OpenedAttempt,
    OpenRequest,
    ResolveRequest,
)
from tests.support.lightning_kit import (
    GATEWAY,
    LightningKit,
    ServedKit,
    claimed,
    newest,
    prompts,
    retrying,
    rollout_of,
    span_of,
)
from tests.support.seeds import RUN

BY_WORKFLOW = Dispatch(by="workflow", agent="calculator")
MODEL: NamedResources = {"gpt": LLM(endpoint="http://provider/v1", model="gpt-5", api_key="k")}


async def open_(kit: LightningKit, rollout_id: str, try_number: int = 1, execution: str = "x") -> OpenAnswer:
    """What a runner of the platform is answered."""
    request = OpenRequest(rollout_id=rollout_id, try_number=try_number, execution=execution, worker_id="w")
    return await (await kit.attempts()).open_attempt(request)


async def opened(kit: LightningKit, **values: object) -> OpenedAttempt:
    """An attempt at a rollout that a workflow drives."""
    made = await kit.store.enqueue_rollout("x", dispatch=BY_WORKFLOW, run=RUN, **values)  # type: ignore[arg-type]
    attempt = (await open_(kit, made.rollout_id)).attempt
    assert attempt is not None
    return attempt


async def context_of(kit: LightningKit, rollout_id: str, attempt_id: str, token: str) -> CallContext:
    """How the gateway serves an attempt's calls."""
    request = ResolveRequest(rollout_id=rollout_id, attempt_id=attempt_id, token=token)
    return await (await kit.attempts()).resolve(request)


def call_of(rollout_id: str, attempt_id: str, token: str) -> GenerationRecord:
    """A model call of an attempt, of which it is not known yet whether its answer arrived."""
    return GenerationRecord(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        token_hash=token_hash(token),
        call_number=1,
        request_hash="h",
        route="chat/completions",
        request={"messages": []},
        response={"id": "chatcmpl-1"},
        prompt_token_ids=[1],
        choices=[Choice(index=0, response_token_ids=[2], logprobs=[-0.5], finish_reason="stop")],
        sampling={},
        seed=3,
        engine_id=f"engine-{RUN}",
        model=POLICY,
        duration_seconds=0.0,
    )


async def test_a_rollout_belongs_to_the_run_that_it_is_enqueued_for(kit: LightningKit) -> None:
    await kit.begin_run()
    made = await kit.store.enqueue_rollout("x", run=RUN)
    assert (made.run, made.step, made.status) == (RUN, None, "queuing")
    assert await rollout_of(kit.store, made.rollout_id) == made
    await kit.store.enqueue_rollout("y")
    assert [rollout.rollout_id for rollout in await kit.store.query_rollouts(run=RUN)] == [made.rollout_id]


async def test_it_has_its_runs_resources_and_not_the_newest(kit: LightningKit) -> None:
    await kit.begin_run()
    newest_of_all = await kit.store.add_resources(prompts("newest"))
    requests = [EnqueueRolloutRequest(input=n, run=run) for n, run in enumerate((RUN, None))]
    mine, other = await kit.store.enqueue_many_rollouts(requests)
    assert (mine.resources_id, mine.resources_version) == (f"rs-{RUN}", 1)
    assert other.resources_id == newest_of_all.resources_id
    named = await kit.store.enqueue_rollout("x", run=RUN, resources_id=newest_of_all.resources_id)
    assert named.resources_id == newest_of_all.resources_id


@pytest.mark.parametrize("dispatch", [None, BY_WORKFLOW])
async def test_an_unknown_run_is_refused_by_name_and_nothing_is_enqueued(
    kit: LightningKit, dispatch: Dispatch | None
) -> None:
    requests = [EnqueueRolloutRequest(input="x"), EnqueueRolloutRequest(input="y", run="nowhere", dispatch=dispatch)]
    with pytest.raises(NotFoundError, match="run: there is no run nowhere"):
        await kit.store.enqueue_many_rollouts(requests)
    assert len(await kit.store.query_rollouts()) == 0


@pytest.mark.parametrize("status", ["finished", "failed", "cancelled"])
async def test_a_run_that_has_ended_takes_no_more(kit: LightningKit, status: str) -> None:
    await kit.begin_run()
    before = await kit.store.enqueue_rollout("x", run=RUN, idempotency_key="k")
    await kit.end_run(status)  # type: ignore[arg-type]
    with pytest.raises(ConflictError, match=f"run: {RUN} is {status} and takes no more rollouts"):
        await kit.store.enqueue_rollout("x", run=RUN)
    again = await kit.store.enqueue_rollout("x", run=RUN, idempotency_key="k")
    assert again.rollout_id == before.rollout_id
    assert len(await kit.store.query_rollouts()) == 1


async def test_what_is_open_is_cancelled_when_its_run_ends(kit: LightningKit) -> None:
    await kit.begin_run()
    requests = [EnqueueRolloutRequest(input=n, run=RUN, dispatch=BY_WORKFLOW if n == 2 else None) for n in range(4)]
    taken, ended, driven, queued = await kit.store.enqueue_many_rollouts(requests)
    elsewhere = await kit.store.enqueue_rollout("y")
    for _ in range(2):
        await claimed(kit.store, "worker")
    await kit.store.update_rollout(ended.rollout_id, status=RolloutStatus.SUCCEEDED)
    attempt = (await open_(kit, driven.rollout_id)).attempt
    assert attempt is not None
    await kit.end_run("finished")
    over = await kit.store.wait_for_rollouts(
        rollout_ids=[one.rollout_id for one in (taken, driven, queued)], timeout=30
    )
    assert [(rollout.status, rollout.failure_class) for rollout in over] == [("cancelled", "cancelled")] * 3
    for rollout in (taken, driven):
        last = await newest(kit.store, rollout.rollout_id)
        assert (last.status, last.failure_class) == ("failed", "cancelled")
    assert (await rollout_of(kit.store, ended.rollout_id)).status == "succeeded"
    assert (await claimed(kit.store)).rollout_id == elsewhere.rollout_id
    with pytest.raises(ConflictError, match="is over"):
        await context_of(kit, driven.rollout_id, attempt.attempt_id, attempt.token)


@pytest.mark.parametrize("end", ["cancelled", "finished"])
async def test_one_that_ended_with_its_run_is_not_tried_again(kit: LightningKit, end: str) -> None:
    await kit.begin_run()
    made = await kit.store.enqueue_rollout("x", run=RUN)
    if end == "finished":
        claim = await claimed(kit.store)
        await kit.store.update_attempt(claim.rollout_id, "latest", status=AttemptStatus.SUCCEEDED)
    await kit.end_run("failed")
    with pytest.raises(ConflictError):
        await kit.store.update_rollout(made.rollout_id, status=RolloutStatus.REQUEUING)
    with pytest.raises(ConflictError):
        await kit.store.start_attempt(made.rollout_id)
    assert await kit.store.dequeue_rollout() is None


async def test_one_that_has_ended_is_queued_again_while_its_run_continues(kit: LightningKit) -> None:
    await kit.begin_run()
    made = await kit.store.enqueue_rollout("x", run=RUN)
    await claimed(kit.store)
    await kit.store.update_attempt(made.rollout_id, "latest", status=AttemptStatus.FAILED)
    await kit.store.update_rollout(made.rollout_id, status=RolloutStatus.REQUEUING)
    assert (await claimed(kit.store)).attempt.sequence_id == 2


@pytest.mark.parametrize("reason", ["the run is paused", "the run is interrupted", "no engine is ready"])
async def test_it_waits_with_its_run_and_others_overtake_it(kit: LightningKit, reason: str) -> None:
    await kit.begin_run()
    queued = await kit.store.enqueue_rollout("x", run=RUN)
    driven = await kit.store.enqueue_rollout("x", run=RUN, dispatch=BY_WORKFLOW)
    other = await kit.store.enqueue_rollout("y")
    if reason == "no engine is ready":
        await kit.load(state="dead")
    else:
        await kit.set_run(paused="paused" in reason, status="running" if "paused" in reason else "interrupted")
    assert (await claimed(kit.store)).rollout_id == other.rollout_id
    assert await kit.store.dequeue_rollout() is None
    answer = await open_(kit, driven.rollout_id)
    assert (answer.state, answer.reason) == ("wait", reason)
    await kit.set_run()
    await kit.load()
    assert (await claimed(kit.store)).rollout_id == queued.rollout_id
    assert (await open_(kit, driven.rollout_id)).state == "opened"


async def test_a_workflows_attempt_calls_the_policy_of_its_run(kit: LightningKit) -> None:
    await kit.begin_run()
    await kit.store.update_resources("rs-model", MODEL)
    attempt = await opened(kit, resources_id="rs-model")
    assert (attempt.run, attempt.step, attempt.model) == (RUN, None, POLICY)
    assert attempt.resources == MODEL
    context = await context_of(kit, attempt.rollout_id, attempt.attempt_id, attempt.token)
    assert (context.run, context.model, context.min_version, context.max_version) == (RUN, POLICY, None, None)


async def test_a_claimed_attempt_calls_the_policy_of_its_run(service: ServedKit) -> None:
    await service.begin_run()
    await service.store.enqueue_rollout("x", run=RUN)
    claim = await claimed(service.store)
    found = await service.store.get_resources_by_id(claim.resources_id or "")
    assert found is not None
    policy, prompt = found.resources.items()
    address = attempt_url(GATEWAY, claim.rollout_id, claim.attempt.attempt_id)
    assert isinstance(policy[1], LLM)
    assert (policy[0], policy[1].endpoint, policy[1].model) == ("main_llm", address, POLICY)
    assert prompt[1] == prompts(RUN)["prompt"]
    context = await context_of(service, claim.rollout_id, claim.attempt.attempt_id, policy[1].api_key or "")
    assert (context.run, context.model, context.min_version) == (RUN, POLICY, None)
    record = call_of(claim.rollout_id, claim.attempt.attempt_id, policy[1].api_key or "")
    assert (await (await service.attempts()).commit_generations([record]))[0].state == "committed"
    await service.store.update_attempt(claim.rollout_id, "latest", status=AttemptStatus.SUCCEEDED)
    assert await service.calls(claim.attempt.attempt_id) == [(0, "yes")]
    shown = await rollout_of(service.store, claim.rollout_id)
    assert (shown.resources_id, shown.resources_version) == (f"rs-{RUN}", 1)


async def test_a_claim_for_a_run_without_a_model_brings_the_models_of_its_resources(service: ServedKit) -> None:
    await service.begin_run(model=False)
    await service.store.update_resources("rs-model", MODEL)
    await service.store.enqueue_rollout("x", run=RUN, resources_id="rs-model")
    found = await service.store.get_resources_by_id((await claimed(service.store)).resources_id or "")
    assert found is not None
    assert found.resources == MODEL


async def test_a_run_without_a_model_binds_that_of_the_resources(kit: LightningKit) -> None:
    await kit.begin_run(model=False)
    await kit.store.update_resources("rs-model", MODEL)
    attempt = await opened(kit, resources_id="rs-model")
    bound = attempt.resources["gpt"]
    assert isinstance(bound, LLM)
    assert (attempt.run, attempt.model, bound.endpoint, bound.api_key) == (
        RUN,
        "gpt-5",
        attempt.base_url,
        attempt.token,
    )
    context = await context_of(kit, attempt.rollout_id, attempt.attempt_id, attempt.token)
    assert (context.run, context.model) == (None, "gpt-5")
    assert [model.base_url for model in context.resource_models] == ["http://provider/v1"]


async def test_its_calls_are_recorded_with_the_version_that_answered(kit: LightningKit) -> None:
    await kit.begin_run()
    await kit.load(3)
    attempt = await opened(kit)
    attempts = await kit.attempts()
    record = call_of(attempt.rollout_id, attempt.attempt_id, attempt.token)
    assert [result.state for result in await attempts.commit_generations([record])] == ["committed"]
    finish = FinishRequest(attempt_id=attempt.attempt_id, fence=attempt.fence, reward=1.0)
    assert (await attempts.finish_attempt(finish)).succeeded
    assert await kit.calls(attempt.attempt_id) == [(3, "yes")]
    late = record.model_copy(update={"call_number": 2, "request_hash": "late"})
    assert [result.state for result in await attempts.commit_generations([late])] == ["conflict"]


async def test_retries_and_deadlines_stay_those_of_the_queue(kit: LightningKit) -> None:
    await kit.begin_run()
    made = await kit.store.enqueue_rollout("x", run=RUN, config=retrying("unresponsive", unresponsive_seconds=60))
    first = await claimed(kit.store)
    await kit.age(made.rollout_id)
    await kit.sweep()
    assert (await rollout_of(kit.store, made.rollout_id)).status == "requeuing"
    await kit.store.add_span(span_of(first, "late"))
    assert (await rollout_of(kit.store, made.rollout_id)).status == "running"
    assert (await newest(kit.store, made.rollout_id)).attempt_id == first.attempt.attempt_id


async def test_its_owner_cancels_and_deletes_it(kit: LightningKit) -> None:
    await kit.begin_run()
    made = await kit.store.enqueue_rollout("x", run=RUN)
    with pytest.raises(ConflictError, match="cancel it first"):
        await kit.store.delete_rollout(made.rollout_id)
    assert (await kit.store.cancel_rollout(made.rollout_id)).status == "cancelled"
    await kit.store.delete_rollout(made.rollout_id)
    assert await kit.store.get_rollout_by_id(made.rollout_id) is None
