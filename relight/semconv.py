"""Semantic conventions: names of spans and attributes. They are data that adapters and 0.3's tools read.

The names and classes are Agent Lightning 0.3's, but for the constants from `PRIMARY_REWARD` on. In a dictionary of
attributes the key is an enum's `value`: a member is text as well, but JSON's writer takes it for another type.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pydantic import BaseModel

# Names of spans
AGL_ANNOTATION: Final = "agentlightning.annotation"
AGL_MESSAGE: Final = "agentlightning.message"
AGL_OBJECT: Final = "agentlightning.object"
AGL_EXCEPTION: Final = "agentlightning.exception"
AGL_OPERATION: Final = "agentlightning.operation"
AGL_REWARD: Final = "agentlightning.reward"
"""The call of a function that returns a reward."""
AGL_VIRTUAL: Final = "agentlightning.virtual"
"""A node that an adapter adds to a tree, such as the root of a forest."""


class LightningResourceAttributes(StrEnum):
    """Attributes of a span's resource that say where the span belongs."""

    ROLLOUT_ID = "agentlightning.rollout_id"
    ATTEMPT_ID = "agentlightning.attempt_id"
    SPAN_SEQUENCE_ID = "agentlightning.span_sequence_id"
    TRACER_NAME = "agentlightning.tracer.name"


class LightningSpanAttributes(StrEnum):
    """Attributes of spans. Those of exceptions are OpenTelemetry's."""

    REWARD = "agentlightning.reward"
    """Prefix: `agentlightning.reward.<i>.name` and `.value`, 0 is the primary one."""
    LINK = "agentlightning.link"
    """Prefix: `agentlightning.link.<i>.key_match` and `.value_match`."""
    TAG = "agentlightning.tag"
    """Prefix: `agentlightning.tag.<i>`."""
    MESSAGE_BODY = "agentlightning.message.body"
    OBJECT_TYPE = "agentlightning.object.type"
    OBJECT_LITERAL = "agentlightning.object.literal"
    OBJECT_JSON = "agentlightning.object.json"
    OPERATION_NAME = "agentlightning.operation.name"
    OPERATION_INPUT = "agentlightning.operation.input"
    OPERATION_OUTPUT = "agentlightning.operation.output"


class RewardAttributes(StrEnum):
    """What follows `agentlightning.reward.<i>.`."""

    REWARD_NAME = "name"
    REWARD_VALUE = "value"


class RewardPydanticModel(BaseModel):
    """One reward of a span."""

    name: str
    value: float


class LinkAttributes(StrEnum):
    """What follows `agentlightning.link.<i>.`."""

    KEY_MATCH = "key_match"
    """Name of an attribute; `trace_id` and `span_id` are the span's own."""
    VALUE_MATCH = "value_match"


class LinkPydanticModel(BaseModel):
    """A link to the spans that have this value of this attribute; `trace_id` and `span_id` are the span's own."""

    key_match: str
    value_match: str


PRIMARY_REWARD: Final = "primary"
"""Name of the only dimension of a reward that is a plain number."""
REWARD_FEEDBACK: Final = "relight.reward.feedback"
"""The feedback that was given with a reward."""
AGENTOPS_REWARDS: Final = ("agentops.task.output", "agentops.entity.output")
"""A reward as AgentOps wrote it before 0.3: the JSON text `{"type": "reward", "value": 1.0}`."""
REWARD_OF_0_2: Final = "reward"
"""The reward of an annotation that version 0.2 wrote."""
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"
EXCEPTION_STACKTRACE: Final = "exception.stacktrace"
EXCEPTION_ESCAPED: Final = "exception.escaped"
