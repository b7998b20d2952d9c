"""What the runner's tests share."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

from relight.runner.agent_call import AgentCall
from relight.semconv import LightningSpanAttributes
from relight.types.wire import SpanRecord
from tests.unit.runner import misbehaving_agents

FILE = Path(misbehaving_agents.__file__)
MISBEHAVING = [
    f"{FILE}:{name}"
    for name, value in vars(misbehaving_agents).items()
    if inspect.isfunction(value) and value.__module__ == misbehaving_agents.__name__ and not name.startswith("_")
]
MAX_SPANS = 300
"""Of an attempt, where a test's runner is not given another limit."""


def call(agent: str, call_id: str = "at-1", **options: Any) -> AgentCall:
    """A call of a misbehaving agent; what is no option of `AgentCall` goes into its task."""
    fields = {name: options.pop(name) for name in list(options) if name in AgentCall.__dataclass_fields__}
    return AgentCall(call_id=call_id, agent=agent, **{"task": options, **fields})


class Seen:
    """Spans as they come."""

    def __init__(self) -> None:
        self.spans: list[SpanRecord] = []
        self.ready = asyncio.Event()

    def __call__(self, span: SpanRecord) -> None:
        self.spans.append(span)
        if span.attributes.get(LightningSpanAttributes.MESSAGE_BODY) == "ready":
            self.ready.set()
