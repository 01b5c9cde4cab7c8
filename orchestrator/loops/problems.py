"""Errors as RFC 9457 problem documents: what went wrong, in a form that programs can tell apart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from chordage.orchestrator.core.errors import (
    ConfigError,
    Conflict,
    InvalidDecision,
    InvalidMessage,
    NotFound,
    QueueFull,
    RoomError,
    Unavailable,
    UnknownAgent,
)

log = structlog.get_logger()

MEDIA_TYPE = "application/problem+json"
TRY_AGAIN_AFTER = "5"  # seconds


class Problem(BaseModel):
    """RFC 9457. `type` and `field` are for programs, `detail` is for people."""

    type: str
    title: str
    status: int
    detail: str
    field: str | None = None


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """These statuses, as OpenAPI describes them."""
    content = {MEDIA_TYPE: {"schema": Problem.model_json_schema()}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


def answer(
    status: int,
    kind: str,
    detail: str,
    *,
    field: str | None = None,
    headers: Mapping[str, str] | None = None,
    **more: Any,
) -> JSONResponse:
    problem = Problem(
        type=f"urn:chordage:problem:{kind}", title=HTTPStatus(status).phrase, status=status, detail=detail, field=field
    )
    content = {**problem.model_dump(exclude_none=True), **more}
    return JSONResponse(content, status_code=status, headers=headers, media_type=MEDIA_TYPE)


def install(app: FastAPI) -> None:
    app.add_exception_handler(RequestValidationError, _not_valid)
    app.add_exception_handler(HTTPException, _of_http)
    app.add_exception_handler(Exception, _of_ours)
    for kind in (
        InvalidMessage,
        InvalidDecision,
        UnknownAgent,
        NotFound,
        Conflict,
        QueueFull,
        Unavailable,
        RoomError,
        ConfigError,
    ):
        app.add_exception_handler(kind, _of_ours)


def _of_ours(request: Request, error: Exception) -> JSONResponse:
    match error:
        case InvalidMessage(too_large=True):
            return answer(413, "too_large", str(error), field=error.field)
        case InvalidMessage() | InvalidDecision():
            return answer(422, "invalid", str(error), field=error.field)
        case UnknownAgent():
            return answer(404, "unknown_agent", str(error), field="agent")
        case NotFound():
            return answer(404, "not_found", str(error))
        case Conflict():
            return answer(409, "conflict", str(error))
        case QueueFull():
            after = {"Retry-After": str(math.ceil(error.retry_after))}
            return answer(429, "queue_full", str(error), headers=after)
        case Unavailable():
            return _unavailable(error)
        case RoomError() | ConfigError():
            return _broken(request, error)
        case _:
            log.error("request failed", path=request.url.path, error=repr(error))
            return answer(
                500, "internal", "This is our fault, and the server's log says more. Nothing can be told here."
            )


def _unavailable(error: Unavailable) -> JSONResponse:
    """Where our database is, and how it is called, is no business of the caller's."""
    log.error("a service does not answer", error=str(error))
    told = "A service that is needed does not answer; /health says which. Try again: with a dedupe_key that is safe."
    return answer(503, "unavailable", told, headers={"Retry-After": TRY_AGAIN_AFTER})


def _broken(request: Request, error: RoomError | ConfigError) -> JSONResponse:
    """Somebody can repair it, so the same request may be sent again."""
    log.error("something of the room is broken", path=request.url.path, error=str(error))
    told = f"{error}\nTry again when it is repaired: with a dedupe_key that is safe."
    return answer(503, "broken_room", told, headers={"Retry-After": TRY_AGAIN_AFTER})


def _not_valid(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where, *path = first["loc"]
    field = ".".join(str(part) for part in path)
    match where, first["type"]:
        case "path", _:
            return answer(404, "not_found", f"there is nothing called {first['input']!r:.80}")
        case "body", "json_invalid":
            told = f"the body is not JSON: {first['ctx']['error']} at character {path[0]}"
            return answer(400, "bad_request", told)
        case "body", "extra_forbidden" if field == "sender":
            told = "sender: who sends is known from the credential of the caller; leave it out"
            return answer(422, "invalid", told, field=field)
        case _:
            return answer(422, "invalid", f"{field or where}: {first['msg']}", field=field or str(where))


def _of_http(_request: Request, error: Exception) -> JSONResponse:
    """What the framework itself refuses: unknown paths, wrong methods, bodies it cannot read."""
    assert isinstance(error, HTTPException)
    kind = HTTPStatus(error.status_code).name.lower()
    return answer(error.status_code, kind, str(error.detail), headers=error.headers)
