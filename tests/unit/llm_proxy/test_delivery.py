"""Rule 8: an answer that was committed and not delivered answers the next identical call."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NoReturn

from relight.llm_proxy.limits import GatewayLimits
from tests.support.fake_engine import token_ids
from tests.support.gateway import listening_gateway
from tests.unit.llm_proxy.parts import content_of, parts, said


class Hanging:
    """An engine that does not answer."""

    def __init__(self) -> None:
        self.began = asyncio.Event()

    async def __call__(self, *_: object) -> NoReturn:
        self.began.set()
        await asyncio.Event().wait()
        raise AssertionError


async def leave(call: asyncio.Task[object]) -> None:
    """The agent closes its connection."""
    call.cancel()
    await asyncio.wait([call])


async def test_an_undelivered_answer_is_given_to_the_next_identical_call(tmp_path: Path):
    async with parts(tmp_path) as (client, store, engine):
        store.commit_gate.clear()
        call = asyncio.create_task(client.call())
        await engine.arrived.wait()
        await store.until(lambda: store.committing > 0)
        await leave(call)
        store.commit_gate.set()
        await store.until(lambda: store.delivered() == {1: "no"})
        _, other = await client.call(messages=[])
        _, answer = await client.call()
        await store.until(lambda: store.delivered() == {1: "yes", 2: "yes"})
    assert len(engine.requests) == 2
    assert content_of(answer) == said(store.calls()[1].seed)
    assert content_of(other) == said(store.calls()[2].seed)


async def test_a_retry_that_comes_while_the_commit_is_in_progress_gets_that_answer(tmp_path: Path):
    async with parts(tmp_path) as (client, store, engine):
        store.commit_gate.clear()
        call = asyncio.create_task(client.call())
        await store.until(lambda: store.committing > 0)
        await leave(call)
        resolved = len(store.resolved)
        retry = asyncio.create_task(client.call(retry=1))
        await store.until(lambda: len(store.resolved) > resolved)
        store.commit_gate.set()
        code, _ = await retry
        await store.until(lambda: store.delivered() == {1: "yes"})
    assert code == 200
    assert len(engine.requests) == 1


async def test_the_store_withdraws_its_no_before_the_agent_has_the_answer(tmp_path: Path):
    """The agent may end at once, and a mark that comes after that changes nothing."""
    async with parts(tmp_path) as (client, store, _):
        store.commit_gate.clear()
        call = asyncio.create_task(client.call())
        await store.until(lambda: store.committing > 0)
        await leave(call)
        store.commit_gate.set()
        await store.until(lambda: store.delivered() == {1: "no"})
        await client.call(retry=1)
        assert store.delivered() == {1: "unknown"}
        await store.until(lambda: store.delivered() == {1: "yes"})


async def test_a_store_service_that_cannot_withdraw_a_no_gets_a_yes_at_the_end(tmp_path: Path):
    async with parts(tmp_path) as (client, store, engine):
        await client.call()
        await store.until(lambda: store.delivered() == {1: "yes"})
        store.marks[("a", 1)] = "no"
        store.refused_marks = frozenset({"unknown"})
        async with listening_gateway(store) as after:
            code, _ = await after.call(retry=1)
            await store.until(lambda: store.delivered() == {1: "yes"})
    assert code == 200
    assert len(engine.requests) == 1


async def test_a_retry_waits_for_the_call_that_it_repeats_if_its_agents_disconnect_was_not_noticed(tmp_path: Path):
    """A connection that is dead and looks alive: the client gave up, and the gateway can't know."""
    async with parts(tmp_path) as (client, store, engine):
        store.commit_gate.clear()
        call = asyncio.create_task(client.call())
        await store.until(lambda: store.committing > 0)
        resolved = len(store.resolved)
        retries = [asyncio.create_task(client.call(retry=count)) for count in (1, 2)]
        await store.until(lambda: len(store.resolved) == resolved + 2)
        store.commit_gate.set()
        (_, first), *again = await asyncio.gather(call, *retries)
    assert [content_of(answer) for _, answer in again] == [content_of(first)] * 2
    assert list(store.calls()) == [1]
    assert len(engine.requests) == 1


