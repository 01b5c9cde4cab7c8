"""Errors as RFC 9457 problem documents, which programs can tell apart by their `type`."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from chordage.orchestrator.core import errors, rates
from chordage.orchestrator.core.callers import Caller
from chordage.orchestrator.core.text import field_fault
from chordage.orchestrator.loops.streams import StreamsStop

log = structlog.get_logger()

MEDIA_TYPE = "application/problem+json"
TRY_AGAIN_AFTER = "5"  # seconds
LATER = {"Retry-After": TRY_AGAIN_AFTER}
CALLER = "chordage.caller"  # who sends a request: its key in the ASGI scope
STALE = "stale_rev"  # the code of a verb for another revision: stages/step/verbs.py
UNREADABLE = "There was an error parsing the body"  # FastAPI's words for whatever kept it from reading one
BROKEN = "a file of the room is broken; the log of the server says which"
AWAY = "A required service does not answer; /health says which."
PATH_SHOWN = 80  # characters
CLOSE = {"Connection": "close"}  # the rest of the request is not read
OF_READS = (401, 403, 421, 422, 429, 500, 503)  # what any request that reads may be answered with
OF_WRITES = (400, 401, 403, 408, 413, 415, 421, 422, 429, 500, 503)
REFUSALS = (
    errors.InvalidMessage,
    errors.InvalidDecision,
    errors.UnknownAgent,
    errors.NotFound,
    errors.Conflict,
    errors.QueueFull,
    errors.Unauthenticated,
    errors.Forbidden,
    errors.TooManyRequests,
)
FAULTS = (errors.Unavailable, errors.RoomError, errors.ConfigError, Exception)


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
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(HTTPException, _http_error)
    for refusal in REFUSALS:
        app.add_exception_handler(refusal, lambda _request, error: refused(error))
    for fault in FAULTS:
        app.add_exception_handler(fault, _fault)


KNOWN = (RequestValidationError, HTTPException, *REFUSALS, *FAULTS[:-1])


def answer_to(request: Request, error: Exception) -> JSONResponse:
    """Of a route, also in an app that has no handlers of ours."""
    match error:
        case RequestValidationError():
            return _invalid_request(request, error)
        case HTTPException():
            return _http_error(request, error)
    return refused(error) if isinstance(error, REFUSALS) else _fault(request, error)


def refused(error: Exception) -> JSONResponse:
    """The request cannot be carried out as it is; the detail says what to change."""
    match error:
        case errors.InvalidMessage(too_large=True):
            return answer(413, "too_large", str(error), field=error.field)
        case errors.InvalidMessage() | errors.InvalidDecision():
            return answer(422, "invalid", str(error), field=error.field)
        case errors.UnknownAgent():
            return answer(404, "unknown_agent", error.problem, field="agent")
        case errors.NotFound():
            return answer(404, "not_found", str(error))
        case errors.StepRefused():
            status, kind = (412, "stale") if error.code == STALE else (409, "step_refused")
            return answer(status, kind, str(error), code=error.code, rev=error.rev, standing=error.standing or None)
        case errors.StaleRevision():
            return answer(412, "stale", str(error))
        case errors.Conflict():
            return answer(409, "conflict", str(error))
        case errors.QueueFull():
            return answer(429, "queue_full", str(error), headers={"Retry-After": str(math.ceil(error.retry_after))})
        case errors.TooManyRequests():
            later = {"Retry-After": str(max(1, math.ceil(error.retry_after)))}
            headers = {**rates.headers_of(error.allowances), **later}
            return answer(429, "too_many_requests", str(error), headers=headers)
        case errors.Unauthenticated():
            return answer(401, "unauthenticated", str(error), headers={"WWW-Authenticate": 'Bearer realm="chordage"'})
        case errors.Forbidden():
            more: dict[str, Any] = {} if error.scope is None else {"scope": error.scope}
            return answer(403, "forbidden", str(error), **more)
        case _:
            raise error


def _fault(request: Request, error: Exception) -> JSONResponse:
    """The fault is on our side. A caller learns nothing of where our database is, or of a bug."""
    match error:
        case errors.Unavailable():
            log.error("a service does not answer", error=str(error))
            detail = f"{AWAY} Try again: with a dedupe_key that is safe."
            return answer(503, "unavailable", detail, headers=LATER)
        case errors.RoomError() | errors.ConfigError():
            log.error("a file of the room is broken", path=request.url.path, error=str(error))
            fault = words_for(request.scope.get(CALLER), error)
            detail = f"{fault}\nTry again when it is repaired: with a dedupe_key that is safe."
            return answer(503, "broken_room", detail, headers=LATER)
        case _:
            log.error("request failed", path=request.url.path, error=repr(error))
            return answer(500, "internal", "The server failed; its log says why. The cause is not shown here.")


def words_for(caller: Caller | None, error: Exception) -> str:
    """What is wrong. Where the files of the room are is for those who operate it; others read which agent it is. Where
    the database is only the log says.
    """
    match error:
        case StreamsStop():
            return str(error)
        case errors.Unavailable():
            return AWAY
        case errors.RoomError() | errors.ConfigError() if caller is None or not caller.sees_room:
            named = error.agent if isinstance(error, errors.BrokenAgent) else None
            return BROKEN if named is None else broken_agent(named)
        case errors.UnknownAgent():
            return error.problem
        case _:
            return str(error)


def broken_agent(name: str) -> str:
    return f"agent {name!r} is broken: it cannot be used until its files are repaired"


def _invalid_request(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where, *path = first["loc"]
    field = ".".join(str(part) for part in path)
    match where, first["type"]:
        case "path", _:
            return answer(404, "not_found", f"there is nothing called {first['input']!r:.80}")
        case "body", "json_invalid":
            detail = f"the body is not JSON: {first['ctx']['error']} at character {path[0]}"
            return answer(400, "bad_request", detail)
        case "body", "extra_forbidden" if field == "sender":
            detail = "sender: who sends is known from the credential of the caller; leave it out"
            return answer(422, "invalid", detail, field=field)
        case _:
            known = _body_fields(request) if where == "body" and len(path) == 1 else ()
            detail = f"{field or where}: {field_fault(first, known)}"
            return answer(422, "invalid", detail, field=field or str(where))


def _body_fields(request: Request) -> Collection[str]:
    """Of the whole body, where it is a table."""
    body = getattr(request.scope.get("route"), "body_field", None)
    kind = None if body is None else body.field_info.annotation
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return ()
    return [field.alias or name for name, field in kind.model_fields.items()]


def _http_error(request: Request, error: Exception) -> JSONResponse:
    """Refusals of the framework: unknown paths, wrong methods, bodies it cannot read."""
    assert isinstance(error, HTTPException)
    kind, detail = HTTPStatus(error.status_code).name.lower(), str(error.detail)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED and (allowed := _allowed(request)):
        return wrong_method(request.method, allowed)
    if detail == HTTPStatus.NOT_FOUND.phrase:  # no route of ours: those say what is not there
        return nothing_at(request.url.path)
    if detail == UNREADABLE:
        detail = _unreadable(error.__cause__) or detail
    return answer(error.status_code, kind, detail, headers=error.headers)


def nothing_at(path: str) -> JSONResponse:
    return answer(404, "not_found", f"there is nothing at {path[:PATH_SHOWN]!r}; /docs lists what there is")


def wrong_method(method: str, allowed: Collection[str]) -> JSONResponse:
    names = sorted(allowed)
    detail = f"{method} is not possible here; use {' or '.join(names)}"
    return answer(405, "method_not_allowed", detail, headers={"Allow": ", ".join(names)})


def _unreadable(cause: BaseException | None) -> str | None:
    """Why the framework could not read a body, apart from what is wrong with its JSON."""
    match cause:
        case UnicodeDecodeError():
            return f"the body is not JSON: byte {cause.start} is not UTF-8"
        case ValueError():  # Python bounds how many digits it converts
            return "the body is not JSON that can be read: a number has too many digits; send it as a string"
        case _:
            return None


def _allowed(request: Request) -> list[str]:
    """The framework names the methods of one route only, and a path may have several. `/x/all` is not `/x/{name}`."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    routes = [route for route in request.app.routes if isinstance(route, APIRoute) and route.include_in_schema]
    fitting = [route for route in routes if route.path_regex.match(path)]
    closest = min((route.path for route in fitting), key=lambda path: (path.count("{"), -len(path)), default="")
    return sorted({verb for route in fitting if route.path == closest for verb in route.methods or ()})
