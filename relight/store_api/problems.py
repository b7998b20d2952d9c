"""Errors as problem+json (RFC 9457), without tracebacks."""

from __future__ import annotations

import logging

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from relight.errors import BY_STATUS, RelightError
from relight.types.checking import what_is_wrong

log = logging.getLogger(__name__)
MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 1
MAX_GIVEN = 100
"""Maximum length of an invalid value in an error."""


def problem(status: int, title: str, detail: str) -> Response:
    """One problem. 503 says when to try again, 401 how to authenticate."""
    headers: dict[str, str] = {}
    if status == 503:
        headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    elif status == 401:
        headers["WWW-Authenticate"] = 'Bearer, Basic realm="relight"'
    body = {"type": f"urn:relight:{title}", "title": title, "status": status, "detail": detail}
    return Response(orjson.dumps(body), status, headers, MEDIA_TYPE)


def title_of(status: int) -> str:
    """The title of a status: the name of the error that a client raises for it."""
    known = BY_STATUS.get(status)
    return known.__name__ if known else f"HTTP{status}"


def describe_faults(error: ValidationError | RequestValidationError) -> str:
    """One clause for each fault: the field, what is wrong, what was given."""
    clauses: list[str] = []
    for fault in error.errors()[:10]:
        field = ".".join(str(part) for part in fault["loc"]) or "body"
        given = (
            "" if isinstance(fault.get("input"), dict | list) else f" (given: {str(fault.get('input'))[:MAX_GIVEN]!r})"
        )
        clauses.append(f"{field}: {what_is_wrong(fault)}{given}")
    return "; ".join(clauses)


async def _relight_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, RelightError)
    return problem(error.http_status, type(error).__name__, error.message)


async def _validation_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return problem(422, title_of(422), describe_faults(error))


async def _http_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = problem(error.status_code, title_of(error.status_code), str(error.detail))
    response.headers.update(error.headers or {})
    return response


async def _unexpected_problem(request: Request, error: Exception) -> Response:
    log.error("unexpected path=%s error=%r", request.url.path, error)
    return problem(500, "InternalError", "internal error; the service's log has the details")


def add_problem_handlers(app: FastAPI) -> None:
    """Answer every error of the app as a problem."""
    app.add_exception_handler(RelightError, _relight_problem)
    app.add_exception_handler(RequestValidationError, _validation_problem)
    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(Exception, _unexpected_problem)
