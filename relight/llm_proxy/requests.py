"""Makes the engine's request from an agent's.

The run's sampling parameters replace the agent's, token ids and logprobs are requested, and fields that would break the
recording are removed or refused. The rest (messages, tools, response_format, n, stop) is passed on unchanged. Pure
functions, without network or store.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import orjson

from relight.llm_proxy.request_errors import bad_request, no_such_model
from relight.types.checking import depth_of

Route = Literal["chat/completions", "completions"]
Source = Literal["policy", "engine", "upstream"]
"""The target: the policy, another model of the run's engines, or a provider."""

# What shapes the distribution that is sampled from: the run's business, unless it lets the agent choose.
DISTRIBUTION = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "min_tokens",
    "ignore_eos",
)
# With the values that change nothing. Sampled logprobs are of what these leave, the trainer's of all tokens.
RESHAPING: Mapping[str, tuple[Any, ...]] = {
    "top_p": (1,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "repetition_penalty": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "min_tokens": (0,),
}
# Stated in full, so that no default of the engine or of the model's generation_config.json slips in.
NEUTRAL: Mapping[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
# Ours to set, or meant for the engine's operator.
TAKEN_OUT = ("seed", "return_token_ids", "priority", "request_id", "kv_transfer_params", "best_of", "model")
ENGINES_OWN = ("return_token_ids", "continue_final_message", "add_generation_prompt")
"""Fields that a provider may not know and refuse."""
SAMPLING = (*DISTRIBUTION, "max_tokens", "max_completion_tokens", "stop", "n", "seed")
REFUSED = {"use_beam_search": "beam search does not sample", "echo": "an echoed prompt would be mistaken for an answer"}


MAX_DEPTH = 100
"""Levels of a body; what is recorded wraps it, and JSON libraries end at about 250."""
RANGES: Mapping[str, tuple[int, int]] = {"n": (1, 128), "top_logprobs": (0, 20), "logprobs": (0, 20)}
"""As OpenAI's API has them; `logprobs` of a chat is true or false."""


@dataclass(frozen=True, slots=True)
class RequestedExtras:
    """The token details that the agent asked for; others are removed from its answer."""

    logprobs: bool
    token_ids: bool


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request to the engine, without its seed."""

    route: Route
    body: dict[str, Any]
    request_hash: str
    stream: bool
    wants: RequestedExtras
    sampling: dict[str, Any]
    dialect: str
    """The route that the agent called."""
    source: Source = "policy"

    @property
    def records_tokens(self) -> bool:
        """True if tokens are recorded: only the policy's are trained on."""
        return self.source == "policy"


def parse_body(content: bytes) -> dict[str, Any]:
    """The JSON object that an agent sent.

    Raises:
        RequestError: it is none, or nested too deeply to be recorded.
    """
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"the body is not JSON: {error}", "invalid_json") from None
    if not isinstance(body, dict):
        raise bad_request("the body must be a JSON object", "invalid_json")
    brackets = content.count(b"[") + content.count(b"{")
    if brackets > MAX_DEPTH and depth_of(body) > MAX_DEPTH:
        raise bad_request(f"the body is nested more than {MAX_DEPTH} levels deep", "invalid_json")
    return cast("dict[str, Any]", body)


def prepare(
    route: Route,
    asked: dict[str, Any],
    model: str,
    run: Mapping[str, Any],
    agent_chooses: bool,
    dialect: str | None = None,
    *,
    corrected: bool = False,
) -> Prepared:
    """Translate the agent's request to the engine's.

    `corrected`: the update compares the sampler's logprobs with the trainer's.
    """
    check(route, asked, model)
    if agent_chooses:
        check_chosen(asked, run, corrected)
    body = {key: value for key, value in asked.items() if key not in TAKEN_OUT and value is not None}
    logprobs = asked.get("logprobs")
    wants = RequestedExtras(logprobs is not None and logprobs is not False, bool(asked.get("return_token_ids")))
    sampling = set_sampling(body, run, agent_chooses)
    ask_for_tokens(route, body)
    body["model"] = model
    dialect = dialect or route
    return Prepared(route, body, hash_request(dialect, body), bool(body.get("stream")), wants, sampling, dialect)


def pass_on(route: Route, asked: dict[str, Any], source: Source, dialect: str) -> Prepared:
    """A request to another model than the policy: the agent's own, with its seed and sampling parameters."""
    check(route, asked, str(asked["model"]))
    left_out = ENGINES_OWN if source == "upstream" else ("return_token_ids",)
    body = {key: value for key, value in asked.items() if key not in left_out and value is not None}
    sampling = {key: body[key] for key in SAMPLING if key in body}
    wants = RequestedExtras(logprobs=True, token_ids=True)
    return Prepared(
        route, body, hash_request(dialect, body), bool(body.get("stream")), wants, sampling, dialect, source
    )


def check(route: Route, asked: Mapping[str, Any], model: str) -> None:
    """Refuse a request that can't be served; the error names the field and the remedy."""
    named = asked.get("model")
    if named is not None and named not in ("policy", model):
        raise no_such_model(str(named), model)
    for field, reason in REFUSED.items():
        if asked.get(field):
            raise bad_request(f"{field}: not served here, {reason}; leave it out", "unsupported_parameter")
    for field, (least, most) in RANGES.items():
        value = asked.get(field)
        if value is None or (field == "logprobs" and isinstance(value, bool)):
            continue
        if type(value) is not int or not least <= value <= most:
            needed = f"a whole number from {least} to {most} is needed"
            raise bad_request(f"{field}: {needed}, given {value!r:.40}", "invalid_value")
    if route == "chat/completions":
        if not isinstance(asked.get("messages"), list):
            raise bad_request("messages: a list is needed", "missing_required_parameter")
    elif not one_prompt(asked.get("prompt")):
        raise bad_request("prompt: one prompt a call, a string or a list of token ids", "invalid_prompt")


def check_chosen(asked: Mapping[str, Any], run: Mapping[str, Any], corrected: bool) -> None:
    """Refuse sampling parameters of the agent that can't be trained with."""
    temperature = asked.get("temperature")
    if temperature is not None and not (type(temperature) in (int, float) and 0 <= temperature < math.inf):
        raise bad_request(f"temperature: a number from 0 on is needed, given {temperature!r}", "invalid_value")
    for key, harmless in RESHAPING.items() if corrected else ():
        value = asked.get(key)
        if value is not None and value not in (*harmless, run.get(key)):
            raise bad_request(
                f"{key}: not served with `algorithm.rollout_correction`, which compares the logprobs of sampler and "
                f"trainer, and the sampler's are of the tokens that {key} leaves; leave it out, given {value!r}",
                "unsupported_parameter",
            )


def one_prompt(prompt: Any) -> bool:
    """True for a text, for token ids, and for a list with one of these."""
    if isinstance(prompt, list):
        items = cast("list[Any]", prompt)
        return bool(items) and (len(items) == 1 or all(type(item) is int for item in items))
    return isinstance(prompt, str)


def set_sampling(body: dict[str, Any], run: Mapping[str, Any], agent_chooses: bool) -> dict[str, Any]:
    """Put the sampling parameters into `body`, and return those in effect."""
    asked_tokens = [body.pop(key) for key in ("max_tokens", "max_completion_tokens") if key in body]
    fixed = {key: value for key, value in run.items() if key in DISTRIBUTION and value is not None}
    if agent_chooses:
        values = {**NEUTRAL, **fixed, **{key: body[key] for key in DISTRIBUTION if key in body}}
    else:
        values = {**NEUTRAL, **fixed}
    for key in DISTRIBUTION:
        body.pop(key, None)
    limits = [limit for limit in (*asked_tokens, run.get("max_tokens")) if limit is not None]
    if limits:
        values["max_tokens"] = shortest(limits)
    stops = merge_stops(body.pop("stop", None), run.get("stop"))
    if stops:
        values["stop"] = stops
    body.update(values)
    return {**values, "n": body.get("n", 1)}


def shortest(limits: list[Any]) -> int:
    """The smallest limit on tokens; a value that is not a number is refused."""
    for limit in limits:
        if type(limit) is not int or limit < 1:
            raise bad_request(f"max_tokens: a positive whole number is needed, given {limit!r}", "invalid_value")
    return min(limits)


def merge_stops(asked: Any, run: Any) -> list[Any]:
    """The agent's stop strings and the run's."""
    if asked is not None and not isinstance(asked, str | list):
        raise bad_request(f"stop: a string or a list of strings is needed, given {asked!r}", "invalid_value")
    own = [asked] if isinstance(asked, str) else list(cast("list[Any]", asked or []))
    return own + [stop for stop in (run or []) if stop not in own]


def ask_for_tokens(route: Route, body: dict[str, Any]) -> None:
    """Request token ids and the logprobs of the sampled tokens."""
    body["return_token_ids"] = True
    if route == "chat/completions":
        if not body.get("logprobs"):
            body.pop("top_logprobs", None)
        body["logprobs"] = True
    elif type(body.get("logprobs")) is not int:
        body["logprobs"] = 0


def hash_request(route: str, body: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of a request without its seed: equal for equal calls, across restarts."""
    canonical = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(route.encode() + b"\n" + canonical).hexdigest()


def seed_for(seed_base: str, call_number: int) -> int:
    """Seed of a call (rule 7): 63 bits, since engines take a signed 64-bit number."""
    digest = hashlib.blake2b(f"{seed_base}/{call_number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") & (2**63 - 1)
