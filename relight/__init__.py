"""Relight: reinforcement learning for AI agents that no crash can undo.

What an agent author needs is here; importing it loads no torch, no Temporal and no database driver.
"""

from __future__ import annotations

from relight.emitter import (
    emit_annotation,
    emit_exception,
    emit_message,
    emit_object,
    emit_reward,
    operation,
)
from relight.errors import RelightError
from relight.litagent import LitAgent, llm_rollout, prompt_rollout, rollout
from relight.types.resources import LLM, NamedResources, PromptTemplate
from relight.types.rollout import Attempt, AttemptedRollout, FailureClass, Rollout, RolloutConfig
from relight.types.run_file import RunFile

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "Attempt",
    "AttemptedRollout",
    "FailureClass",
    "LitAgent",
    "NamedResources",
    "PromptTemplate",
    "RelightError",
    "Rollout",
    "RolloutConfig",
    "RunFile",
    "emit_annotation",
    "emit_exception",
    "emit_message",
    "emit_object",
    "emit_reward",
    "llm_rollout",
    "operation",
    "prompt_rollout",
    "rollout",
]
