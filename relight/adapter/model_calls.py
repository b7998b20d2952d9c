"""Reads model calls from spans' attributes, whichever library wrote them.

Understood are the names of OpenLLMetry and AgentOps (`gen_ai.prompt.0.content`), of Weave as 0.3 stores it
(`agentlightning.operation.input`), of LiteLLM (`llm.hosted_vllm.choices`), of OpenTelemetry's GenAI conventions
(`gen_ai.input.messages`) and of OpenInference (`llm.input_messages.0.message.content`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar, cast

import orjson
from pydantic import BaseModel, Field

from relight.emitter.attributes import is_index, unflatten
from relight.types.tracer import Span

Call = TypeVar("Call")

PROXY_CALLS: Final = ("raw_gen_ai_request", "litellm_request")
"""Names of the spans of a proxy's calls."""
RESPONSE_ID: Final = ("gen_ai.response.id", "agentlightning.operation.output.id", "llm.hosted_vllm.id")
_PROMPT_IDS: Final = (
    "prompt_token_ids",
    "agentlightning.operation.output.prompt_token_ids",
    "llm.hosted_vllm.prompt_token_ids",
)
_RESPONSE_IDS: Final = (
    "response_token_ids",
    "agentlightning.operation.output.response_token_ids.0",
    "agentlightning.operation.output.choices.0.token_ids",
    "agentlightning.operation.output.choices.0.provider_specific_fields.token_ids",
    "llm.hosted_vllm.response_token_ids",
)
_CHAT_OPERATIONS: Final = frozenset({"chat", "completion", "text_completion", "generate_content"})


class Triplet(BaseModel):
    """A model call: what was asked, what was answered, and the reward. Source: Agent Lightning 0.3's `Triplet`."""

    prompt: Any
    """`token_ids` (list of int, empty if unknown), `raw_content` (the messages), `image_urls`."""
    response: Any
    """`token_ids`, `raw_content`, and `logprobs` if the span has them."""
    reward: float | None = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    """`request`, `response`, `response_id`, `agent_name`."""


