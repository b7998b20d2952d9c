"""Reads what the emitters wrote from spans, which may be dictionaries or objects with the same fields."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import orjson

from relight import semconv
from relight.emitter.attributes import unflatten
from relight.emitter.foreign_spans import field_of, id_of
from relight.semconv import LightningSpanAttributes as Attribute
from relight.semconv import LinkPydanticModel, RewardPydanticModel

S = TypeVar("S")
_LITERALS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "bool": "True".__eq__}


def _attributes(span: object) -> Mapping[str, Any]:
    return field_of(span, "attributes") or {}


def get_reward_values(span: object) -> dict[str, float]:
    """Rewards of a span by name, the primary one first; empty if it has none or one is not a finite number.

    Understood are also the forms of Agent Lightning before 0.3.
    """
    attributes = _attributes(span)
    if not _may_hold_reward(field_of(span, "name"), attributes):
        return _earlier_reward(attributes.get(key) for key in semconv.AGENTOPS_REWARDS)
    values: dict[str, float] = {}
    index = 0
    while (value := attributes.get(f"{Attribute.REWARD}.{index}.value")) is not None:
        if not isinstance(value, int | float) or not math.isfinite(value):
            return {}
        values[str(attributes.get(f"{Attribute.REWARD}.{index}.name", index))] = float(value)
        index += 1
    return values or _as_reward(attributes.get(semconv.REWARD_OF_0_2))


def get_rewards_from_span(span: object) -> list[RewardPydanticModel]:
    """Rewards in the attributes of a span of any name, the primary one first. Source: Agent Lightning 0.3.

    Raises:
        pydantic.ValidationError: one has no name, or is not a number.
    """
    return [RewardPydanticModel.model_validate(item) for item in unflatten(_attributes(span), Attribute.REWARD) or ()]


def _earlier_reward(outputs: Iterable[Any]) -> dict[str, float]:
    """The reward in what AgentOps says that a task or entity returned."""
    for output in outputs:
        found: Any = None
        if isinstance(output, str) and '"reward"' in output:
            with suppress(orjson.JSONDecodeError):
                found = orjson.loads(output)
        if isinstance(found, dict) and field_of(found, "type") == "reward":
            return _as_reward(field_of(found, "value"))
    return {}


def _as_reward(value: Any) -> dict[str, float]:
    if isinstance(value, int | float) and math.isfinite(value):
        return {semconv.PRIMARY_REWARD: float(value)}
    return {}


def _may_hold_reward(name: object, attributes: Mapping[str, Any]) -> bool:
    if name == semconv.AGL_OPERATION:
        return attributes.get(Attribute.OPERATION_NAME) == semconv.AGL_REWARD
    return name in (semconv.AGL_ANNOTATION, semconv.AGL_REWARD)


def get_reward_value(span: object) -> float | None:
    """The primary reward of a span; None if it has none."""
    return next(iter(get_reward_values(span).values()), None)


def is_reward_span(span: object) -> bool:
    """Whether a span has a reward."""
    return get_reward_value(span) is not None


def find_reward_spans(spans: Sequence[S]) -> list[S]:
    """The spans that have a reward, in order."""
    return [span for span in spans if is_reward_span(span)]


def find_final_reward(spans: Sequence[object]) -> float | None:
    """The primary reward of the last span that has one; None if none has."""
    return next((value for span in reversed(spans) if (value := get_reward_value(span)) is not None), None)


def query_linked_spans(spans: Sequence[S], links: Sequence[LinkPydanticModel]) -> list[S]:
    """The spans that all of these links lead to, in order. Source: Agent Lightning 0.3's `query_linked_spans`."""
    return [span for span in spans if all(_leads_to(span, link) for link in links)]


def _leads_to(span: object, link: LinkPydanticModel) -> bool:
    if link.key_match in ("trace_id", "span_id"):
        return id_of(span, link.key_match) == link.value_match
    return _attributes(span).get(link.key_match) == link.value_match


def get_message_value(span: object) -> str | None:
    """The text of a message span; None for other spans."""
    return _attributes(span).get(Attribute.MESSAGE_BODY) if field_of(span, "name") == semconv.AGL_MESSAGE else None


def get_object_value(span: object) -> Any:
    """The value of an object span; None for other spans."""
    if field_of(span, "name") != semconv.AGL_OBJECT:
        return None
    attributes = _attributes(span)
    if Attribute.OBJECT_JSON in attributes:
        return orjson.loads(attributes[Attribute.OBJECT_JSON])
    literal = attributes.get(Attribute.OBJECT_LITERAL)
    if literal is None:
        return None
    if attributes.get(Attribute.OBJECT_TYPE) == "bytes":
        return base64.b64decode(literal)
    return _LITERALS.get(attributes.get(Attribute.OBJECT_TYPE, "str"), str)(literal)
