"""An agent that asks once, waits at its gate, and has a reward that depends on its rollout's number alone."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

from openai import AsyncOpenAI

from relight import LLM, Rollout
from tests.integration.operations.parts import gates


async def held(task: dict[str, Any], llm: LLM, rollout: Rollout) -> float:
    """One turn."""
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=10) as client:
        messages: Any = [{"role": "user", "content": task["question"]}]
        await client.chat.completions.create(model=llm.model, messages=messages, max_tokens=4)
    # Process ids are those of a fork server's namespace: two attempts of two runners can have the same.
    await asyncio.to_thread(gates.pass_, Path(os.environ[gates.VARIABLE]), "agent", uuid4().hex)
    return float(int(rollout.rollout_id[-1]) % 2 == 0)