def first_of(attributes: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    """The first of these attributes that is text."""
    return next((value for key in keys if isinstance(value := attributes.get(key), str) and value), None)


def response_id(span: Span) -> str | None:
    """The id of the model's answer, by which spans of one call are recognised."""
    return first_of(span.attributes, RESPONSE_ID)


def token_ids(span: Span) -> tuple[list[int], list[int]]:
    """The ids of prompt and answer; each is empty if the span has none."""
    attributes = span.attributes
    prompt = next((ids for key in _PROMPT_IDS if (ids := _ids(attributes.get(key)))), [])
    answer = next((ids for key in _RESPONSE_IDS if (ids := _ids(attributes.get(key)))), [])
    return prompt, answer or _ids_of_first_choice(attributes.get("llm.hosted_vllm.choices"))


def _ids(value: Any) -> list[int]:
    """A list of ids, also as text; of a list for each choice the first."""
    value = _parsed(value) if isinstance(value, str) else value
    if not isinstance(value, list | tuple) or not value:
        return []
    items = cast("list[Any]", value)
    if isinstance(items[0], list):
        return _ids(items[0])
    return list(items) if {*map(type, items)} == {int} else []


def _ids_of_first_choice(value: Any) -> list[int]:
    choices = _parsed(value) if isinstance(value, str) else value
    first = cast("list[Any]", choices)[0] if isinstance(choices, list) and choices else None
    return _ids(cast("dict[str, Any]", first).get("token_ids")) if isinstance(first, dict) else []


def _parsed(text: str) -> Any:
    """JSON, or the `repr` of a Python value, which LiteLLM writes; None if it is neither."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def is_model_call(span: Span) -> bool:
    """Whether a span has a call's token ids, or says by a convention that a chat or completion model was called."""
    attributes = span.attributes
    if all(token_ids(span)):
        return True
    if str(attributes.get("openinference.span.kind")).upper() == "LLM":
        return True
    kind = attributes.get("gen_ai.operation.name", attributes.get("gen_ai.request.type"))
    return kind in _CHAT_OPERATIONS


def agent_name(span: Span) -> str | None:
    """The agent that a span stands for; None if it stands for none."""
    attributes = span.attributes
    if name := first_of(attributes, ("agent.name",)):
        return name  # OpenAI's Agents SDK
    if attributes.get("agentops.span.kind") == "agent" and (name := first_of(attributes, ("operation.name",))):
        return name
    # AutoGen, LangGraph, Microsoft's Agent Framework, OpenTelemetry
    known = ("recipient_agent_type", "langchain.chain.type", "executor.id", "gen_ai.agent.name")
    if name := first_of(attributes, known):
        return name
    if attributes.get("type") == "agent":  # Weave
        return first_of(attributes, ("agentlightning.operation.input.name",))
    if span.name.startswith("langchain.Chain."):  # Weave with LangChain
        return first_of(attributes, ("lc_name",))
    return span.name if attributes.get("openinference.span.kind") == "AGENT" else None


def prompt_messages(span: Span) -> Any:
    """The messages of the request as the library wrote them."""
    return _content(span, ("gen_ai.prompt", "agentlightning.operation.input.messages"), "messages", "input")


def answer_messages(span: Span) -> Any:
    """The messages of the answer as the library wrote them."""
    return _content(span, ("gen_ai.completion", "agentlightning.operation.output.choices"), "choices", "output")


def offered_tools(span: Span) -> Any:
    """The functions that the model was offered, as the library wrote them."""
    for prefix in ("gen_ai.request.functions", "llm.request.functions"):
        if functions := unflatten(span.attributes, prefix):
            return functions
    return _first_parsed(span, "llm.hosted_vllm.tools", "gen_ai.tool.definitions")


def _content(span: Span, prefixes: tuple[str, ...], field: str, direction: str) -> Any:
    for prefix in prefixes:
        if content := unflatten(span.attributes, prefix):
            return content
    if content := _first_parsed(span, f"llm.hosted_vllm.{field}", f"gen_ai.{direction}.messages"):
        return content
    listed = unflatten(span.attributes, f"llm.{direction}_messages")
    return [item.get("message", item) for item in _objects(listed)] if listed else None


def _first_parsed(span: Span, *names: str) -> Any:
    texts = (text for name in names if isinstance(text := span.attributes.get(name), str))
    return next((value for text in texts if (value := _parsed(text))), None)


def image_urls(content: Any) -> list[str]:
    """URLs of the images in messages, in their order.

    Messages are a list, or an object by number (`{"0": {...}, "filter": ...}`), or one message; their content is a
    list of parts, also as JSON text.
    """
    return [url for message in _messages(content) for part in _parts(message) if (url := _image_url(part))]


def _messages(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, dict):
        messages = cast("dict[str, Any]", content)
        numbers = sorted(filter(is_index, messages), key=int)
        return _objects([messages[key] for key in numbers] if numbers else [messages])
    return _objects(content)


def _parts(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        content = _parsed(content) if content.lstrip().startswith("[") else None
    yield from _objects(content)


def _image_url(part: dict[str, Any]) -> str | None:
    image = part.get("image_url")
    url = cast("dict[str, Any]", image).get("url") if isinstance(image, dict) else None
    return url if part.get("type") == "image_url" and isinstance(url, str) else None


def _objects(items: Any) -> list[dict[str, Any]]:
    """The objects of a list."""
    if not isinstance(items, list):
        return []
    return [cast("dict[str, Any]", item) for item in cast("list[Any]", items) if isinstance(item, dict)]


def triplet_of(span: Span, agent: str | None) -> Triplet:
    """The model call of a span, without its reward."""
    prompt_ids, answer_ids = token_ids(span)
    content = prompt_messages(span)
    response = {"token_ids": answer_ids, "raw_content": answer_messages(span)}
    logprobs = span.attributes.get("logprobs.content")
    if isinstance(logprobs, str) and (parsed := _parsed(logprobs)) is not None:
        response["logprobs"] = parsed
    return Triplet(
        prompt={"token_ids": prompt_ids, "raw_content": content, "image_urls": image_urls(content)},
        response=response,
        metadata={
            "request": _without(span, ("gen_ai.request", "agentlightning.operation.input"), {"messages"}),
            "response": _without(
                span,
                ("gen_ai.response", "agentlightning.operation.output"),
                {"choices", "prompt_token_ids", "response_token_ids"},
            ),
            "response_id": response_id(span),
            "agent_name": agent,
        },
    )


def latest_calls(events: Iterable[tuple[Call | None, float | None]]) -> Iterator[tuple[Call, float]]:
    """Each reward with the latest call before it that has none yet; an event with a reward is no call."""
    waiting: list[Call] = []
    for call, reward in events:
        if reward is None and call is not None:
            waiting.append(call)
        elif reward is not None and waiting:
            yield waiting.pop(), reward


def _without(span: Span, prefixes: tuple[str, ...], names: set[str]) -> Any:
    """The attributes below the first of these prefixes that has any, without those that stand elsewhere."""
    found = next((value for prefix in prefixes if (value := unflatten(span.attributes, prefix))), None)
    if not isinstance(found, dict):
        return found
    return {key: value for key, value in cast("dict[str, Any]", found).items() if key not in names}
