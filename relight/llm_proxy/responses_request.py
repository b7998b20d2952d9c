"""Translates requests of OpenAI's Responses API to chat completions. Pure functions.

The gateway keeps no conversation: `previous_response_id`, `conversation`, `background` and stored prompts are refused,
and so are server-side tools. Fields without a meaning for an engine (`metadata`, `include`, `user`, caching hints) are
dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from relight.llm_proxy.request_errors import RequestError, bad_request

JSON = dict[str, Any]

KEPT = (
    "model",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "stop",
    "parallel_tool_calls",
    "chat_template_kwargs",
)
"""Fields with the same meaning in both; those that OpenAI's API lacks are the engine's."""
UNSERVED: Mapping[str, str] = {
    "previous_response_id": "the gateway keeps no conversation; send the earlier items again in `input`",
    "conversation": "the gateway keeps no conversation; send the earlier items again in `input`",
    "background": "a call ends with its answer; leave it out",
    "prompt": "the gateway has no stored prompts; send the prompt in `input`",
}
LOGPROBS = "message.output_text.logprobs"


def unserved(field: str, remedy: str) -> RequestError:
    """The error for a field that can't be served."""
    return bad_request(f"{field}: not served here, {remedy}", "unsupported_parameter")


def read_request(asked: JSON) -> JSON:
    """Translate a request to chat completions."""
    for field, remedy in UNSERVED.items():
        if asked.get(field):
            raise unserved(field, remedy)
    body = {key: asked[key] for key in KEPT if asked.get(key) is not None}
    body["messages"] = read_input(asked.get("instructions"), asked.get("input"))
    if asked.get("max_output_tokens") is not None:
        body["max_tokens"] = asked["max_output_tokens"]
    if tools := [read_tool(number, tool) for number, tool in enumerate(as_list("tools", asked.get("tools")))]:
        body["tools"] = tools
        if asked.get("tool_choice") is not None:
            body["tool_choice"] = read_tool_choice(asked["tool_choice"])
    effort = as_object("reasoning", asked.get("reasoning")).get("effort")
    if effort is not None:
        body["reasoning_effort"] = effort
    if response_format := read_format(as_object("text", asked.get("text")).get("format")):
        body["response_format"] = response_format
    if LOGPROBS in as_list("include", asked.get("include")):
        body |= {"logprobs": True, "top_logprobs": asked.get("top_logprobs") or 0}
    if body.pop("stream", False):
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def as_list(field: str, value: Any) -> list[Any]:
    """A list, or nothing."""
    if value is None or isinstance(value, list):
        return cast("list[Any]", value or [])
    raise bad_request(f"{field}: a list is needed", "invalid_type")


def as_object(field: str, value: Any) -> JSON:
    """A JSON object, or nothing."""
    if value is None or isinstance(value, dict):
        return cast("JSON", value or {})
    raise bad_request(f"{field}: an object is needed", "invalid_type")


def read_tool(number: int, tool: Any) -> JSON:
    """Translate a function; server-side tools are refused."""
    known = as_object(f"tools[{number}]", tool)
    if known.get("type") != "function":
        raise unserved(f"tools[{number}].type {known.get('type')!r}", "only functions, which the agent runs itself")
    function = {
        key: known[key] for key in ("name", "description", "parameters", "strict") if known.get(key) is not None
    }
    return {"type": "function", "function": function}


def read_tool_choice(choice: Any) -> Any:
    """A keyword, or a function by its name."""
    if isinstance(choice, str):
        return choice
    known = as_object("tool_choice", choice)
    if known.get("type") != "function":
        raise unserved(f"tool_choice.type {known.get('type')!r}", "give `auto`, `none`, `required` or a function")
    return {"type": "function", "function": {"name": known.get("name")}}


def read_format(asked: Any) -> JSON | None:
    """The format that the answer must have."""
    known = as_object("text.format", asked)
    if known.get("type") in (None, "text"):
        return None
    if known["type"] == "json_schema":
        keys = ("name", "schema", "strict", "description")
        schema = {key: known[key] for key in keys if known.get(key) is not None}
        return {"type": "json_schema", "json_schema": schema}
    return {"type": known["type"]}


