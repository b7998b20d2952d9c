"""How long the triplets of a large trace take, and as a ratio to validating the same spans.

    python -m benchmarks.trace_triplets [--spans 5000] [--rounds 5] [--json]

Agents, six model calls each and a reward; all are direct children of the root, so that each parent is found by times.
Validating is pydantic's `Span.model_validate` of the same spans, which every reader of the store does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from relight.adapter import LlmProxyTraceToTriplet, TracerTraceToTriplet
from relight.types.tracer import Span

REWARD = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 1.0}


def trace(size: int) -> list[Span]:
    """A trace of so many spans."""
    spans = [_span(1, "run", None, float(size), {})]
    while len(spans) < size:
        number = len(spans) + 1
        match number % 8:
            case 2:
                spans.append(_span(number, "agent", "1", 7.0, {"agent.name": f"agent-{number}"}))
            case 1:
                spans.append(_span(number, "agentlightning.annotation", "1", 0.0, REWARD))
            case _:
                spans.append(_span(number, "openai.chat.completion", "1", 0.5, _call(number)))
    return spans


def _call(number: int) -> dict[str, Any]:
    prompt = {f"gen_ai.prompt.{i}.{key}": "text" for i in range(4) for key in ("role", "content")}
    ids = {"prompt_token_ids": list(range(200)), "response_token_ids": list(range(50))}
    return {**prompt, **ids, "gen_ai.response.id": f"chat-{number}"}


def _span(number: int, name: str, parent: str | None, seconds: float, attributes: dict[str, Any]) -> Span:
    return Span(
        rollout_id="r",
        attempt_id="a",
        sequence_id=number,
        trace_id="t",
        span_id=str(number),
        parent_id=parent,
        name=name,
        start_time=float(number),
        end_time=number + seconds,
        attributes=attributes,
    )


def measure(size: int, rounds: int) -> dict[str, float]:
    """Medians in seconds of CPU time."""
    spans = trace(size)
    dumped = [span.model_dump() for span in spans]
    works: dict[str, Callable[[], object]] = {
        "TracerTraceToTriplet": lambda: TracerTraceToTriplet().adapt(spans),
        "LlmProxyTraceToTriplet": lambda: LlmProxyTraceToTriplet().adapt(spans),
        "validation": lambda: [Span.model_validate(item) for item in dumped],
    }
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            began = time.process_time()
            work()
            found[name].append(time.process_time() - began)
    return {name: statistics.median(times) for name, times in found.items()}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments.spans, arguments.rounds)
    if arguments.json:
        print(json.dumps(found))
        return
    print(f"triplets of a trace of {arguments.spans} spans (median of {arguments.rounds} rounds, CPU time)")
    for name, seconds in found.items():
        print(f"  {name:24} {seconds:6.3f} s   ratio to validation {seconds / found['validation']:5.2f}")
    print("  wanted: under 1 s")


if __name__ == "__main__":
    main()
