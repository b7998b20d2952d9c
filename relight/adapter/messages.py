"""Conversations in the form of OpenAI's fine-tuning data, from the spans of an attempt."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, TypedDict, cast

import orjson

from relight.adapter.base import TraceAdapter, as_spans
from relight.adapter.model_calls import answer_messages, offered_tools, prompt_messages, unflatten
from relight.types.tracer import Span

log = logging.getLogger(__name__)


class OpenAIMessages(TypedDict):
    """A model call as a line of OpenAI's fine-tuning data."""

    messages: list[dict[str, Any]]
    """The conversation, with the model's answer as its last message."""
    tools: list[dict[str, Any]] | None
    """The functions that the model was offered; None: none."""


class TraceToMessages(TraceAdapter[list[OpenAIMessages]]):
    """Each model call of an attempt as messages, in their order. Source: Agent Lightning 0.3's `TraceToMessages`.

    Tool calls come from the answer's own attributes, else from the spans of tools below the call, in whichever trace.
    A message whose role is missing has the one that its other fields imply; one of which nothing can be made out is
    left out, and logged.
    """

    def adapt(self, source: Sequence[Any], /) -> list[OpenAIMessages]:
        """The model calls among these spans, the store's or OpenTelemetry's."""
        spans = as_spans(source)
        children: dict[str, list[Span]] = defaultdict(list)
        for span in spans:
            if span.parent_id:
                children[span.parent_id].append(span)
        return [_call(span, _tool_calls_below(span, children)) for span in spans if _has_call(span)]


def _has_call(span: Span) -> bool:
    # Whatever else a proxy's span has, without messages it says nothing of the conversation.
    return bool(prompt_messages(span)) or bool(answer_messages(span))


def _call(span: Span, called: list[dict[str, Any]]) -> OpenAIMessages:
    messages = [message for raw in _listed(prompt_messages(span)) if (message := _message(raw, span))]
    for raw in _listed(answer_messages(span)):
        answer = _message({"role": "assistant", **_choice(raw)}, span)
        if answer is not None:
            if called and "tool_calls" not in answer:
                answer = {"role": "assistant", "content": answer["content"], "tool_calls": called}
            messages.append(answer)
    return OpenAIMessages(messages=messages, tools=_tools(span))


def _choice(raw: dict[str, Any]) -> dict[str, Any]:
    """A choice of an API's answer holds its message."""
    message = raw.get("message")
    return cast("dict[str, Any]", message) if isinstance(message, dict) else raw


def _listed(content: Any) -> list[dict[str, Any]]:
    """The messages of a list, or of an object by number."""
    if isinstance(content, dict):
        by_number = cast("dict[str, Any]", content)
        content = [by_number[key] for key in sorted(filter(str.isdecimal, by_number), key=int)]
    items = cast("list[Any]", content) if isinstance(content, list) else []
    return [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]


def _message(raw: dict[str, Any], span: Span) -> dict[str, Any] | None:
    calls = [call for item in _listed(raw.get("tool_calls")) if (call := _tool_call(item))]
    role = raw.get("role") or _implied_role(raw, calls)
    if role is None:
        log.warning(
            "a message of span %s was left out: it has no role, and its keys imply none: %s",
            span.span_id,
            ", ".join(sorted(raw)),
            extra={"action": "ill_formed_trace"},
        )
        return None
    if role == "assistant":
        answer = {"role": role, "content": _content(raw, None)}
        return {**answer, "tool_calls": calls} if calls else answer
    if role == "tool":
        return {"role": role, "content": _content(raw, ""), "tool_call_id": raw.get("tool_call_id")}
    return {"role": role, "content": _content(raw, "")}


def _implied_role(raw: dict[str, Any], calls: list[dict[str, Any]]) -> str | None:
    """AgentOps drops the roles of earlier turns."""
    if calls:
        return "assistant"
    return "tool" if "tool_call_id" in raw else None


def _content(raw: dict[str, Any], default: str | None) -> Any:
    """Text, a list of parts, or the parts of OpenTelemetry's convention."""
    if "content" in raw:
        return raw["content"]
    texts = [part.get("content") for part in _listed(raw.get("parts")) if part.get("type") == "text"]
    return "".join(text for text in texts if isinstance(text, str)) or default


def _tool_call(raw: dict[str, Any]) -> dict[str, Any] | None:
    """A call of a function, from `{"id", "name", "arguments"}` or the API's form."""
    raw = cast("dict[str, Any]", raw.get("tool_call", raw))  # OpenInference
    function = raw.get("function")
    named = cast("dict[str, Any]", function) if isinstance(function, dict) else raw
    if not named.get("name"):
        return None
    arguments = named.get("arguments", "{}")
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    return {"id": raw.get("id"), "type": "function", "function": {"name": named["name"], "arguments": text}}


def _tool_calls_below(call: Span, children: dict[str, list[Span]]) -> list[dict[str, Any]]:
    """The calls of functions that ran below a model call, at any depth but not below another model call."""
    found: list[dict[str, Any]] = []
    seen = {call.span_id}
    ahead = list(reversed(children[call.span_id]))
    while ahead:
        span = ahead.pop()
        if span.span_id in seen or _has_call(span):
            continue
        seen.add(span.span_id)
        if tool := _tool_span(span):
            found.append(tool)
        ahead.extend(reversed(children[span.span_id]))
    return found


def _tool_span(span: Span) -> dict[str, Any] | None:
    tool = unflatten(span.attributes, "tool")
    if not isinstance(tool, dict):
        return None
    fields = cast("dict[str, Any]", tool)
    call = fields.get("call")
    known = cast("dict[str, Any]", call) if isinstance(call, dict) else {}
    return _tool_call({"id": known.get("id"), "name": fields.get("name"), "arguments": fields.get("parameters", "{}")})


def _tools(span: Span) -> list[dict[str, Any]] | None:
    """The functions that the model was offered, in the API's form."""
    offered = [cast("dict[str, Any]", tool.get("function", tool)) for tool in _listed(offered_tools(span))]
    tools = [_tool(function) for function in offered if function.get("name")]
    return tools or None


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    parameters = function.get("parameters", {})
    if isinstance(parameters, str):
        try:
            parameters = orjson.loads(parameters)
        except orjson.JSONDecodeError:
            parameters = {"description": parameters}
    described = {
        "name": function["name"],
        "description": function.get("description", ""),
        "parameters": parameters,
    }
    return {"type": "function", "function": described}