def read_input(instructions: Any, given: Any) -> list[JSON]:
    """All messages. The items of one turn of the model become one message, as the model wrote them."""
    messages: list[JSON] = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not isinstance(given, list):
        raise bad_request("input: a string or a list of items is needed", "missing_required_parameter")
    turn = Turn(messages)
    for number, item in enumerate(cast("list[Any]", given)):
        turn.add(f"input[{number}]", as_object(f"input[{number}]", item))
    return messages


class Turn:
    """Joins items: reasoning, then text, then calls are one message of the model."""

    def __init__(self, messages: list[JSON]) -> None:
        self._messages = messages
        self._stage = -1
        """The last part of the open message of the model: 0 reasoning, 1 text, 2 calls; -1: none is open."""

    def add(self, field: str, item: JSON) -> None:
        """Add the next item."""
        kind = item.get("type") or "message"
        if kind == "message" and item.get("role") == "assistant":
            self._message(1)["content"] = assistant_text(field, item.get("content"))
        elif kind == "reasoning":
            self._message(0)["reasoning"] = reasoning_text(field, item)
        elif kind == "function_call":
            self._message(2).setdefault("tool_calls", []).append(read_call(item))
        elif kind == "message":
            self._close({"role": read_role(field, item), "content": read_content(field, item.get("content"))})
        elif kind == "function_call_output":
            content = read_content(field, item.get("output"))
            self._close({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        else:
            raise unserved(f"{field}.type {kind!r}", "give messages, reasoning, function calls and their outputs")

    def _close(self, message: JSON) -> None:
        self._messages.append(message)
        self._stage = -1

    def _message(self, stage: int) -> JSON:
        """The model's message that a part of this stage belongs to: only calls may come twice in one."""
        if self._stage < 0 or stage < self._stage or stage == self._stage != 2:
            self._messages.append({"role": "assistant", "content": None})
        self._stage = stage
        return self._messages[-1]


def read_role(field: str, item: JSON) -> str:
    """Chat templates know `system`, not `developer`."""
    role = item.get("role")
    if role not in ("user", "system", "developer"):
        raise bad_request(f"{field}.role: user, assistant, system or developer, given {role!r}", "invalid_value")
    return "system" if role == "developer" else str(role)


def read_call(item: JSON) -> JSON:
    """A tool call, as the model made it."""
    function = {"name": item.get("name"), "arguments": item.get("arguments") or ""}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def assistant_text(field: str, content: Any) -> str:
    """The text of an assistant message; the gateway's own answers have one part."""
    if isinstance(content, str):
        return content
    parts = [as_object(field, part) for part in as_list(f"{field}.content", content)]
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in parts)


def reasoning_text(field: str, item: JSON) -> str:
    """The reasoning of a turn; encrypted content of other providers is ignored."""
    parts = as_list(f"{field}.content", item.get("content")) or as_list(f"{field}.summary", item.get("summary"))
    return "".join(str(as_object(field, part).get("text") or "") for part in parts)


def read_content(field: str, content: Any) -> str | list[JSON]:
    """A text, or parts."""
    if isinstance(content, str):
        return content
    return joined([read_part(field, as_object(field, part)) for part in as_list(f"{field}.content", content)])


def joined(parts: list[JSON]) -> str | list[JSON]:
    """A single text part becomes plain text."""
    if len(parts) == 1 and parts[0]["type"] == "text":
        return parts[0]["text"]
    return parts or ""


def read_part(field: str, part: JSON) -> JSON:
    """One part of a message."""
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": str(part.get("text") or "")}
    if kind == "input_image" and part.get("image_url"):
        image = {"url": part["image_url"]} | ({"detail": part["detail"]} if part.get("detail") else {})
        return {"type": "image_url", "image_url": image}
    raise unserved(f"{field}: a part of type {kind!r}", "give texts, and images by URL")
