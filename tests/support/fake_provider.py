"""A provider of other models, for the gateway's tests: it sends token ids, which must not be recorded."""

from __future__ import annotations

from relight.testing import Answer, ScriptedUpstream

KEY = "sk-very-secret-0123456789"
WORDS = ["I ", "am ", "another ", "model."]
ANSWER = Answer("".join(WORDS), fields={"prompt_token_ids": [7]}, choice_fields={"token_ids": [1, 2]})


def fake_provider() -> ScriptedUpstream:
    """A provider that listens while it is entered."""
    return ScriptedUpstream(default=ANSWER)
