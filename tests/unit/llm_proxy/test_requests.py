"""What becomes of an agent's request before it reaches the engine."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relight.llm_proxy.request_errors import RequestError
from relight.llm_proxy.requests import MAX_DEPTH, Prepared, hash_request, parse_body, prepare, seed_for
from tests.support.examples import examples

RUN = {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "max_tokens": 16, "stop": ["\n"]}
CHAT: dict[str, Any] = {"model": "policy", "messages": [{"role": "user", "content": "7*8?"}]}
JSON = st.recursive(st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(), lambda inner: st.lists(inner))


def prepared(
    agent_chooses: bool = False, route: Any = "chat/completions", corrected: bool = False, **asked: Any
) -> Prepared:
    body = CHAT if route == "chat/completions" else {"prompt": "7*8?"}
    return prepare(route, {**body, **asked}, "policy", RUN, agent_chooses, corrected=corrected)


def test_the_runs_sampling_parameters_take_the_place_of_the_agents():
    body = prepared(temperature=0.0, top_p=0.1, top_k=1, min_p=0.5, logit_bias={"5": 100}, presence_penalty=2).body
    assert {key: body[key] for key in ("temperature", "top_p", "top_k", "min_p")} == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.0,
    }
    assert "logit_bias" not in body
    assert "presence_penalty" not in body


def test_a_run_may_let_the_agent_choose():
    chosen = prepared(agent_chooses=True, temperature=0.0, logit_bias={"5": 100})
    assert chosen.body["temperature"] == 0.0
    assert chosen.body["top_p"] == 0.9
    assert chosen.body["logit_bias"] == {"5": 100}
    assert chosen.sampling["temperature"] == 0.0


CUTS: list[dict[str, Any]] = [
    {"top_p": 0.5},
    {"top_k": 5},
    {"min_p": 0.1},
    {"repetition_penalty": 1.1},
    {"presence_penalty": 0.5},
    {"logit_bias": {"5": 100}},
    {"allowed_token_ids": [5]},
    {"min_tokens": 3},
]


@pytest.mark.parametrize("asked", CUTS, ids=lambda asked: next(iter(asked)))
def test_what_changes_the_sampled_distribution_is_refused_by_name_where_a_correction_compares_logprobs(
    asked: dict[str, Any],
):
    [key] = asked
    with pytest.raises(RequestError, match=rf"{key}: not served with `algorithm.rollout_correction`") as refused:
        prepared(agent_chooses=True, corrected=True, **asked)
    assert refused.value.status == 400
    assert prepared(agent_chooses=True, **asked).body[key] == asked[key]
    assert prepared(corrected=True, **asked).body.get(key) != asked[key]


def test_under_a_correction_an_agent_may_choose_its_temperature_and_options_without_effect():
    harmless = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0, "logit_bias": {}, "min_tokens": None}
    assert prepared(agent_chooses=True, corrected=True, temperature=0.3, **harmless).sampling["temperature"] == 0.3
    assert prepared(agent_chooses=True, corrected=True, top_p=RUN["top_p"], top_k=RUN["top_k"]).body["top_p"] == 0.9


@pytest.mark.parametrize(
    "asked", [{"n": 129}, {"n": 0}, {"n": 1.5}, {"n": True}, {"top_logprobs": 21}, {"top_logprobs": -1}], ids=str
)
def test_more_choices_and_logprobs_than_openais_api_gives_are_refused_by_name(asked: dict[str, Any]):
    [key] = asked
    with pytest.raises(RequestError, match=rf"{key}: a whole number from \d to \d+ is needed"):
        prepared(**asked)


@pytest.mark.parametrize("logprobs", [21, -1])
def test_more_logprobs_of_a_completion_than_the_api_gives_are_refused(logprobs: int):
    with pytest.raises(RequestError, match="logprobs: a whole number from 0 to 20 is needed"):
        prepared(route="completions", logprobs=logprobs)


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_a_body_that_is_nested_too_deeply_to_be_recorded_is_refused(opening: str, closing: str):
    def nested(levels: int) -> bytes:
        return ('{"a":' + opening * levels + "1" + closing * levels + "}").encode()

    assert parse_body(nested(MAX_DEPTH - 1))
    for levels in (MAX_DEPTH, 200, 900):
        with pytest.raises(RequestError, match="nested more than 100 levels deep"):
            parse_body(nested(levels))


def test_a_flat_body_may_be_as_long_as_it_likes():
    assert parse_body(orjson.dumps({"messages": [{"content": "[[[{{{" * 1000}] * 1000}))


@pytest.mark.parametrize("temperature", [-0.1, "0.5", True, float("inf"), float("nan"), [1]])
def test_an_invalid_temperature_is_refused(temperature: Any):
    with pytest.raises(RequestError, match="temperature: a number from 0 on is needed"):
        prepared(agent_chooses=True, temperature=temperature)
    assert prepared(temperature=temperature).body["temperature"] == 0.7


@pytest.mark.parametrize(
    ("asked", "given_tokens"),
    [({}, 16), ({"max_tokens": 4}, 4), ({"max_completion_tokens": 8}, 8), ({"max_tokens": 99}, 16)],
)
def test_the_shorter_limit_on_tokens_holds(asked: dict[str, Any], given_tokens: int):
    body = prepared(**asked).body
    assert body["max_tokens"] == given_tokens
    assert "max_completion_tokens" not in body


@pytest.mark.parametrize(("asked", "stops"), [({}, ["\n"]), ({"stop": "a"}, ["a", "\n"]), ({"stop": ["\n"]}, ["\n"])])
def test_the_runs_stop_strings_are_added_to_the_agents(asked: dict[str, Any], stops: list[str]):
    assert prepared(**asked).body["stop"] == stops


def test_the_agents_messages_pass_unchanged():
    program = {"tools": [{"type": "function"}], "response_format": {"type": "json_object"}, "n": 3, "stream": True}
    body = prepared(**program, user="me").body
    assert {key: body[key] for key in program} == program
    assert body["messages"] == CHAT["messages"]


def test_ids_and_logprobs_are_requested_whatever_the_agent_sets():
    chat = prepared(return_token_ids=False, logprobs=False, top_logprobs=3, seed=1, priority=-5).body
    assert chat["return_token_ids"] is True
    assert chat["logprobs"] is True
    assert not {"top_logprobs", "seed", "priority"} & chat.keys()
    assert prepared(route="completions").body["logprobs"] == 0
    assert prepared(route="completions", logprobs=3).body["logprobs"] == 3


def test_what_the_agent_asked_to_see_is_remembered():
    assert not prepared().wants.logprobs
    assert prepared(logprobs=True, return_token_ids=True).wants.token_ids
    assert prepared(route="completions", logprobs=0).wants.logprobs


@pytest.mark.parametrize(
    ("route", "asked", "status", "named"),
    [
        ("chat/completions", {"model": "gpt-4o"}, 404, "gpt-4o"),
        ("chat/completions", {"messages": "hello"}, 400, "messages"),
        ("chat/completions", {"max_tokens": "many"}, 400, "max_tokens"),
        ("chat/completions", {"max_tokens": 0}, 400, "max_tokens"),
        ("chat/completions", {"stop": 5}, 400, "stop"),
        ("completions", {"prompt": ["a", "b"]}, 400, "prompt"),
        ("completions", {"echo": True}, 400, "echo"),
        ("completions", {"use_beam_search": True}, 400, "use_beam_search"),
    ],
)
def test_what_cannot_be_served_is_refused_by_its_name(route: Any, asked: dict[str, Any], status: int, named: str):
    with pytest.raises(RequestError, match=named) as refused:
        prepared(route=route, **asked)
    assert refused.value.status == status


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"5", b'"a"', b"\xff", b'{"a": "\\ud800"}'])
def test_a_body_that_is_no_json_object_is_refused(content: bytes):
    with pytest.raises(RequestError) as refused:
        parse_body(content)
    assert refused.value.status == 400


@settings(max_examples=examples(40))
@given(st.dictionaries(st.text(), JSON, max_size=6))
def test_equal_requests_have_equal_hashes_in_whatever_order_their_fields_come(body: dict[str, Any]):
    turned = dict(reversed(body.items()))
    assert hash_request("completions", body) == hash_request("completions", turned)
    assert hash_request("completions", body) != hash_request("chat/completions", body)
    assert hash_request("completions", body) == hash_request("completions", orjson.loads(orjson.dumps(body)))


def test_the_hash_depends_on_the_agents_request_and_not_on_overridden_values():
    assert prepared(seed=1, temperature=0.1).request_hash == prepared(seed=2, temperature=0.2).request_hash
    assert prepared().request_hash != prepared(n=2).request_hash


@given(st.text(), st.integers(0, 10**6))
def test_a_seed_follows_from_its_base_and_call_number_and_fits_the_engine(base: str, number: int):
    seed = seed_for(base, number)
    assert 0 <= seed < 2**63
    assert seed == seed_for(base, number)
    assert seed != seed_for(base, number + 1)


def test_seeds_stay_what_they_are():
    assert seed_for("7/1/0/0/1", 1) == 3729480171646602714
