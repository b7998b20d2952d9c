"""The agent of the chaos runs: two turns, and a reward that depends on what was sampled.

It keeps a ledger of its own: what it meant to do, and what it has been told, each line on the disk before it goes on.
"""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import orjson
from openai import AsyncOpenAI

from relight import LLM

LEDGER = "CHAOS_LEDGER"
"""Names the folder."""


class Ledger:
    """What one attempt did, as it knows itself."""

    def __init__(self, endpoint: str) -> None:
        found = re.search(r"/rollout/([^/]+)/attempt/([^/]+)", endpoint)
        assert found, endpoint
        self._ids = {"rollout": found[1], "attempt": found[2]}
        path = os.path.join(os.environ[LEDGER], f"{found[2]}.jsonl") if LEDGER in os.environ else os.devnull
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, what: str, **more: Any) -> None:
        """One line, on the disk when this returns."""
        os.write(self._file, orjson.dumps({"what": what, **self._ids, **more}) + b"\n")
        os.fsync(self._file)


async def two_turns(task: dict[str, Any], llm: LLM) -> float:
    """Ask, answer what came, ask again; the reward is a number made of both answers."""
    said: list[str] = []
    ledger = Ledger(llm.endpoint)
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=20, timeout=10) as client:
        for turn in range(2):
            content = f"{task['question']} {turn} {' '.join(said)}"
            ledger.write("ask", turn=turn)
            answer = await client.chat.completions.create(
                model=llm.model, messages=[{"role": "user", "content": content}], max_tokens=4
            )
            said.append(answer.choices[0].message.content or "")
            ledger.write("answered", turn=turn, text=said[-1])
    reward = (sum(map(ord, "".join(said))) % 101) / 100
    ledger.write("done", reward=reward)
    return reward


async def lingers(task: dict[str, Any], llm: LLM) -> float:
    """Has all its answers, and works on them for as long as the file `hold` is there."""
    reward = await two_turns(task, llm)
    while Path(os.environ[LEDGER], "hold").exists():  # noqa: ASYNC110, ASYNC240  # a test's doing
        await asyncio.sleep(0.05)
    return reward
