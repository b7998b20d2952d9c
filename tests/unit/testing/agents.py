"""Agents as users write them, which a scripted upstream serves. They import little, since a process imports them."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import Any

from relight import LLM, LitAgent, PromptTemplate, emit_message, rollout


def ask(llm: LLM, messages: list[Any], **more: Any) -> dict[str, Any]:
    """The model's message."""
    request = urllib.request.Request(
        f"{llm.endpoint}/chat/completions",
        json.dumps({"model": llm.model, "messages": messages, **more}).encode(),
        {"Authorization": f"Bearer {llm.api_key}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["choices"][0]["message"]
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{error.code} {error.read().decode()}") from error


@rollout
def multiplies(task: Any, llm: LLM) -> float:
    """Asks for a tool call, makes it, and says what came out."""
    messages: list[Any] = [{"role": "user", "content": task["question"]}]
    first = ask(llm, messages)
    [call] = first["tool_calls"]
    said = ask(llm, [*messages, first, {"role": "tool", "tool_call_id": call["id"], "content": "56"}])["content"]
    emit_message(f"{call['function']['arguments']} {said} {os.getpid()}")
    return float(said == task["answer"])


class Writer(LitAgent[Any]):
    """Uses a prompt in training, and none elsewhere."""

    def training_rollout(self, task: Any, resources: Any, rollout: Any) -> dict[str, float]:
        prompt: PromptTemplate = resources["prompt"]
        said = ask(resources["main_llm"], [{"role": "user", "content": prompt.format(task=task)}])
        return {"primary": 1.0, "words": float(len(said["content"].split()))}

    def validation_rollout(self, task: Any, resources: Any, rollout: Any) -> float:
        return 0.25


writer = Writer()


def plain(task: Any) -> float:
    """Not decorated."""
    return task["reward"]


unnamed = [rollout(lambda task: 1.0)]
