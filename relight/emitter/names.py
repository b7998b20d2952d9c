"""Names of spans and attributes. They are data, read by adapters and by 0.3's tools; a test pins them."""

from __future__ import annotations

from typing import Final

# Spans
ANNOTATION: Final = "agentlightning.annotation"
MESSAGE: Final = "agentlightning.message"
OBJECT: Final = "agentlightning.object"
EXCEPTION: Final = "agentlightning.exception"
OPERATION: Final = "agentlightning.operation"
REWARD_SPAN: Final = "agentlightning.reward"

# Attributes of spans
REWARD: Final = "agentlightning.reward"
"""Prefix: `agentlightning.reward.<i>.name` and `.value`, 0 is the primary one."""
REWARD_FEEDBACK: Final = "relight.reward.feedback"
"""The feedback that was given with a reward."""
TAG: Final = "agentlightning.tag"
LINK: Final = "agentlightning.link"
MESSAGE_BODY: Final = "agentlightning.message.body"
OBJECT_TYPE: Final = "agentlightning.object.type"
OBJECT_LITERAL: Final = "agentlightning.object.literal"
OBJECT_JSON: Final = "agentlightning.object.json"
OPERATION_NAME: Final = "agentlightning.operation.name"
OPERATION_INPUT: Final = "agentlightning.operation.input"
OPERATION_OUTPUT: Final = "agentlightning.operation.output"
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"
EXCEPTION_STACKTRACE: Final = "exception.stacktrace"
EXCEPTION_ESCAPED: Final = "exception.escaped"

PRIMARY: Final = "primary"
"""Name of the only dimension of a reward that is a plain number."""