async def test_a_retry_that_waits_reuses_the_number_that_its_call_releases(tmp_path: Path):
    async with parts(tmp_path) as (client, store, engine):
        engine.behave(Hanging())
        call = asyncio.create_task(client.call())
        await engine.arrived.wait()
        resolved = len(store.resolved)
        retry = asyncio.create_task(client.call(retry=1))
        await store.until(lambda: len(store.resolved) > resolved)
        await leave(call)
        await retry
    assert list(store.calls()) == [1]
    assert engine.requests[0]["seed"] == engine.requests[1]["seed"]


async def test_an_undeclared_repetition_is_not_given_an_answer_of_unknown_delivery(tmp_path: Path):
    async with parts(tmp_path) as (client, store, engine):
        await client.call()
        await store.until(lambda: store.delivered() == {1: "yes"})
        store.marks[("a", 1)] = "unknown"
        async with listening_gateway(store) as after:
            engine.behave(hanging := Hanging())
            call = asyncio.create_task(after.call())
            await hanging.began.wait()
            await leave(call)
            await engine.aborted.wait()
            _, answer = await after.call(retry=1)
    assert list(store.calls()) == [1, 2]
    assert content_of(answer) == said(store.calls()[2].seed)


async def test_of_identical_calls_at_once_all_are_marked_without_delay(tmp_path: Path):
    async with parts(tmp_path, limits=GatewayLimits(mark_seconds=3600.0)) as (client, store, _):
        await asyncio.gather(client.call(), client.call())
        await store.until(lambda: store.delivered() == {1: "yes", 2: "yes"})


async def test_identical_calls_at_once_are_calls_of_their_own(tmp_path: Path):
    async with parts(tmp_path) as (client, store, engine):
        (_, one), (_, two) = await asyncio.gather(client.call(), client.call())
    assert content_of(one) != content_of(two)
    assert list(store.calls()) == [1, 2]
    assert len(engine.requests) == 2


async def test_after_a_delivered_answer_the_same_request_is_sampled_again(tmp_path: Path):
    async with parts(tmp_path) as (client, store, _):
        await client.call()
        await client.call()
    assert list(store.calls()) == [1, 2]


async def test_an_answer_that_was_sent_and_did_not_arrive_is_given_again_to_a_declared_retry(tmp_path: Path):
    """The network lost it behind the gateway's back, which could only see that it was sent."""
    async with parts(tmp_path) as (client, store, engine):
        _, first = await client.call()
        await store.until(lambda: store.delivered() == {1: "yes"})
        _, again = await client.call(retry=1)
        _, once_more = await client.call(retry=2)
    assert content_of(again) == content_of(once_more) == content_of(first)
    assert list(store.calls()) == [1]
    assert len(engine.requests) == 1


async def test_a_retry_is_sampled_again_if_two_answers_to_the_same_request_were_sent(tmp_path: Path):
    async with parts(tmp_path) as (client, store, engine):
        await asyncio.gather(client.call(), client.call())
        await client.call(retry=1)
    assert list(store.calls()) == [1, 2, 3]
    assert len(engine.requests) == 3


async def test_a_retry_of_a_call_that_failed_is_not_given_the_answer_of_an_earlier_one(tmp_path: Path):
    async with parts(tmp_path) as (client, store, engine):
        await client.call()
        await engine.stop()
        call = asyncio.create_task(client.call())
        lists = store.lists
        await store.until(lambda: store.lists > lists)
        await leave(call)
        await engine.start()
        await client.call(retry=1)
    assert list(store.calls()) == [1, 2]


async def test_after_a_restart_an_undelivered_answer_is_given_again(tmp_path: Path):
    async with parts(tmp_path) as (client, store, engine):
        await client.call()
        await store.until(lambda: store.delivered() == {1: "yes"})
        store.marks[("a", 1)] = "no"
        async with listening_gateway(store) as after:
            _, answer = await after.call()
    assert len(engine.requests) == 1
    assert content_of(answer) == said(store.calls()[1].seed)


