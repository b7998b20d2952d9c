"""What an agent is told when its call is not answered: OpenAI's error shape, so that its client raises what fits.

These are answers, not errors of the gateway: they never carry a traceback.
"""

from __future__ import annotations

from typing import Any, cast

import orjson


class Refusal(Exception):
    """A call that is answered with an error."""

    def __init__(
        self, status: int, message: str, code: str, kind: str | None = None, final: bool | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.kind = kind or ("server_error" if status >= 500 else "invalid_request_error")
        self.final = status < 500 if final is None else final
        """True where the same call would be refused again: clients are told not to retry."""

    @property
    def body(self) -> bytes:
        """As OpenAI writes it."""
        return orjson.dumps(self.payload)

    @property
    def payload(self) -> dict[str, Any]:
        """The same, unserialised: also sent as an event where a stream breaks."""
        return {"error": {"message": self.message, "type": self.kind, "param": None, "code": self.code}}


class PassedOn(Refusal):
    """The engine's own word on a request that it can't serve, passed on, less the places in its code."""

    def __init__(self, status: int, content: bytes) -> None:
        super().__init__(status, "the engine refused the request", "engine_refused")
        self.error: dict[str, Any] = read_error(content)

    @property
    def payload(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "code": self.code, "type": self.kind, "param": None, **self.error}}


def read_error(content: bytes) -> dict[str, Any]:
    """The `error` object of an engine's answer; nothing where it has none."""
    try:
        error = orjson.loads(content)["error"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return {}
    if not isinstance(error, dict):
        return {}
    message = str(error.get("message", "")).split("\n\n  File ", 1)[0]
    return {**cast("dict[str, Any]", error), "message": message}


def bad_request(message: str, code: str = "invalid_request") -> Refusal:
    return Refusal(400, message, code)


def bad_key() -> Refusal:
    return Refusal(401, "this key is not good for this attempt", "invalid_api_key", "authentication_error")


def no_such_route(method: str, path: str) -> Refusal:
    return Refusal(404, f"no such route: {method} {path}", "not_found")


def no_such_model(model: str, served: str) -> Refusal:
    return Refusal(404, f"the model {model!r} does not exist; this attempt is served {served}", "model_not_found")


def superseded(reason: str) -> Refusal:
    return Refusal(409, reason or "a newer attempt has taken this one's place", "attempt_superseded", "conflict_error")


def too_large(limit: int) -> Refusal:
    return Refusal(413, f"the request is longer than {limit} bytes", "request_too_large")


def unavailable(message: str) -> Refusal:
    return Refusal(503, message, "platform_unavailable")


def internal() -> Refusal:
    return Refusal(500, "the gateway failed on this call; its log says why", "internal_error")
