"""The spans of an attempt as a tree, and the model calls and rewards in it.

The order of calls and rewards is that of their sequence ids, which the store gives; clocks of several machines differ.
Times count where sequence ids are equal, and where a span's parent has to be guessed.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from relight.adapter import model_calls
from relight.adapter.hierarchy_repair import HierarchyRepair, SpanProblem
from relight.adapter.model_calls import Triplet
from relight.emitter.reading import get_reward_value
from relight.emitter.scope import new_span_id
from relight.semconv import AGL_OPERATION, AGL_REWARD, AGL_VIRTUAL, LightningSpanAttributes
from relight.types.tracer import Span

CHAT_COMPLETION = r"openai\.chat\.completion"
"""The default of `llm_call_match`. With it, calls that say by a convention what they are count too."""
VIRTUAL_ROOT = "virtual-root"


class RewardMatchPolicy(StrEnum):
    """Which model call a reward belongs to. Source: Agent Lightning 0.3."""

    FIRST_OCCURRENCE = "first_occurrence"
    """The latest call before it that has no reward yet."""
    FIRST_SIBLING = "first_sibling"
    """The same among the calls that have the reward's parent."""


@dataclass(slots=True)
class _Place:
    """Where a search has come to: what holds of a node because of the nodes above it."""

    agent: str | None
    in_reward: bool | None
    in_call: bool | None


@dataclass(slots=True)
class _Search:
    """What stays the same in a search for model calls."""

    llm_call_match: str
    agent_match: str | None
    seen: set[str]
    """Ids of the answers that were found."""
    innermost_calls: set[int] = field(default_factory=set[int])
    """Nodes (by `id()`) that are calls by a convention, whatever their names."""
    with_tokens: dict[str, int] = field(default_factory=dict[str, int])
    """Ids of answers that have several spans, with the first node (by `id()`) that has token ids."""


