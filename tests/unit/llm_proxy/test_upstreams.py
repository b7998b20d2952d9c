"""Models of other providers, through a gateway that holds their keys."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anthropic
import openai
import pytest
from aiohttp import web

from relight.errors import ConfigError
from relight.llm_proxy.provider_addresses import AddressGuard, addresses_of
from relight.testing import ScriptedUpstream, fault
from relight.types.run_file import parse_run_file
from relight.types.upstreams import Upstream, load_upstreams
from tests.support.fake_engine import FakeEngine, fake_engine
from tests.support.fake_provider import KEY, WORDS, fake_provider
from tests.support.gateway import TOKEN, Client, ScriptedStore, listening_gateway

QUESTION: Any = [{"role": "user", "content": "7*8?"}]
JUDGE = {"name": "other", "api_key_env": "OTHER_API_KEY", "models": ["judge"]}
ENVIRONMENT = {"OTHER_API_KEY": f"{KEY}\n"}


@asynccontextmanager
async def parts(
    tmp_path: Path, environment: dict[str, str] | None = None
) -> AsyncGenerator[tuple[Client, ScriptedStore, ScriptedUpstream, FakeEngine]]:
    """Store, engine, provider and a gateway; the run file names the provider."""
    store = ScriptedStore()
    async with fake_engine(tmp_path / "e1.sock") as engine, fake_provider() as provider:
        store.has_engine(engine.url)
        store.context["upstreams"] = [Upstream.model_validate({**JUDGE, "base_url": provider.url})]
        async with listening_gateway(store, environment=ENVIRONMENT if environment is None else environment) as client:
            yield client, store, provider, engine


def everything(store: ScriptedStore) -> str:
    """All that the store was told."""
    return json.dumps([item.model_dump() for item in (*store.records.values(), *store.failures)])


async def test_a_call_to_another_models_name_goes_to_its_provider_with_the_gateways_key(tmp_path: Path):
    async with parts(tmp_path) as (client, store, provider, engine):
        code, answer = await client.call(model="judge", temperature=0.1, seed=5, max_tokens=3)
        await store.until(lambda: store.delivered() == {1: "yes"})
    assert (code, answer["choices"][0]["message"]["content"]) == (200, "".join(WORDS))
    assert provider.requests == [
        {"model": "judge", "messages": QUESTION, "temperature": 0.1, "seed": 5, "max_tokens": 3}
    ]
    assert provider.headers[0]["authorization"] == f"Bearer {KEY}"
    assert provider.paths == ["/v1/chat/completions"]
    assert TOKEN not in json.dumps(provider.headers)
    assert not engine.requests


async def test_a_providers_answer_is_recorded_without_token_ids_even_if_it_sends_some(tmp_path: Path):
    async with parts(tmp_path) as (client, store, _, _):
        await client.call(model="judge", return_token_ids=True)
        async with client.post(model="judge", stream=True) as response:
            await response.read()
        await client.call()
    for record in (store.calls()[1], store.calls()[2]):
        assert record.prompt_token_ids is None
        assert (record.choices[0].response_token_ids, record.choices[0].logprobs) == (None, None)
        assert (record.engine_id, record.model, record.seed) == ("upstream:other", "judge", 0)
        assert record.choices[0].complete
    assert store.calls()[3].choices[0].response_token_ids


async def test_streams_pass_through_as_they_come_and_end_after_the_commit(tmp_path: Path):
    async with parts(tmp_path) as (client, store, provider, _):
        more = asyncio.Event()

        async def gate(number: int) -> None:
            if number == 2:
                await more.wait()

        provider.gate = gate
        store.commit_gate.clear()
        async with openai.AsyncOpenAI(base_url=f"{client.base()}/v1", api_key=TOKEN) as official:
            stream = aiter(await official.chat.completions.create(model="judge", messages=QUESTION, stream=True))
            words = [(await anext(stream)).choices[0].delta.content for _ in range(2)]
            more.set()
            words.append((await anext(stream)).choices[0].delta.content)
            last = asyncio.ensure_future(anext(stream))
            await store.until(lambda: store.committing > 0)
            assert not last.done()
            store.commit_gate.set()
            words.append((await last).choices[0].delta.content)
    assert words == WORDS
    assert store.calls()[1].response["choices"][0]["message"]["content"] == "".join(WORDS)


async def test_every_dialect_reaches_a_provider(tmp_path: Path):
    async with (
        parts(tmp_path) as (client, store, provider, _),
        openai.AsyncOpenAI(base_url=f"{client.base()}/v1", api_key=TOKEN) as openais,
        anthropic.AsyncAnthropic(base_url=client.base(), api_key=TOKEN) as anthropics,
    ):
        response = await openais.responses.create(model="judge", input="7*8?")
        message = await anthropics.messages.create(model="judge", messages=QUESTION, max_tokens=5)
        async with anthropics.messages.stream(model="judge", messages=QUESTION, max_tokens=5) as stream:
            streamed = await stream.get_final_message()
        models = [model.id async for model in openais.models.list()]
        also = [model.id async for model in anthropics.models.list()]
    said = [response.output_text, message.content[0].text, streamed.content[0].text]  # type: ignore[union-attr]
    assert said == ["".join(WORDS)] * 3
    assert models == also == ["policy", "judge"]
    assert [record.route for record in store.calls().values()] == ["responses", "messages", "messages"]
    assert all(request["messages"] == QUESTION for request in provider.requests)


async def test_the_key_reaches_neither_agent_nor_store_nor_log(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    quoting = {"choices": [{"index": 0, "message": {"content": f"Your key is {KEY}"}, "finish_reason": "stop"}]}
    refused = {"error": {"message": f"bad request of {KEY}", "code": 400}}
    seen: list[Any] = []
    async with parts(tmp_path) as (client, store, provider, _):
        store.context["engine_wait_seconds"] = 0.1
        provider.script += [fault(200, quoting), fault(400, refused), fault(401, refused), *[fault(500, refused)] * 9]
        for _ in range(4):
            seen.append(await client.call(model="judge"))
            seen.append(await client.status())
    assert [code for code, _ in seen[::2]] == [200, 400, 503, 503]
    assert "[removed]" in json.dumps(seen)
    for recorded in (json.dumps(seen), everything(store), caplog.text):
        assert KEY not in recorded
    assert "does not accept the gateway's key" in seen[4][1]["error"]["message"]


async def test_a_redirect_is_not_followed_with_the_key(tmp_path: Path):
    async with parts(tmp_path) as (client, store, provider, _):
        store.context["engine_wait_seconds"] = 0.1
        provider.script += [fault(307, {}, location=f"{provider.url}/elsewhere")] * 9
        code, _ = await client.call(model="judge")
    assert code == 503
    assert set(provider.paths) == {"/v1/chat/completions"}


async def test_a_key_that_the_gateway_lacks_is_named_at_once(tmp_path: Path):
    async with parts(tmp_path, environment={}) as (client, store, provider, _):
        code, answer = await client.call(model="judge")
        assert store.failures
    assert code == 503
    assert "OTHER_API_KEY" in answer["error"]["message"]
    assert not provider.requests


async def test_a_provider_that_is_down_is_waited_for_and_another_one_is_used(tmp_path: Path):
    async with parts(tmp_path) as (client, store, provider, _), fake_provider() as second:
        provider.script += [fault(429, {}, **{"retry-after": "0"}), fault(503, {})]
        code, _ = await client.call(model="judge")
        assert (code, len(provider.requests)) == (200, 3)
        assert (await client.status())["waited_seconds"] > 0
        named = {**JUDGE, "name": "second", "base_url": second.url, "api_key_env": None}
        store.context["upstreams"] = [*store.context["upstreams"], Upstream.model_validate(named)]
        provider.script += [fault(500, {})]
        code, _ = await client.call(model="judge", attempt="b")
    assert code == 200
    assert len(second.requests) == 1
    assert "authorization" not in second.headers[0]
    assert store.calls("b")[1].engine_id == "upstream:second"


async def test_a_stream_that_breaks_after_its_first_tokens_is_a_platform_failure(tmp_path: Path):
    async def breaks(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"choices": [{"index": 0, "delta": {"content": "I "}}]}\n\n')
        return response

    async with parts(tmp_path) as (client, store, provider, _):
        provider.script.append(breaks)
        async with openai.AsyncOpenAI(base_url=f"{client.base()}/v1", api_key=TOKEN) as official:
            stream = await official.chat.completions.create(model="judge", messages=QUESTION, stream=True)
            with pytest.raises(openai.APIError, match="the stream broke"):
                async for _ in stream:
                    pass
        await store.until(lambda: bool(store.failures))
    assert not store.records


async def test_a_stream_that_the_agent_closes_leaves_a_record_without_an_end(tmp_path: Path):
    async with parts(tmp_path) as (client, store, provider, _):
        never = asyncio.Event()

        async def gate(number: int) -> None:
            if number == 2:
                await never.wait()

        provider.gate = gate
        async with openai.AsyncOpenAI(base_url=f"{client.base()}/v1", api_key=TOKEN) as official:
            stream = await official.chat.completions.create(model="judge", messages=QUESTION, stream=True)
            await anext(aiter(stream))
            await stream.close()
        await store.until(lambda: bool(store.records))
    record = store.calls()[1]
    assert (record.delivered, record.choices[0].complete) == ("yes", False)
    assert record.choices[0].response_token_ids is None


async def test_the_gateways_own_providers_serve_rollouts_of_no_run(tmp_path: Path):
    store = ScriptedStore()
    store.context["run"] = None
    async with fake_provider() as provider:
        own = [Upstream.model_validate({**JUDGE, "base_url": provider.url})]
        async with listening_gateway(store, upstreams=own, environment=ENVIRONMENT) as client:
            code, _ = await client.call(model="judge")
            policy, answer = await client.call()
    assert (code, policy) == (200, 503)
    assert "belongs to no run" in answer["error"]["message"]


async def test_an_unknown_model_is_named_with_the_known_ones(tmp_path: Path):
    async with parts(tmp_path) as (client, _, _, _):
        code, answer = await client.call(model="gpt-4o")
    assert code == 404
    assert answer["error"]["message"].endswith("this attempt may call policy, judge")


async def test_another_model_on_an_engine_of_the_run_is_called_by_its_name_and_not_trained_on(tmp_path: Path):
    store = ScriptedStore()
    async with fake_engine(tmp_path / "p.sock") as policy, fake_engine(tmp_path / "r.sock") as reference:
        store.has_engine(policy.url)
        store.has_engine(reference.url, version=9, engine_id="e2")
        store.listed[1] = store.listed[1].model_copy(update={"model": "reference"})
        async with listening_gateway(store) as client:
            code, _ = await client.call(model="reference", seed=3)
            await client.call()
    assert code == 200
    assert [request["model"] for request in reference.requests] == ["reference"]
    assert [request["model"] for request in policy.requests] == ["policy"]
    assert (store.calls()[1].engine_id, store.calls()[1].choices[0].response_token_ids) == ("e2", None)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"api_key_env": "RELIGHT_API_KEY"}, "_API_KEY"),
        ({"api_key_env": "TEMPORAL_API_KEY"}, "_API_KEY"),
        ({"api_key_env": "AWS_SECRET_ACCESS_KEY"}, "_API_KEY"),
        ({"base_url": "https://user:password@host/v1"}, "password"),
        ({"base_url": "file:///etc/passwd"}, "address"),
        ({"models": ["policy"]}, "policy"),
        ({"models": []}, "models"),
        ({"api_key": KEY}, "unknown key"),
    ],
)
def test_a_run_file_that_names_a_provider_wrongly_is_refused(change: dict[str, Any], named: str):
    file = {"agent": "a", "model": "m", "data": "t.jsonl"}
    good = {**JUDGE, "base_url": "https://api.openai.com/v1/"}
    assert parse_run_file({**file, "upstreams": [good]}).upstreams[0].base_url == "https://api.openai.com/v1"
    with pytest.raises(ConfigError, match=named):
        parse_run_file({**file, "upstreams": [good | change]})
    with pytest.raises(ConfigError, match="two upstreams"):
        parse_run_file({**file, "upstreams": [good, good]})


def test_the_gateways_own_file_is_read_or_refused_by_its_name(tmp_path: Path):
    path = tmp_path / "upstreams.json"
    with pytest.raises(ConfigError, match="No such file"):
        load_upstreams(path)
    path.write_text(json.dumps([{**JUDGE, "base_url": "https://x/v1"}]))
    assert [upstream.name for upstream in load_upstreams(path)] == ["other"]
    for content, named in (("{", "gateway_upstreams"), ("[{}]", "0.name"), ('[{"name": 5}]', "0.name")):
        path.write_text(content)
        with pytest.raises(ConfigError, match=named):
            load_upstreams(path)


async def test_a_model_name_that_cannot_be_looked_up_waits_for_the_store(tmp_path: Path):
    async with parts(tmp_path) as (client, store, _, _):
        store.context["upstreams"] = []
        async with client.session.get(
            f"{client.base()}/v1/models/policy", headers={"authorization": f"Bearer {TOKEN}"}
        ) as known:
            assert known.status == 200
        await asyncio.sleep(1.1)  # until the list of engines is too old to be believed
        store.away = True
        call = asyncio.create_task(client.call(model="reference"))
        turned_away = store.turned_away
        await store.until(lambda: store.turned_away > turned_away + 1)
        assert (await client.status())["waiting"]
        store.away = False
        store.context["engine_wait_seconds"] = 0.1
        call.cancel()
        code, _ = await client.call(model="reference")
    assert code == 404


def test_the_files_that_the_page_shows_are_valid(tmp_path: Path):
    page = (Path(__file__).parents[3] / "docs" / "gateway.md").read_text()
    (shown,) = re.findall(r"^```json\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    file = json.loads(shown)
    assert [upstream.name for upstream in parse_run_file(file).upstreams] == ["openai", "local"]
    (tmp_path / "upstreams.json").write_text(json.dumps(file["upstreams"]))
    assert len(load_upstreams(tmp_path / "upstreams.json")) == 2


ESCAPED = "".join(f"\\u{ord(character):04x}" for character in KEY)


@pytest.mark.parametrize("quoted", [KEY, ESCAPED, ESCAPED.upper().replace("\\U", "\\u"), KEY[:3] + ESCAPED[18:]])
async def test_a_key_that_a_provider_quotes_is_removed_however_it_is_escaped(tmp_path: Path, quoted: str):
    async def quote(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=400, body=f'{{"error": {{"message": "no model for {quoted}"}}}}')

    async with parts(tmp_path) as (client, store, provider, _):
        provider.script.append(quote)
        code, answer = await client.call(model="judge")
    assert (code, answer["error"]["message"]) == (400, "no model for [removed]")
    assert KEY not in everything(store)


@pytest.mark.parametrize("host", ["169.254.169.254", "[fe80::1%25lo]", "[::ffff:169.254.169.254]", "[fd00:ec2::254]"])
async def test_a_provider_at_a_link_local_address_is_not_called(tmp_path: Path, host: str):
    store = ScriptedStore()
    store.context["upstreams"] = [Upstream.model_validate({**JUDGE, "base_url": f"http://{host}/v1"})]
    async with listening_gateway(store, environment=ENVIRONMENT) as client:
        code, answer = await client.call(model="judge")
    assert code == 503
    assert "link-local or the platform's own" in answer["error"]["message"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2", "0.0.0.0", "[::ffff:127.0.0.1]"])
async def test_a_provider_is_not_called_that_is_a_service_of_the_platform_itself_unless_its_host_is_allowed(
    tmp_path: Path, host: str
):
    async with fake_provider() as provider:
        port = urlsplit(provider.url).port
        guard = AddressGuard(await addresses_of([f"localhost:{port}", "no-such-host.invalid:1", None]))
        store = ScriptedStore()
        store.context["upstreams"] = [Upstream.model_validate({**JUDGE, "base_url": f"http://{host}:{port}/v1"})]
        async with listening_gateway(store, environment=ENVIRONMENT, guard=guard) as client:
            code, answer = await client.call(model="judge")
        assert code == 503
        assert "name the host in gateway_allowed_hosts" in answer["error"]["message"]
        assert not provider.requests
        allowed = ["127.0.0.1"]
        async with listening_gateway(store, environment=ENVIRONMENT, guard=guard, allowed_hosts=allowed) as client:
            code, _ = await client.call(model="judge")
        assert code == (200 if host in allowed else 503)
