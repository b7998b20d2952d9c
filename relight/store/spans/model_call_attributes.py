"""Model calls as attributes of spans.

The names are those of the LLM proxy of Agent Lightning 0.3 (`llm.hosted_vllm.…`: each field of request and answer, and
the token ids as JSON), of its tracer (`prompt_token_ids`, `response_token_ids`, `logprobs.content`) and of
OpenTelemetry's GenAI conventions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

from relight.store.generations import to_json
from relight.types.tracer import Span

MAX_CONTENT_BYTES: Final = 4 * 1024 * 1024
"""The maximum size of what a span shows of request and answer, like that of any span; beyond it only figures are."""
OMITTED: Final = "relight.omitted_content_bytes"
PROXY: Final = "llm.hosted_vllm."
_MESSAGES: Final = ("gen_ai.prompt", "gen_ai.input.messages", "agentlightning.operation.input", "llm.input_messages")
"""Prefixes of the attributes in which tracers keep messages."""
_REQUEST: Final = {
    "model": "gen_ai.request.model",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "n": "gen_ai.request.choice.count",
}
_COMPLETIONS: Final = ("completions", "/v1/completions")
JSON = dict[str, Any]


class SampledChoice(NamedTuple):
    """One answer of a call; ids and logprobs are None where another model than the policy answered."""

    token_ids: Sequence[int] | None
    logprobs: Sequence[float] | None
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class StoredCall:
    """A model call as a store holds it."""

    call_number: int
    route: str
    engine_id: str
    seed: int
    version_start: int | None
    version_end: int | None
    response_id: str | None
    prompt_token_ids: Sequence[int] | None
    choices: Sequence[SampledChoice]
    """At least one."""

    @property
    def of_policy(self) -> bool:
        """Whether its tokens are known."""
        return self.prompt_token_ids is not None and self.choices[0].token_ids is not None


def has_messages(attributes: Iterable[str]) -> bool:
    """Whether a tracer kept the messages of a call, by the names of its span's attributes."""
    return any(name.startswith(_MESSAGES) for name in attributes)


def call_attributes(span: Span, call: StoredCall, request: Mapping[str, Any], response: Mapping[str, Any]) -> JSON:
    """The attributes of the span that shows a call: the gateway's, or a tracer's with its tokens and what it lacks.

    `request` and `response` are empty where the span has the messages already.
    """
    content, figures = _content(request, response), _figures(call, request, response)
    if not span.attributes:
        return {**content, **_proxy_tokens(call), **figures}
    return {**content, **figures, **span.attributes, **_tracer_tokens(call)}


def _figures(call: StoredCall, request: Mapping[str, Any], response: Mapping[str, Any]) -> JSON:
    figures: JSON = {
        "gen_ai.operation.name": "text_completion" if call.route in _COMPLETIONS else "chat",
        "gen_ai.provider.name": "vllm" if call.of_policy else call.engine_id,
        "gen_ai.request.seed": call.seed if call.of_policy else request.get("seed"),
        "gen_ai.response.id": call.response_id,
        "gen_ai.response.model": response.get("model"),
        "gen_ai.response.finish_reasons": [choice.finish_reason or "" for choice in call.choices],
        **{ours: request[name] for name, ours in _REQUEST.items() if isinstance(request.get(name), str | int | float)},
        **_usage(call, response),
        "logprobs.content": _logprobs(call.choices[0]),
        "relight.call_number": call.call_number,
        "relight.policy_version_at_start": call.version_start,
        "relight.policy_version_at_end": call.version_end,
    }
    return {name: value for name, value in figures.items() if value is not None}


def _usage(call: StoredCall, response: Mapping[str, Any]) -> JSON:
    usage = response.get("usage")
    counted = cast("JSON", usage) if isinstance(usage, dict) else {}
    prompt, answer = counted.get("prompt_tokens"), counted.get("completion_tokens")
    if call.of_policy:
        prompt = len(call.prompt_token_ids or ())
        answer = sum(len(choice.token_ids or ()) for choice in call.choices)
    return {"gen_ai.usage.input_tokens": prompt, "gen_ai.usage.output_tokens": answer}