class TraceTree:
    """A span and the spans below it. Source: Agent Lightning 0.3's `TraceTree`."""

    def __init__(self, id: str, span: Span, children: list[TraceTree] | None = None) -> None:
        self.id = id
        self.span = span
        self.children: list[TraceTree] = children or []
        self.problems: list[SpanProblem] = []
        """Of the root: the spans that are ill-formed."""

    def __repr__(self) -> str:
        return f"TraceTree(id={self.id!r}, name={self.span.name!r}, children={len(self.children)})"

    @property
    def start_time(self) -> float | None:
        """Unix seconds."""
        return self.span.start_time

    @property
    def end_time(self) -> float | None:
        """Unix seconds."""
        return self.span.end_time

    # Making

    @classmethod
    def from_spans(cls, spans: Sequence[Span]) -> TraceTree:
        """The tree of these spans. Several roots get a common one; a parent that is missing is made up.

        Of spans with one id the first counts. Parents that form a cycle are cut at the span with the lowest sequence
        id. Both are in `problems`.

        Raises:
            ValueError: there is no span.
        """
        if not spans:
            raise ValueError("a tree needs at least one span")
        nodes: dict[str, TraceTree] = {}
        problems: list[SpanProblem] = []
        for span in sorted(spans, key=lambda span: span.sequence_id):
            if span.span_id in nodes:
                problems.append(SpanProblem(span.span_id, "left out: an earlier span has its id"))
            else:
                nodes[span.span_id] = cls(span.span_id, span)
        roots = cls._link(nodes) or []
        roots += _cut_cycles(roots, nodes, problems)
        roots.sort(key=lambda root: root.span.sequence_id)
        tree = roots[0] if len(roots) == 1 else cls._virtual(VIRTUAL_ROOT, VIRTUAL_ROOT, roots)
        tree.problems = problems
        return tree

    @classmethod
    def _link(cls, nodes: dict[str, TraceTree]) -> list[TraceTree]:
        """Put nodes below their parents; the roots, those made up for missing parents included."""
        roots: list[TraceTree] = []
        orphans: dict[str, list[TraceTree]] = defaultdict(list)
        for node in nodes.values():
            parent = node.span.parent_id
            if not parent:
                roots.append(node)
            elif parent in nodes:
                nodes[parent].children.append(node)
            else:
                orphans[parent].append(node)
        return roots + [cls._virtual(parent, AGL_VIRTUAL, children) for parent, children in orphans.items()]

    @classmethod
    def _virtual(cls, id: str, name: str, children: list[TraceTree]) -> TraceTree:
        """A node that no span stands for."""
        first = children[0].span
        starts = [child.start_time for child in children if child.start_time is not None]
        ends = [child.end_time for child in children if child.end_time is not None]
        span = Span(
            rollout_id=first.rollout_id,
            attempt_id=first.attempt_id,
            sequence_id=first.sequence_id,
            trace_id=first.trace_id,
            span_id=new_span_id() if id == VIRTUAL_ROOT else id,
            name=name,
            start_time=min(starts, default=None),
            end_time=max(ends, default=None),
        )
        return cls(id, span, children)

    # Reading

    def traverse(self) -> list[TraceTree]:
        """This node and all below it, depth first."""
        found: list[TraceTree] = []
        ahead: list[TraceTree] = [self]
        while ahead:
            node = ahead.pop()
            found.append(node)
            ahead.extend(reversed(node.children))
        return found

    def find_id(self, id: str) -> TraceTree | None:
        """The node with this id; None if there is none."""
        return next((node for node in self.traverse() if node.id == id), None)

    def add_child(self, child: TraceTree) -> None:
        """Put a node below this one, as the last."""
        self.children.append(child)

    def agent_name(self) -> str | None:
        """The agent that this span stands for; None if it stands for none."""
        return model_calls.agent_name(self.span)

    def names_tuple(self) -> tuple[str, list[Any]]:
        """The span's name, with its agent's in brackets, and the same of its children."""
        made: dict[int, tuple[str, list[Any]]] = {}
        for node in reversed(self.traverse()):
            agent = node.agent_name()
            name = f"{node.span.name} [{agent}]" if agent is not None else node.span.name
            made[id(node)] = (name, [made.pop(id(child)) for child in node.children])
        return made[id(self)]

    def to_json(self) -> dict[str, Any]:
        """The tree as JSON values: `id`, `span` and `children` of each node."""
        made: dict[int, dict[str, Any]] = {}
        for node in reversed(self.traverse()):
            children = [made.pop(id(child)) for child in node.children]
            made[id(node)] = {"id": node.id, "span": node.span.model_dump(mode="json"), "children": children}
        return made[id(self)]

    def maybe_reward_dict(self) -> dict[str, Any]:
        """`{"type": "reward", "value": ...}` if the span has a reward, else nothing."""
        value = get_reward_value(self.span)
        return {} if value is None else {"type": "reward", "value": value}

    def is_reward_span(self) -> bool:
        """Whether the span has a reward, or is the call of a reward function."""
        return get_reward_value(self.span) is not None or (
            self.span.name == AGL_OPERATION
            and self.span.attributes.get(LightningSpanAttributes.OPERATION_NAME) == AGL_REWARD
        )

    # Model calls

    def find_llm_calls(
        self,
        *,
        llm_call_match: str,
        agent_match: str | None,
        within_matching_subtree: str | None = None,
        within_reward: bool | None = None,
        within_llm_call: bool | None = None,
        existing_llm_call_response_ids: set[str] | None = None,
    ) -> list[tuple[TraceTree, str]]:
        """The nodes that are model calls, each with the name of its agent (`*`: the one that the caller gave).

        Args:
            llm_call_match: a regular expression that the names of calls match.
            agent_match: one for the names of agents; calls below other agents don't count.
            within_matching_subtree: the agent that this node is below; None: below none, so its calls don't count.
            within_reward: False: calls below spans with a reward don't count; None: they do.
            within_llm_call: False: calls below a call count only if they have an answer's id; None: they do.
            existing_llm_call_response_ids: answers that are known; calls with their ids don't count.
        """
        known = existing_llm_call_response_ids
        search = _Search(llm_call_match, agent_match, set() if known is None else known)
        if llm_call_match == CHAT_COMPLETION:
            search.innermost_calls = self._innermost_calls()
        start = _Place(within_matching_subtree, within_reward, within_llm_call)
        search.with_tokens = self._answers_with_tokens(search, start)
        found: list[tuple[TraceTree, str]] = []
        ahead: list[tuple[TraceTree, _Place]] = [(self, start)]
        while ahead:
            node, place = ahead.pop()
            is_call = node._is_call(search, place)
            if is_call:
                found.append((node, cast("str", place.agent)))
            below = node._below(search, place, is_call)
            ahead.extend((child, below) for child in reversed(node.children))
        return found

    def _innermost_calls(self) -> set[int]:
        """Nodes that are calls by a convention and have no call below them: those around a call wrap it."""
        innermost: set[int] = set()
        with_calls: set[int] = set()
        for node in reversed(self.traverse()):
            is_around = any(id(child) in with_calls for child in node.children)
            by_convention = model_calls.is_model_call(node.span)
            if by_convention and not is_around:
                innermost.add(id(node))
            if is_around or by_convention or re.search(CHAT_COMPLETION, node.span.name) is not None:
                with_calls.add(id(node))
        return innermost

    def _answers_with_tokens(self, search: _Search, start: _Place) -> dict[str, int]:
        """Of several spans of one answer that may count, the one with tokens: its node by the answer's id."""
        by_answer: dict[str, list[TraceTree]] = defaultdict(list)
        ahead: list[tuple[TraceTree, _Place]] = [(self, start)]
        while ahead:
            node, place = ahead.pop()
            answer = model_calls.response_id(node.span)
            if answer is not None and node._may_be_call(search, place):
                by_answer[answer].append(node)
            below = node._below(search, place, False)
            ahead.extend((child, below) for child in reversed(node.children))
        several = {answer: nodes for answer, nodes in by_answer.items() if len(nodes) > 1}
        found = {
            answer: [node for node in nodes if all(model_calls.token_ids(node.span))]
            for answer, nodes in several.items()
        }
        return {answer: id(nodes[0]) for answer, nodes in found.items() if nodes}

    def _is_named(self, search: _Search) -> bool:
        """Whether name or convention says that it is a call, and not the wrapper of one."""
        return re.search(search.llm_call_match, self.span.name) is not None or id(self) in search.innermost_calls

    def _may_be_call(self, search: _Search, place: _Place) -> bool:
        """Whether place and name say that it is a call, whatever other spans say."""
        return place.agent is not None and place.in_reward is not True and self._is_named(search)

    def _is_call(self, search: _Search, place: _Place) -> bool:
        if not self._may_be_call(search, place):
            return False
        answer = model_calls.response_id(self.span)
        if answer in search.seen or (answer is None and place.in_call is True):
            return False
        if answer is not None and search.with_tokens.get(answer, id(self)) != id(self):
            return False
        if answer is not None:
            search.seen.add(answer)
        return True

    def _below(self, search: _Search, place: _Place, is_call: bool) -> _Place:
        """What holds of the children."""
        agent, name = place.agent, self.agent_name()
        if name is not None:
            agent = name if search.agent_match is None or re.search(search.agent_match, name) else None
        in_reward = True if place.in_reward is not None and self.is_reward_span() else place.in_reward
        return _Place(agent, in_reward, True if is_call and place.in_call is not None else place.in_call)

    def match_rewards(self, reward_match: str, llm_calls: Iterable[TraceTree]) -> dict[str, float | None]:
        """The reward of each call that has one, by the node's id."""
        calls = {call.id for call in llm_calls}
        if reward_match == RewardMatchPolicy.FIRST_SIBLING:
            families: Iterable[list[TraceTree]] = (node.children for node in self.traverse())
        else:
            families = [self.traverse()]
        return {call: reward for nodes in families for call, reward in _matched(nodes, calls)}

    def span_to_triplet(self, span: Span, agent_name: str) -> Triplet:
        """The model call of a span. Subclasses may add to it."""
        return model_calls.triplet_of(span, agent_name)

    def extract_prompt_image_urls(self, prompt_raw_content: Any) -> list[str]:
        """URLs of the images in messages, in their order."""
        return model_calls.image_urls(prompt_raw_content)

    def to_trajectory(
        self,
        llm_call_match: str = CHAT_COMPLETION,
        agent_match: str | None = None,
        exclude_llm_call_in_reward: bool = True,
        dedup_llm_call: bool = True,
        reward_match: RewardMatchPolicy = RewardMatchPolicy.FIRST_OCCURRENCE,
        final_reward: float | None = None,
        _skip_empty_token_spans: bool = False,
    ) -> list[Triplet]:
        """The model calls in their order, with their rewards.

        Args:
            llm_call_match, agent_match: see `find_llm_calls`.
            exclude_llm_call_in_reward: calls below a span with a reward don't count.
            dedup_llm_call: calls below a call count only if they have an answer's id.
            reward_match: which call a reward belongs to.
            final_reward: the reward of the last call, whatever its spans say.
            _skip_empty_token_spans: calls without token ids don't count.
        """
        calls = self.find_llm_calls(
            llm_call_match=llm_call_match,
            agent_match=agent_match,
            within_matching_subtree="*" if agent_match is None else None,
            within_reward=False if exclude_llm_call_in_reward else None,
            within_llm_call=False if dedup_llm_call else None,
        )
        if _skip_empty_token_spans:
            calls = [(node, agent) for node, agent in calls if self._has_tokens(node)]
        calls.sort(key=lambda call: call[0].span.sequence_id)
        rewards = self.match_rewards(reward_match, [node for node, _ in calls])
        if final_reward is not None and calls:
            rewards[calls[-1][0].id] = final_reward
        return [
            self.span_to_triplet(node.span, agent).model_copy(update={"reward": rewards.get(node.id)})
            for node, agent in calls
        ]

    def _has_tokens(self, node: TraceTree) -> bool:
        if all(model_calls.token_ids(node.span)):
            return True
        self.problems.append(SpanProblem(node.id, "left out: the model call has no token ids"))
        return False

    # Repair

    def repair_hierarchy(self) -> None:
        """Put spans that stand directly below the root under the span that they ran in, by their times.

        Libraries that trace side by side lose parents. The shortest span around a span becomes its parent. A span
        that ran within two agents at once stays where it is, and is among `problems`.
        """
        top = self
        while len(top.children) == 1:
            top = top.children[0]
        repair = HierarchyRepair(top)
        left = list(top.children)
        for node in top.children:
            parent = repair.parent_of(node) if len(left) > 1 else None
            if isinstance(parent, SpanProblem):
                self.problems.append(parent)
            elif parent is not None:
                left.remove(node)
                parent.children.append(node)
                repair.parents[id(node)] = parent
        top.children = left

    # Drawing

    def to_dot(self, interested_span_match: str | None = None) -> str:
        """The tree in Graphviz's language; with a regular expression only spans that match, and those above them."""
        nodes = self.traverse()
        shown: set[int] = set()
        for node in reversed(nodes):
            matches = interested_span_match is None or re.search(interested_span_match, node.span.name)
            if matches or any(id(child) in shown for child in node.children):
                shown.add(id(node))
        lines = ["digraph trace {"]
        for node in nodes:
            if id(node) in shown:
                agent = node.agent_name()
                label = f"{node.id[-8:]} ({node.span.name}){f' [{agent}]' if agent is not None else ''}"
                lines.append(f"  {_quoted(node.id)} [label={_quoted(label)}];")
                drawn = (child for child in node.children if id(child) in shown)
                lines.extend(f"  {_quoted(node.id)} -> {_quoted(child.id)};" for child in drawn)
        return "\n".join([*lines, "}", ""])

    def visualize(self, filename: str, interested_span_match: str | None = None) -> None:
        """Draw the tree into `<filename>.png`.

        Raises:
            RuntimeError: Graphviz's program `dot` is missing or failed; the drawing's source is in `<filename>.dot`.
        """
        source = self.to_dot(interested_span_match)
        try:
            subprocess.run(
                ["dot", "-Tpng", "-o", f"{filename}.png"], input=source.encode(), check=True, capture_output=True
            )
        except (OSError, subprocess.CalledProcessError) as error:
            Path(f"{filename}.dot").write_text(source)
            raise RuntimeError(
                f"Graphviz's program `dot` could not draw the tree ({error}); install Graphviz, then"
                f" `dot -Tpng -o {filename}.png {filename}.dot`"
            ) from error


