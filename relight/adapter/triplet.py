"""Model calls with their rewards, from the spans of an attempt. Source of the names: Agent Lightning 0.3."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from relight.adapter.base import TraceAdapter, as_spans
from relight.adapter.model_calls import Triplet, latest_calls, response_id, token_ids, triplet_of
from relight.adapter.trace_tree import CHAT_COMPLETION, RewardMatchPolicy, SpanProblem, TraceTree
from relight.emitter.reading import get_reward_value
from relight.types.tracer import Span

__all__ = [
    "LlmProxyTraceToTriplet",
    "RewardMatchPolicy",
    "SpanProblem",
    "TraceToTripletBase",
    "TraceTree",
    "TracerTraceToTriplet",
    "Triplet",
]

log = logging.getLogger(__name__)


class TraceToTripletBase(TraceAdapter[list[Triplet]]):
    """Base of the adapters that make triplets."""


class TracerTraceToTriplet(TraceToTripletBase):
    """The model calls that a tracer recorded, those of the gateway included.

    Args:
        repair_hierarchy: find parents for spans that lost theirs, by `TraceTree.repair_hierarchy`.
        llm_call_match: a regular expression that the names of calls match. With the default, spans that say by
            OpenTelemetry's, OpenLLMetry's or OpenInference's convention that they are calls count too.
        agent_match: one for the names of agents; other agents' calls are left out.
        exclude_llm_call_in_reward: leave out calls below spans with a reward, such as a judge's.
        reward_match: which call a reward belongs to.
        _skip_empty_token_spans: leave out calls without token ids.
    """

    def __init__(
        self,
        repair_hierarchy: bool = True,
        llm_call_match: str = CHAT_COMPLETION,
        agent_match: str | None = None,
        exclude_llm_call_in_reward: bool = True,
        reward_match: RewardMatchPolicy = RewardMatchPolicy.FIRST_OCCURRENCE,
        _skip_empty_token_spans: bool = False,
    ) -> None:
        self.repair_hierarchy = repair_hierarchy
        self.llm_call_match = llm_call_match
        self.agent_match = agent_match
        self.exclude_llm_call_in_reward = exclude_llm_call_in_reward
        self.reward_match = RewardMatchPolicy(reward_match)
        self._skip_empty_token_spans = _skip_empty_token_spans

    def adapt(self, source: Sequence[Any], /) -> list[Triplet]:
        """The calls of these spans, the store's or OpenTelemetry's, in their order; problems are logged."""
        triplets, problems = self.adapt_and_report(source)
        for reason, count in Counter(problem.reason for problem in problems).items():
            log.warning("%d of %d spans: %s", count, len(source), reason, extra={"action": "ill_formed_trace"})
        return triplets

    def adapt_and_report(self, source: Sequence[Any], /) -> tuple[list[Triplet], list[SpanProblem]]:
        """The calls, and what was wrong with spans. No tree is so ill-formed that this raises an error."""
        if not source:
            return [], []
        tree = self._tree(source)
        triplets = tree.to_trajectory(
            llm_call_match=self.llm_call_match,
            agent_match=self.agent_match,
            exclude_llm_call_in_reward=self.exclude_llm_call_in_reward,
            reward_match=self.reward_match,
            _skip_empty_token_spans=self._skip_empty_token_spans,
        )
        return triplets, tree.problems

    def visualize(
        self, source: Sequence[Any], /, filename: str = "trace_tree", interested_span_match: str | None = None
    ) -> TraceTree:
        """Draw the tree of these spans into `<filename>.png`, and return it. See `TraceTree.visualize`.

        Raises:
            ValueError: there is no span.
            RuntimeError: Graphviz is missing.
        """
        tree = self._tree(source)
        tree.visualize(filename, interested_span_match)
        return tree

    def _tree(self, source: Sequence[Any]) -> TraceTree:
        tree = TraceTree.from_spans(as_spans(source))
        if self.repair_hierarchy:
            tree.repair_hierarchy()
        return tree


class LlmProxyTraceToTriplet(TraceToTripletBase):
    """The model calls with token ids, by their sequence ids alone: no parents, no clocks.

    A reward goes to the latest call with a lower sequence id that has none yet.
    """

    def adapt(self, source: Sequence[Any], /) -> list[Triplet]:
        """The calls in their order, each answer's id once."""
        events = list(_calls_and_rewards(as_spans(source)))
        for triplet, reward in latest_calls(events):
            triplet.reward = reward
        return [triplet for triplet, _ in events if triplet is not None]


def _calls_and_rewards(spans: Sequence[Span]) -> Iterator[tuple[Triplet | None, float | None]]:
    """In their order. A reward with the sequence id of a call is not a reward of that call."""
    answers: set[str | None] = set()
    valued = [(span, get_reward_value(span)) for span in spans]
    for span, reward in sorted(valued, key=lambda item: (item[0].sequence_id, item[1] is None)):
        if reward is not None:
            yield None, reward
        elif all(token_ids(span)) and (answer := response_id(span)) not in answers:
            answers |= {answer} - {None}
            yield triplet_of(span, None), None
