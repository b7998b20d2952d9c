"""What the gateway says to requests that are not a model call in order: OpenAI's error shape, and no traceback."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from relight.errors import StoreError
from relight.llm_proxy.app import ROUTES
from relight.llm_proxy.exchange import MAX_BODY_BYTES
from tests.support.gateway import TOKEN
from tests.unit.llm_proxy.parts import parts

KEY = {"authorization": f"Bearer {TOKEN}"}
CALL = "/rollout/ro/attempt/a/v1/chat/completions"


@pytest.mark.parametrize(
    ("method", "path", "headers", "data", "status", "code"),
    [
        ("GET", "/", KEY, None, 404, "not_found"),
        ("GET", CALL, KEY, None, 404, "not_found"),
        ("POST", "/rollout/ro/attempt/a/v1/embeddings", KEY, b"{}", 404, "not_found"),
        ("POST", CALL, {}, b"{}", 401, "invalid_api_key"),
        ("POST", CALL, {"authorization": "Basic xyz"}, b"{}", 401, "invalid_api_key"),
        ("POST", CALL, KEY, b"{", 400, "invalid_json"),
        ("POST", CALL, KEY, b"{}", 400, "missing_required_parameter"),
        ("POST", CALL, KEY, b" " * (MAX_BODY_BYTES + 1), 413, "request_too_large"),
        ("POST", CALL, KEY | {"content-encoding": "gzip"}, b"{}", 400, "invalid_request"),
        ("GET", "/rollout/ro/attempt/a/v1/models/gpt-4o", KEY, None, 404, "model_not_found"),
    ],
)
async def test_a_request_that_cannot_be_served_gets_openais_error(
    tmp_path: Path, method: str, path: str, headers: dict[str, str], data: bytes | None, status: int, code: str
):
    async with (
        parts(tmp_path) as (client, _, engine),
        client.session.request(method, client.origin + path, headers=headers, data=data) as response,
    ):
        answer = await response.json()
    assert (response.status, answer["error"]["code"]) == (status, code)
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert response.headers["x-should-retry"] == "false"
    assert not engine.requests


async def test_a_long_body_without_a_length_is_cut_off(tmp_path: Path):
    async def pieces():
        for _ in range(17):
            yield b" " * 2**20

    async with (
        parts(tmp_path) as (client, _, _),
        client.session.post(client.origin + CALL, headers=KEY, data=pieces()) as response,
    ):
        assert response.status == 413


async def test_models_and_health_answer(tmp_path: Path):
    async with parts(tmp_path) as (client, _, _):
        async with client.session.get(f"{client.origin}/healthz") as health:
            assert health.status == 200
        async with client.session.get(f"{client.base()}/v1/models", headers=KEY) as response:
            models: Any = await response.json()
        async with client.session.get(f"{client.base()}/v1/models/policy", headers=KEY) as one:
            assert (await one.json())["id"] == "policy"
    assert [model["id"] for model in models["data"]] == ["policy"]


async def test_an_internal_error_of_the_gateway_is_recorded_as_a_platform_failure_and_shows_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.CRITICAL)
    async with parts(tmp_path) as (client, store, engine):

        async def nonsense(*_: Any):
            from aiohttp import web

            return web.json_response({"choices": [{"logprobs": {"content": ["nonsense"]}}]})

        engine.behave(nonsense)
        async with client.post() as response:
            answer = await response.json()
    assert response.status == 503
    assert response.headers["x-relight-recorded"] == "true"  # so that the runner's relay need not count it
    assert "Traceback" not in answer["error"]["message"]
    assert len(store.failures) == 1


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("behind", ["", "v1/"])
async def test_no_route_is_open_without_the_attempts_own_key(tmp_path: Path, method: str, path: str, behind: str):
    async with parts(tmp_path) as (client, _, engine):
        await client.call(attempt="known")
        for attempt in ("known", "a"):
            for headers in ({}, {"authorization": "Bearer stolen"}, {"x-api-key": "stolen"}, {"x-api-key": ""}):
                url = f"{client.base(attempt)}/{behind if path.startswith('v1/') else ''}{path.format(model='policy')}"
                async with client.session.request(method, url, headers=headers, data=b"{}") as response:
                    assert response.status == 401, (url, headers)
    assert len(engine.requests) == 1


async def test_spans_are_passed_on_as_they_came_with_the_attempts_key(tmp_path: Path):
    passed: list[Any] = []

    async def pass_on(method: str, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        passed.append((method, path, body, dict(headers)))
        return 200, b"\x0a\x00"

    sent = {"content-type": "application/x-protobuf", "content-encoding": "gzip"}
    assert await answer_to_spans(tmp_path, b"packed", sent, pass_on=pass_on) == (200, b"\x0a\x00")
    [(method, path, body, headers)] = passed
    assert (method, path, body) == ("POST", "/v1/traces", b"packed")
    assert (headers["Authorization"], headers["Content-Encoding"]) == (KEY["authorization"], "gzip")


async def answer_to_spans(tmp_path: Path, body: bytes, headers: Mapping[str, str], **options: Any) -> tuple[int, bytes]:
    """What a gateway answers to spans."""
    async with parts(tmp_path, **options) as (client, _, engine):
        request = client.session.post(f"{client.base()}/v1/traces", data=body, headers={**KEY, **headers})
        async with request as response:
            answer = response.status, await response.read()
            assert response.headers["content-type"] == (headers.get("content-type") or "application/json")
    assert engine.requests == []
    return answer


async def test_spans_are_to_be_sent_again_where_the_store_is_away(tmp_path: Path):
    async def pass_on(*_: Any) -> tuple[int, bytes]:
        raise StoreError("away")

    assert (await answer_to_spans(tmp_path, b"", {}, pass_on=pass_on))[0] == 503


async def test_a_gateway_without_a_store_service_takes_no_spans(tmp_path: Path):
    assert (await answer_to_spans(tmp_path, b"", {}))[0] == 404
