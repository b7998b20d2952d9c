"""Attempt ids, tokens and addresses.

A token is derived from the attempt's id, so that a lost answer can be repeated; only its hash is stored.
"""

from __future__ import annotations

import hmac
import secrets
import time
from base64 import urlsafe_b64encode
from hashlib import sha256

KEY_BYTES = 32
TOKEN_PREFIX = "rl-"
ACCESS_PREFIX = f"{TOKEN_PREFIX}token-"
"""Of access tokens; they are rows with a role (`access_tokens.py`)."""


def new_key() -> bytes:
    """A key to derive attempt tokens from."""
    return secrets.token_bytes(KEY_BYTES)


def new_attempt_id() -> str:
    """An id that sorts by time."""
    return f"at-{time.time_ns() // 1_000_000:012x}{secrets.token_hex(5)}"


def attempt_token(key: bytes, attempt_id: str) -> str:
    """The token of an attempt."""
    digest = hmac.digest(key, attempt_id.encode(), "sha256")
    return TOKEN_PREFIX + urlsafe_b64encode(digest).decode().rstrip("=")


def token_hash(token: str) -> str:
    """The SHA-256 of a token, which is what the store keeps."""
    return sha256(token.encode()).hexdigest()


def runner_token(token: str) -> str:
    """The token with which a runner works that was given the admin token: derived from it, so that the admin token need
    not be where agents run. An access token stays what it is.
    """
    if token.startswith(ACCESS_PREFIX):
        return token
    digest = hmac.digest(token.encode(), b"relight runner", "sha256")
    return ACCESS_PREFIX + urlsafe_b64encode(digest).decode().rstrip("=")


def attempt_url(gateway_url: str, rollout_id: str, attempt_id: str) -> str:
    """The base URL that an agent gets."""
    return f"{gateway_url.rstrip('/')}/rollout/{rollout_id}/attempt/{attempt_id}/v1"


def open_key(rollout_id: str, try_number: int, execution: str) -> str:
    """What an opening is keyed by (rule 1)."""
    return f"{rollout_id}/{try_number}/{execution}"
