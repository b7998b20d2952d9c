"""An agent that asks its model twice by bare HTTP. Loaded by path into the fork server."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from relight.emitter import emit_annotation
from relight.types.resources import LLM


def asks_twice(task: Any, llm: LLM) -> float:
    """The task is the gateway's address, where it is not that of `llm`. A span names the second answer."""
    _ask(llm, task, "first")
    emit_annotation({"gen_ai.response.id": _ask(llm, task, "second")["id"]})
    return 0.75


def _ask(llm: LLM, origin: str | None, text: str) -> Any:
    host = urlsplit(origin or llm.endpoint)
    connection = http.client.HTTPConnection(host.hostname or "", host.port, timeout=30)
    body = {"model": llm.model, "messages": [{"role": "user", "content": text}]}
    headers = {"Authorization": f"Bearer {llm.api_key}", "Content-Type": "application/json"}
    connection.request("POST", f"{urlsplit(llm.endpoint).path}/chat/completions", json.dumps(body), headers)
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer
