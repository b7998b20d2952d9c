"""Agents that do almost nothing, so that the benchmarks measure Relight."""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI

from relight import LLM


async def noop(task: dict[str, Any]) -> float:
    """No model call."""
    return float(task["number"] % 2)


async def one_call(task: dict[str, Any], llm: LLM) -> float:
    """One model call of 4 tokens."""
    messages: list[Any] = [{"role": "user", "content": str(task["number"])}]
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        answer = await client.chat.completions.create(model=llm.model, messages=messages, max_tokens=4)
    text = answer.choices[0].message.content or ""
    return sum(character.isdigit() for character in text) / 4
