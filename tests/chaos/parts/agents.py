"""The agent of the chaos runs: two turns, and a reward that depends on what was sampled."""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI

from relight import LLM


async def two_turns(task: dict[str, Any], llm: LLM) -> float:
    """Ask, answer what came, ask again; the reward is a number made of both answers."""
    said: list[str] = []
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=10) as client:
        for turn in range(2):
            content = f"{task['question']} {turn} {' '.join(said)}"
            answer = await client.chat.completions.create(
                model=llm.model, messages=[{"role": "user", "content": content}], max_tokens=4
            )
            said.append(answer.choices[0].message.content or "")
    return (sum(map(ord, "".join(said))) % 101) / 100
