"""The gateway between the official client and a real vLLM, with the real store service on a real Postgres."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from relight.store.generations import unpack_body
from relight.types.wire import OpenRequest
from tests.support.served import Served, check_row

QUESTION = [ChatCompletionUserMessageParam(role="user", content="7*8?")]


async def test_an_agent_with_the_official_client_needs_only_base_url_and_key(served: Served):
    def ask() -> str | None:
        with openai.OpenAI(**served.address) as client:
            return client.chat.completions.create(model="policy", messages=QUESTION).choices[0].message.content

    blocking = await asyncio.to_thread(ask)
    async with openai.AsyncOpenAI(**served.address) as client:
        answer = await client.chat.completions.create(model="policy", messages=QUESTION, n=2, temperature=0.0)
        models = [model.id async for model in client.models.list()]
    rows = await served.rows(3)
    check_row(rows[0], 1)
    check_row(rows[1], 2)
    check_row(rows[2], 2)
    assert blocking is not None
    assert [choice.message.content for choice in answer.choices] == [
        choice["message"]["content"] for choice in (await stored_response(served, 2))["choices"]
    ]
    assert models == ["policy"]


async def stored_response(served: Served, call_number: int) -> Any:
    """The answer on record."""
    body = await served.database.pool.fetchval(
        "select b.body from generations g join bodies b on b.day = g.day and b.hash = g.response"
        " where g.call_number = $1",
        call_number,
    )
    return unpack_body(body)


async def test_streams_reach_both_kinds_of_client_and_are_recorded_alike(served: Served):
    def ask() -> str:
        with openai.OpenAI(**served.address) as client:
            stream = client.chat.completions.create(model="policy", messages=QUESTION, stream=True)
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)

    blocking = await asyncio.to_thread(ask)
    parts: list[str] = []
    async with openai.AsyncOpenAI(**served.address) as client:
        async for chunk in await client.chat.completions.create(model="policy", messages=QUESTION, stream=True):
            parts.append(chunk.choices[0].delta.content or "")
        whole = await client.completions.create(model="policy", prompt=[28, 15, 29], logprobs=1)
    rows = await served.rows(3)
    for number, row in enumerate(rows, start=1):
        check_row(row, number)
    assert (await stored_response(served, 1))["choices"][0]["message"]["content"] == blocking
    assert (await stored_response(served, 2))["choices"][0]["message"]["content"] == "".join(parts)
    assert rows[2]["prompt_token_ids"] == [28, 15, 29]
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.token_logprobs == pytest.approx(rows[2]["logprobs"], abs=1e-5)


async def test_a_stream_that_the_agent_closes_leaves_what_it_was_sent(served: Served):
    await served.database.pool.execute("update steps set plan = $1", {"sampling": {"max_tokens": 200}})
    async with openai.AsyncOpenAI(**served.address) as client:
        stream = await client.chat.completions.create(model="policy", messages=QUESTION, stream=True)
        await anext(aiter(stream))
        await stream.close()
    (row,) = await served.rows(1)
    assert not row["complete"]
    assert row["finish_reason"] is None
    assert 0 < len(row["token_ids"]) < 200


async def test_errors_become_the_official_clients_own_classes(served: Served):
    address = served.address
    async with openai.AsyncOpenAI(**address) as client:
        ask = client.chat.completions.create
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            await ask(model="policy", messages=[ChatCompletionUserMessageParam(role="user", content="7" * 600)])
        with pytest.raises(openai.NotFoundError, match="gpt-4o"):
            await ask(model="gpt-4o", messages=QUESTION)
        async with openai.AsyncOpenAI(**{**address, "api_key": "stolen"}) as thief:
            with pytest.raises(openai.AuthenticationError):
                await thief.chat.completions.create(model="policy", messages=QUESTION)
        newer = OpenRequest(rollout_id="ro", try_number=1, execution="another", worker_id="w")
        await served.store.open_attempt(newer)
        with pytest.raises(openai.ConflictError):
            await ask(model="policy", messages=QUESTION)
    assert await served.database.pool.fetchval("select count(*) from call_failures") == 0
