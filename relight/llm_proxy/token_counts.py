"""Anthropic's `count_tokens`: the number of tokens of a prompt. Nothing is sampled or recorded."""

from __future__ import annotations

import orjson

from relight.llm_proxy.dialects import Dialect
from relight.llm_proxy.engines import Engine
from relight.llm_proxy.request_errors import bad_request, unavailable
from relight.llm_proxy.requests import parse_body
from relight.llm_proxy.routing import Router
from relight.llm_proxy.targets import TargetUnavailable
from relight.types.wire import CallContext

PROMPT_FIELDS = ("messages", "tools", "chat_template_kwargs", "continue_final_message", "add_generation_prompt")


async def count_tokens(router: Router, dialect: Dialect, context: CallContext, content: bytes) -> int:
    """Let an engine count the tokens of a prompt.

    Raises:
        RequestError: the request is invalid, its model is a provider's, or no engine answers.
    """
    prepared = await router.prepare(dialect, context, dialect.read(parse_body(content)))
    try:
        target = await router.pick(context, prepared)
        if not isinstance(target, Engine):
            raise bad_request("count_tokens: not available for models of providers", "unsupported_parameter")
        body = {key: prepared.body[key] for key in PROMPT_FIELDS if key in prepared.body}
        return await target.count(orjson.dumps({**body, "model": target.model}))
    except TargetUnavailable as error:
        raise unavailable(str(error)) from error
