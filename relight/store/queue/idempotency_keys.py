"""Idempotency keys: a request is kept with its key by a hash, so that the key of another request is refused."""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

from relight.types.store import EnqueueRolloutRequest


def request_hash(*values: Any) -> str:
    """SHA-256 (hex) of a request; the order of the keys of an object makes no difference."""
    return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def rollouts_hash(requests: Iterable[EnqueueRolloutRequest], *values: Any) -> str:
    """The hash of a request for new rollouts, which is checked."""
    return request_hash([request.model_dump(mode="json") for request in requests], *values)


def refusal(key: str) -> str:
    """The message to a caller whose key is that of another request; in Postgres `claim_key_v1` has it."""
    return f"Idempotency-Key: {key} was sent with another request; send another key"
