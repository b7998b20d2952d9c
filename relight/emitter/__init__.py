"""Spans that agents emit: rewards, messages, objects, exceptions, operations.

Inside an attempt each call sends its span to the runner at once, so spans are kept if the agent is killed. Outside an
attempt (a notebook, a unit test) the same calls only return the span. Names of spans and attributes are Agent Lightning
0.3's. OpenTelemetry is not needed.
"""

from __future__ import annotations

from relight.emitter.attributes import (
    extract_links_from_attributes,
    extract_tags_from_attributes,
    make_link_attributes,
    make_tag_attributes,
)
from relight.emitter.emit import (
    emit_annotation,
    emit_exception,
    emit_message,
    emit_object,
    emit_reward,
)
from relight.emitter.operation import Operation, operation
from relight.emitter.reading import (
    find_final_reward,
    find_reward_spans,
    get_message_value,
    get_object_value,
    get_reward_value,
    get_reward_values,
    get_rewards_from_span,
    is_reward_span,
    query_linked_spans,
)
from relight.emitter.scope import EmittedSpan

__all__ = [
    "EmittedSpan",
    "Operation",
    "emit_annotation",
    "emit_exception",
    "emit_message",
    "emit_object",
    "emit_reward",
    "extract_links_from_attributes",
    "extract_tags_from_attributes",
    "find_final_reward",
    "find_reward_spans",
    "get_message_value",
    "get_object_value",
    "get_reward_value",
    "get_reward_values",
    "get_rewards_from_span",
    "is_reward_span",
    "make_link_attributes",
    "make_tag_attributes",
    "operation",
    "query_linked_spans",
]
