"""What an agent gets when its call is not answered: OpenAI's error shape, so that its client raises what fits.

These are answers, not errors of the gateway: they never carry a traceback.
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
        """True where the same call would be refused again: clients get `x-should-retry: false`."""
        self.recorded = False
        """True where the store has it as a failure of the platform: the runner's relay need not count it."""

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """What clients and the runner's relay (`runner/relay.py`) go by."""
        final = ((b"x-should-retry", b"false"),) if self.final else ()
        return final + (((b"x-relight-recorded", b"true"),) if self.recorded else ())

    @property
    def body(self) -> bytes:
        """As OpenAI writes it."""
        return orjson.dumps(self.payload)

    @property
    def payload(self) -> dict[str, Any]:
        """The same, unserialised: also sent as an event where a stream breaks."""
        return {"error": {"message": self.message, "type": self.kind, "param": None, "code": self.code}}


class PassedOn(RequestError):
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


def bad_request(message: str, code: str = "invalid_request") -> RequestError:
    return RequestError(400, message, code)


def bad_key() -> RequestError:
    return RequestError(401, "this key is not good for this attempt", "invalid_api_key", "authentication_error")


def no_such_route(method: str, path: str) -> RequestError:
    return RequestError(404, f"no such route: {method} {path}", "not_found")


def no_such_model(model: str, served: str) -> RequestError:
    return RequestError(404, f"the model {model!r} does not exist; this attempt is served {served}", "model_not_found")


def superseded(reason: str) -> RequestError:
    return RequestError(
        409, reason or "a newer attempt has taken this one's place", "attempt_superseded", "conflict_error"
    )


def too_large(limit: int) -> RequestError:
    return RequestError(413, f"the request is longer than {limit} bytes", "request_too_large")


def unavailable(message: str) -> RequestError:
    return RequestError(503, message, "platform_unavailable")


def internal() -> RequestError:
    return RequestError(500, "the gateway failed on this call; its log says why", "internal_error")
