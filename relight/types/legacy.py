"""Payloads of Agent Lightning 0.1's server, for code that still names them. Nothing here takes or returns them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from relight.types.core import TaskInput
from relight.types.rollout import RolloutMode


class Task(BaseModel):
    """A task that 0.1's server handed out; `EnqueueRolloutRequest` and `Rollout` are its successors."""

    rollout_id: str
    input: TaskInput
    mode: RolloutMode | None = None
    resources_id: str | None = None
    create_time: float | None = None
    """Unix seconds."""
    last_claim_time: float | None = None
    num_claims: int | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class TaskIfAny(BaseModel):
    """The answer to a request for a task."""

    is_available: bool
    task: Task | None = None


class RolloutLegacy(BaseModel):
    """What 0.1's clients reported; `Rollout` and its spans are the successors."""

    rollout_id: str
    task: Task | None = None
    final_reward: float | None = None
    triplets: list[Any] | None = None
    trace: list[dict[str, Any]] | None = None
    logs: list[str] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class GenericResponse(BaseModel):
    """What 0.1's server answered."""

    status: str = "success"
    message: str | None = None
    data: dict[str, Any] | None = None
