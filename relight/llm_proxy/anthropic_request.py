"""Translates requests of Anthropic's Messages API to chat completions. Pure functions.

Server-side tools, documents and containers are refused. Fields without a meaning for an engine (`metadata`,
`cache_control`, `service_tier`, a thinking budget) are dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

from relight.llm_proxy.request_errors import bad_request
from relight.llm_proxy.responses_request import as_list, as_object, joined, unserved

JSON = dict[str, Any]

KEPT = ("model", "stream", "max_tokens", "temperature", "top_p", "top_k", "min_p", "chat_template_kwargs")
"""Fields with the same meaning in both; the last two are the engine's own."""
UNSERVED = ("container", "mcp_servers")
RAW_ARGUMENTS = "__raw_arguments__"
"""Key for a tool call's arguments that are not a JSON object, since `input` has to be one."""


def read_request(asked: JSON) -> JSON:
    """Translate a request to chat completions."""
    for field in UNSERVED:
        if asked.get(field):
            raise unserved(field, "Anthropic's servers are not involved; leave it out")
    body = {key: asked[key] for key in KEPT if asked.get(key) is not None}
    body["messages"] = messages = read_messages(asked)
    if asked.get("stop_sequences"):
        body["stop"] = asked["stop_sequences"]
    if tools := [read_tool(number, tool) for number, tool in enumerate(as_list("tools", asked.get("tools")))]:
        body["tools"] = tools
        body |= read_tool_choice(as_object("tool_choice", asked.get("tool_choice")))
    if messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]:
        body |= {"continue_final_message": True, "add_generation_prompt": False}  # the answer continues this turn
    output = as_object("output_config", asked.get("output_config")).get("format") or asked.get("output_format")
    if output:
        schema = as_object("output_config.format", output).get("schema")
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    if body.pop("stream", False):
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def read_messages(asked: JSON) -> list[JSON]:
    """The system prompt and all turns."""
    system = asked.get("system")
    messages: list[JSON] = [{"role": "system", "content": read_text("system", system)}] if system else []
    given = asked.get("messages")
    if not isinstance(given, list) or not given:
        raise bad_request("messages: a list with at least one message is needed", "missing_required_parameter")
    for number, message in enumerate(cast("list[Any]", given)):
        field = f"messages[{number}]"
        known = as_object(field, message)
        role = known.get("role")
        if role == "assistant":
            messages.append(read_turn(f"{field}.content", known.get("content")))
        elif role == "user":
            messages += read_user(f"{field}.content", known.get("content"))
        elif role == "system":
            messages.append({"role": "system", "content": read_text(f"{field}.content", known.get("content"))})
        else:
            raise bad_request(f"{field}.role: user or assistant, given {role!r}", "invalid_value")
    return messages


def read_text(field: str, content: Any) -> str:
    """A text, or blocks of text, joined by line breaks."""
    if isinstance(content, str):
        return content
    return "\n".join(str(as_object(field, block).get("text") or "") for block in as_list(field, content))


def read_turn(field: str, content: Any) -> JSON:
    """An assistant turn, as the model wrote it."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else as_list(field, content)
    message: JSON = {"role": "assistant", "content": None}
    for block in (as_object(field, block) for block in blocks):
        kind = block.get("type")
        if kind == "text":
            message["content"] = (message["content"] or "") + str(block.get("text") or "")
        elif kind == "thinking":
            message["reasoning"] = message.get("reasoning", "") + str(block.get("thinking") or "")
        elif kind == "tool_use":
            message.setdefault("tool_calls", []).append(read_call(block))
        elif kind != "redacted_thinking":
            raise unserved(f"{field}: a block of type {kind!r}", "give text, thinking and tool_use")
    if message["content"] is None and "tool_calls" not in message:
        message["content"] = ""
    return message


def read_call(block: JSON) -> JSON:
    """A tool call, as the model made it."""
    arguments = block.get("input")
    known = as_object("tool_use.input", arguments)
    text = known[RAW_ARGUMENTS] if is_raw(known) else json.dumps(known, ensure_ascii=False)
    return {"id": block.get("id"), "type": "function", "function": {"name": block.get("name"), "arguments": text}}


def is_raw(arguments: JSON) -> bool:
    """Whether a tool call's arguments stand as the text that the model wrote."""
    return [*arguments] == [RAW_ARGUMENTS] and isinstance(arguments[RAW_ARGUMENTS], str)


def read_user(field: str, content: Any) -> Iterator[JSON]:
    """A user turn: each tool result becomes a message, and so do the parts between them."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else as_list(field, content)
    parts: list[JSON] = []
    for block in (as_object(field, block) for block in blocks):
        if block.get("type") != "tool_result":
            parts.append(read_part(field, block))
            continue
        if parts:
            yield {"role": "user", "content": joined(parts)}
            parts = []
        yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": read_result(field, block)}
    if parts or not blocks:
        yield {"role": "user", "content": joined(parts)}


def read_result(field: str, block: JSON) -> str | list[JSON]:
    """What a tool returned."""
    content = block.get("content")
    if isinstance(content, str):
        return content
    return joined([read_part(field, as_object(field, part)) for part in as_list(field, content)])


def read_part(field: str, block: JSON) -> JSON:
    """A text or an image."""
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "text": str(block.get("text") or "")}
    source = as_object(f"{field}.source", block.get("source"))
    if kind == "image" and source.get("type") == "url":
        return {"type": "image_url", "image_url": {"url": source.get("url")}}
    if kind == "image" and source.get("type") == "base64":
        url = f"data:{source.get('media_type')};base64,{source.get('data')}"
        return {"type": "image_url", "image_url": {"url": url}}
    raise unserved(f"{field}: a block of type {kind!r}", "give text, images and tool results")


def read_tool(number: int, tool: Any) -> JSON:
    """Translate a function; server-side tools are refused."""
    known = as_object(f"tools[{number}]", tool)
    if known.get("type") not in (None, "custom"):
        raise unserved(f"tools[{number}].type {known['type']!r}", "only tools that the agent runs itself")
    function = {"name": known.get("name"), "parameters": known.get("input_schema") or {"type": "object"}}
    if known.get("description"):
        function["description"] = known["description"]
    return {"type": "function", "function": function}


def read_tool_choice(choice: JSON) -> JSON:
    """Which tool, and how many at once."""
    words = {"auto": "auto", "any": "required", "none": "none"}
    kind = str(choice.get("type", "auto"))
    if kind == "tool":
        chosen: Any = {"type": "function", "function": {"name": choice.get("name")}}
    elif kind in words:
        chosen = words[kind]
    else:
        raise bad_request(f"tool_choice.type: auto, any, none or tool, given {kind!r}", "invalid_value")
    one = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {}
    return ({"tool_choice": chosen} if choice else {}) | one
