"""What agent authors write: a plain function, a decorated one, or a `LitAgent`."""

from __future__ import annotations

from relight.litagent.decorator import llm_rollout, prompt_rollout, rollout
from relight.litagent.litagent import FunctionalLitAgent, LitAgent
from relight.litagent.loading import LoadedAgent, load_agents

__all__ = [
    "FunctionalLitAgent",
    "LitAgent",
    "LoadedAgent",
    "llm_rollout",
    "load_agents",
    "prompt_rollout",
    "rollout",
]
