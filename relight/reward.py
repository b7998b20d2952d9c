"""The former place of `relight.emitter`'s names of rewards, as in Agent Lightning 0.3; importing it warns."""

import warnings

from relight.emitter import (
    emit_reward,
    find_final_reward,
    find_reward_spans,
    get_reward_value,
    is_reward_span,
)

__all__ = ["emit_reward", "find_final_reward", "find_reward_spans", "get_reward_value", "is_reward_span"]

warnings.warn("relight.reward is deprecated: import from relight.emitter", DeprecationWarning, stacklevel=2)