async def test_after_a_restart_an_unknown_answer_is_given_again_to_a_declared_retry_only(tmp_path: Path):
    async with parts(tmp_path) as (client, store, engine):
        await client.call()
        await store.until(lambda: store.delivered() == {1: "yes"})
        store.marks[("a", 1)] = "unknown"
        async with listening_gateway(store) as after:
            _, again = await after.call(retry=1)
            await store.until(lambda: store.delivered() == {1: "yes"})
        store.marks[("a", 1)] = "unknown"
        async with listening_gateway(store) as after:
            await after.call()
    assert content_of(again) == said(store.calls()[1].seed)
    assert list(store.calls()) == [1, 2]
    assert len(engine.requests) == 2


async def test_an_undelivered_stream_is_streamed_again(tmp_path: Path):
    async with parts(tmp_path) as (client, store, engine):
        async with client.post(stream=True, stream_options={"include_usage": True}) as response:
            await response.read()
        await store.until(lambda: store.delivered() == {1: "yes"})
        store.marks[("a", 1)] = "no"
        usage = {"include_usage": True}
        async with listening_gateway(store) as after, after.post(stream=True, stream_options=usage) as response:
            events = (await response.read()).decode().split("\n\n")
    assert len(engine.requests) == 1
    assert said(store.calls()[1].seed) in events[0]
    assert "usage" in events[1]
    assert events[2:] == ["data: [DONE]", ""]


async def test_an_agent_that_disconnects_before_the_engine_answered_aborts_the_call(tmp_path: Path):
    async with parts(tmp_path) as (client, store, engine):
        engine.behave(Hanging())
        call = asyncio.create_task(client.call())
        await engine.arrived.wait()
        await leave(call)
        await engine.aborted.wait()
        await client.call()
    assert not store.failures
    assert list(store.calls()) == [1]
    assert store.calls()[1].choices[0].response_token_ids == token_ids(engine.requests[0]["seed"], 0, 8)


async def test_a_call_aborted_while_waiting_for_an_engine_is_a_platform_failure(tmp_path: Path):
    async with parts(tmp_path, limits=GatewayLimits(noticed_seconds=0.0)) as (client, store, engine):
        await engine.stop()
        call = asyncio.create_task(client.call())
        lists = store.lists
        await store.until(lambda: store.lists > lists)
        await leave(call)
        await store.until(lambda: len(store.failures) == 1)
        assert (await client.status())["platform_failure"]


async def test_a_call_aborted_behind_one_that_waits_for_an_engine_is_a_platform_failure(tmp_path: Path):
    """Its first connection is half-open, so that only the retry's end is seen."""
    async with parts(tmp_path, limits=GatewayLimits(noticed_seconds=0.0)) as (client, store, engine):
        await engine.stop()
        call = asyncio.create_task(client.call())
        lists = store.lists
        await store.until(lambda: store.lists > lists)
        resolved = len(store.resolved)
        retry = asyncio.create_task(client.call(retry=1))
        await store.until(lambda: len(store.resolved) > resolved)
        await leave(retry)
        await store.until(lambda: len(store.failures) == 1)
        await engine.start()
        await call
    assert [failure.call_number for failure in store.failures] == list(store.calls()) == [1]


async def test_an_answer_whose_commit_took_too_long_is_given_to_the_retry(tmp_path: Path):
    async with parts(tmp_path) as (client, store, engine):
        store.context["engine_wait_seconds"] = 0.2
        store.commit_gate.clear()
        late, _ = await client.call()
        assert (await client.status())["platform_failure"]
        store.commit_gate.set()
        await store.until(lambda: store.delivered() == {1: "no"})
        retried, answer = await client.call(retry=1)
        assert not (await client.status())["platform_failure"]
    assert (late, retried) == (503, 200)
    assert len(engine.requests) == 1
    assert content_of(answer) == said(store.calls()[1].seed)


async def test_a_call_whose_agent_disconnected_is_recorded_to_the_end_when_the_gateway_stops(tmp_path: Path):
    async with parts(tmp_path) as (client, store, _):
        store.commit_gate.clear()
        call = asyncio.create_task(client.call())
        await store.until(lambda: store.committing > 0)
        await leave(call)
        asyncio.get_running_loop().call_later(0.3, store.commit_gate.set)  # by then the gateway is ending
    assert store.delivered() == {1: "no"}


async def test_calls_not_yet_recorded_when_the_gateway_stops_are_recorded_first(tmp_path: Path):
    async with parts(tmp_path) as (client, store, _):
        await client.call()
    assert store.delivered() == {1: "yes"}
