"""An agent that works sums out with a tool: the policy writes calls such as `mul(7,8)`, the agent runs them.

Half of what there is to learn is the second turn: for `(7*8)+3?` the first result is fed back, and the policy
must use it in its next call. Calls are matched, never evaluated; anything else that the policy writes scores 0.
"""

from __future__ import annotations

import operator
import re
from typing import Any

from openai import AsyncOpenAI

from relight import LLM

TOOLS = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}
CALL = re.compile(r"(add|sub|mul)\((-?[0-9]{1,4}),(-?[0-9]{1,4})\)")


def run_tool(text: str) -> int | None:
    """The result of a tool call such as `mul(7,8)`, or None where `text` is anything else."""
    call = CALL.fullmatch(text)
    return TOOLS[call[1]](int(call[2]), int(call[3])) if call else None


async def calculator(task: dict[str, Any], llm: LLM) -> float:
    """One episode: as many tool calls as the question takes; 1.0 if the last result is the answer, else 0.0."""
    result = None
    messages: list[Any] = [{"role": "user", "content": task["question"]}]
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        for _ in range(task["calls"]):
            reply = await client.chat.completions.create(model=llm.model, messages=messages, max_tokens=16)
            text = reply.choices[0].message.content or ""
            result = run_tool(text)
            if result is None:
                return 0.0
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": str(result)}]
    return float(result == task["answer"])