def _logprobs(choice: SampledChoice) -> str | None:
    """In the form of chat completions; tokens are named as vLLM names them by their ids."""
    if choice.token_ids is None or choice.logprobs is None:
        return None
    pairs = zip(choice.token_ids, choice.logprobs, strict=False)
    return _text([{"token": f"token_id:{token}", "logprob": logprob} for token, logprob in pairs])


def _proxy_tokens(call: StoredCall) -> JSON:
    if not call.of_policy:
        return {}
    answers = [list(choice.token_ids or ()) for choice in call.choices]
    return {
        f"{PROXY}prompt_token_ids": _text(list(call.prompt_token_ids or ())),
        f"{PROXY}response_token_ids": _text(answers),
    }


def _tracer_tokens(call: StoredCall) -> JSON:
    if not call.of_policy:
        return {}
    tokens: JSON = {
        "prompt_token_ids": list(call.prompt_token_ids or ()),
        "response_token_ids": list(call.choices[0].token_ids or ()),
    }
    logprobs = _logprobs(call.choices[0])
    return tokens if logprobs is None else {**tokens, "logprobs.content": logprobs}


def _content(request: Mapping[str, Any], response: Mapping[str, Any]) -> JSON:
    """The fields of request and answer, and their messages in the form of OpenTelemetry."""
    fields = {**request, **response}
    content = {f"{PROXY}{name}": _plain(value) for name, value in fields.items() if value is not None}
    if asked := _asked(request):
        content["gen_ai.input.messages"] = _text(asked)
    if answered := _answered(response):
        content["gen_ai.output.messages"] = _text(answered)
    if request.get("tools"):
        content["gen_ai.tool.definitions"] = _text(request["tools"])
    size = sum(len(value) for value in content.values() if isinstance(value, str))
    return content if size <= MAX_CONTENT_BYTES else {OMITTED: size}


def _asked(request: Mapping[str, Any]) -> list[JSON]:
    if isinstance(prompt := request.get("prompt"), str):
        return [{"role": "user", "parts": [_part_of_text(prompt)]}]
    return [
        {"role": message.get("role", "user"), "parts": _parts(message)} for message in _objects(request, "messages")
    ]


def _answered(response: Mapping[str, Any]) -> list[JSON]:
    answers: list[JSON] = []
    for choice in _objects(response, "choices"):
        message = choice.get("message")
        shown = cast("JSON", message) if isinstance(message, dict) else {"content": choice.get("text")}
        reason = choice.get("finish_reason") or ""
        answers.append({"role": shown.get("role", "assistant"), "parts": _parts(shown), "finish_reason": reason})
    return answers


def _parts(message: Mapping[str, Any]) -> list[JSON]:
    if message.get("role") == "tool":
        answer = {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": message.get("content")}
        return [answer]
    content = message.get("content")
    parts = (
        [_part_of_text(content)] if isinstance(content, str) else [_part(item) for item in _objects(message, "content")]
    )
    return parts + [_tool_call(call) for call in _objects(message, "tool_calls")]


def _part(item: JSON) -> JSON:
    """A part of a message's content; those that OpenTelemetry does not know stay as they are."""
    image = item.get("image_url")
    if isinstance(image, dict):
        return {"type": "uri", "modality": "image", "uri": cast("JSON", image).get("url")}
    return _part_of_text(item["text"]) if isinstance(item.get("text"), str) else item


def _part_of_text(text: str) -> JSON:
    return {"type": "text", "content": text}


def _tool_call(call: JSON) -> JSON:
    function = call.get("function")
    named = cast("JSON", function) if isinstance(function, dict) else {}
    return {"type": "tool_call", "id": call.get("id"), "name": named.get("name"), "arguments": named.get("arguments")}


def _objects(holder: Mapping[str, Any], name: str) -> list[JSON]:
    found = holder.get(name)
    items = cast("list[Any]", found) if isinstance(found, list) else []
    return [cast("JSON", item) for item in items if isinstance(item, dict)]


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float) else _text(value)


def _text(value: Any) -> str:
    return to_json(value).decode()
