"""An agent for a policy with random weights: the reward is the share of digits in what it wrote."""

from __future__ import annotations

import asyncio
from typing import Any

from openai import AsyncOpenAI

from relight import LLM


async def digits(task: dict[str, Any], llm: LLM) -> float:
    """One call, and a moment of other work, so that there is a middle to be killed in."""
    client = AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key)
    answer = await client.chat.completions.create(
        model=llm.model, messages=[{"role": "user", "content": task["question"]}], max_tokens=8
    )
    await asyncio.sleep(0.3)
    text = answer.choices[0].message.content or ""
    return sum(character.isdigit() for character in text) / 8