def _cut_cycles(roots: list[TraceTree], nodes: dict[str, TraceTree], problems: list[SpanProblem]) -> list[TraceTree]:
    """Further roots: of each cycle the node with the lowest sequence id."""
    reached = {id(node) for root in roots for node in root.traverse()}
    cut: list[TraceTree] = []
    for node in nodes.values():
        if id(node) not in reached:
            # Below a node of a cycle are the cycle and what hangs on it; first come is lowest sequence id.
            node = _on_cycle(node, nodes)
            nodes[cast("str", node.span.parent_id)].children.remove(node)
            problems.append(SpanProblem(node.id, "made a root: its parents form a cycle"))
            cut.append(node)
            reached.update(id(below) for below in node.traverse())
    return cut


def _on_cycle(node: TraceTree, nodes: dict[str, TraceTree]) -> TraceTree:
    """The node with the lowest sequence id of the cycle that this node is on or hangs on."""
    passed: dict[str, int] = {}
    while node.id not in passed:
        passed[node.id] = len(passed)
        node = nodes[cast("str", node.span.parent_id)]
    cycle = [name for name, position in passed.items() if position >= passed[node.id]]
    return min((nodes[name] for name in cycle), key=lambda member: member.span.sequence_id)


def _matched(nodes: Iterable[TraceTree], calls: set[str]) -> Iterator[tuple[str, float]]:
    """Each reward with the latest call before it that has none."""
    events: list[tuple[int, float, int, str, float | None]] = []
    for position, node in enumerate(nodes):
        if node.id in calls:
            events.append((node.span.sequence_id, node.end_time or 0.0, position, node.id, None))
        elif (reward := get_reward_value(node.span)) is not None:
            events.append((node.span.sequence_id, node.start_time or 0.0, position, node.id, reward))
    events.sort(key=lambda event: (event[0], event[1], event[4] is not None, event[2]))
    return model_calls.latest_calls((node_id, reward) for *_, node_id, reward in events)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return f'"{escaped}"'
