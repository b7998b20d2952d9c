"""Errors that agents get, in OpenAI's shape, so that their client raises the fitting exception.

They are answers of the gateway and never contain a traceback.
"""

from __future__ import annotations

from typing import Any, cast

import orjson


class RequestError(Exception):
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
        """True if the same call would be refused again: clients get `x-should-retry: false`."""
        self.recorded = False
        """True if the store has recorded it as a failure of the platform: the runner's relay need not count it."""

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """Headers for clients and for the runner's relay (`runner/gateway_relay.py`)."""
        final = ((b"x-should-retry", b"false"),) if self.final else ()
        return final + (((b"x-relight-recorded", b"true"),) if self.recorded else ())

    @property
    def body(self) -> bytes:
        """The error in OpenAI's form."""
        return orjson.dumps(self.payload)

    @property
    def payload(self) -> dict[str, Any]:
        """The error as an object; also sent as the last event of a stream that fails."""
        return {"error": {"message": self.message, "type": self.kind, "param": None, "code": self.code}}


class PassedOn(RequestError):
    """An engine's refusal of a request, passed on without locations in its code."""

    def __init__(self, status: int, content: bytes) -> None:
        super().__init__(status, "the engine refused the request", "engine_refused")
        self.error: dict[str, Any] = read_error(content)

    @property
    def payload(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "code": self.code, "type": self.kind, "param": None, **self.error}}


def read_error(content: bytes) -> dict[str, Any]:
    """The `error` object of an engine's answer; empty if it has none."""
    try:
        error = orjson.loads(content)["error"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return {}
    if not isinstance(error, dict):
        return {}
    message = str(error.get("message", "")).split("\n\n  File ", 1)[0]
    return {**cast("dict[str, Any]", error), "message": message}


def bad_request(message: str, code: str = "invalid_request") -> RequestError:
    return RequestError(400, message, code)


def bad_key() -> RequestError:
    return RequestError(401, "this key is not valid for this attempt", "invalid_api_key", "authentication_error")


def no_such_route(method: str, path: str) -> RequestError:
    return RequestError(404, f"no such route: {method} {path}", "not_found")


def no_such_model(model: str, served: str) -> RequestError:
    return RequestError(404, f"the model {model!r} does not exist; this attempt may call {served}", "model_not_found")


def superseded(reason: str) -> RequestError:
    return RequestError(
        409, reason or "a newer attempt has superseded this one", "attempt_superseded", "conflict_error"
    )


def too_large(limit: int) -> RequestError:
    return RequestError(413, f"the request is longer than {limit} bytes", "request_too_large")


def unavailable(message: str) -> RequestError:
    return RequestError(503, message, "platform_unavailable")


def internal() -> RequestError:
    return RequestError(500, "the gateway failed on this call; its log says why", "internal_error")
