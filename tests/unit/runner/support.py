"""What the runner's tests share."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

from relight.emitter.names import MESSAGE_BODY
from relight.runner.agent_call import AgentCall
from relight.types.wire import SpanRecord
from tests.unit.runner import nasty_agents

FILE = Path(nasty_agents.__file__)
NASTY = [
    f"{FILE}:{name}"
    for name, value in vars(nasty_agents).items()
    if inspect.isfunction(value) and value.__module__ == nasty_agents.__name__ and not name.startswith("_")
]


def call(agent: str, call_id: str = "at-1", **options: Any) -> AgentCall:
    """A call of a nasty agent; what is no option of `AgentCall` goes into its task."""
    fields = {name: options.pop(name) for name in list(options) if name in AgentCall.__dataclass_fields__}
    return AgentCall(call_id=call_id, agent=agent, **{"task": options, **fields})


class Seen:
    """Spans as they come."""

    def __init__(self) -> None:
        self.spans: list[SpanRecord] = []
        self.ready = asyncio.Event()

    def __call__(self, span: SpanRecord) -> None:
        self.spans.append(span)
        if span.attributes.get(MESSAGE_BODY) == "ready":
            self.ready.set()
