"""The calculator example's agent, which keeps a ledger of its own as the others of the chaos runs do."""

from __future__ import annotations

from typing import Any

from examples.calculator.agent import calculator as example
from relight import LLM
from tests.chaos.parts.agents import Ledger


async def calculator(task: dict[str, Any], llm: LLM) -> float:
    """One episode."""
    ledger = Ledger(llm.endpoint)
    ledger.write("ask")
    reward = await example(task, llm)
    ledger.write("done", reward=reward)
    return reward
