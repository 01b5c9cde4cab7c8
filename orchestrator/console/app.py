"""The console as an application of its own, which a server mounts under a path.

Its errors are pages, where those of the API are documents for programs. A caller that is not known is sent to log in.
"""

from __future__ import annotations

import math
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse, Response
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from chordage.orchestrator import views
from chordage.orchestrator.api.problems import words_for
from chordage.orchestrator.api.server import add_routes
from chordage.orchestrator.api.services import Services, keep
from chordage.orchestrator.console import (
    agents,
    asked,
    audit,
    bulk,
    fleet,
    forking,
    inbox,
    login,
    overview,
    run_actions,
    run_page,
    runs,
    sessions,
    suggestions,
    threads,
    usage,
)
from chordage.orchestrator.console.live import LiveStreams
from chordage.orchestrator.console.pages import DIGESTS, HEADERS, STATIC, bare, render, uncounted_context
from chordage.orchestrator.core import errors

log = structlog.get_logger()

PATH = "/console"
LONG = "public, max-age=31536000, immutable"
ROUTERS = (
    login.router, asked.router, inbox.router, runs.router, run_page.router, run_actions.router, overview.router,
    threads.router, agents.router, fleet.router, usage.router, bulk.router, suggestions.router, audit.router,
    sessions.router, forking.router,
)  # fmt: skip
STATUS_OF: dict[type[Exception], int] = {
    errors.InvalidMessage: 422,
    errors.InvalidDecision: 422,
    errors.UnknownAgent: 404,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.QueueFull: 429,
    errors.TooManyRequests: 429,
    errors.Forbidden: 403,
    errors.RoomError: 503,
    errors.ConfigError: 503,
    errors.Unavailable: 503,
}


class _Files(StaticFiles):
    """Styles and scripts change with a version of Chordage, and so do their addresses. During an upgrade a page of one
    version may ask a server of the other: what that sends is not what the address says, and is not kept.
    """

    def file_response(self, full_path: Any, stat_result: Any, scope: Any, status_code: int = 200) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        name = Path(full_path).relative_to(STATIC).as_posix()
        is_ours = scope["query_string"].decode("latin-1") == f"v={DIGESTS[name]}"
        response.headers["Cache-Control"] = LONG if is_ours else "no-cache"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response


def make_console(services: Services) -> FastAPI:
    app = FastAPI(title="chordage console", openapi_url=None, docs_url=None, redoc_url=None)
    keep(app, services)
    app.state.live = LiveStreams(partial(views.run_marks, services.rt.store))
    app.mount("/static", _Files(directory=STATIC))
    add_routes(app, *ROUTERS)
    for kind in STATUS_OF:
        app.add_exception_handler(kind, _refused)
    app.add_exception_handler(errors.Unauthenticated, _to_login)
    app.add_exception_handler(HTTPException, _not_found)
    app.add_exception_handler(RequestValidationError, _not_found)
    app.add_exception_handler(Exception, _failed)
    return app


def mount_console(server: FastAPI, services: Services) -> FastAPI:
    """Under `/console`; a browser that opens the server itself is sent there."""
    console = make_console(services)
    server.mount(PATH, console)

    @server.get("/", include_in_schema=False)
    def to_console(request: Request) -> Response:
        if "text/html" not in request.headers.get("accept", ""):
            raise HTTPException(404, "there is nothing here; /docs describes the API")
        return RedirectResponse(f"{request.scope.get('root_path', '')}{PATH}/", status_code=307)

    return console


def _to_login(request: Request, _error: Exception) -> Response:
    base = request.scope.get("root_path", "")
    if request.method != "GET" or "hx-request" in request.headers:
        return bare("login.html", status=401, base=base, fault="Your session is over: log in again.", target="")
    path = request.url.path.removeprefix(base)
    target = path + (f"?{request.url.query}" if request.url.query else "")
    from urllib.parse import urlencode

    return RedirectResponse(f"{base}/login?{urlencode({'next': target})}", status_code=303, headers=dict(HEADERS))


def _refused(request: Request, error: Exception) -> Response:
    status = next(STATUS_OF[kind] for kind in type(error).__mro__ if kind in STATUS_OF)
    if status >= 500:
        log.error("a page failed", path=request.url.path, error=str(error))
    response = _page(request, status, error)
    if isinstance(error, errors.TooManyRequests | errors.QueueFull):
        response.headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    return response


def _failed(request: Request, error: Exception) -> Response:
    log.error("a page failed", path=request.url.path, error=repr(error))
    return _page(request, 500, "The server failed; its log says why. The cause is not shown here.")


def _not_found(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.detail != HTTPStatus.NOT_FOUND.phrase:
        return _page(request, error.status_code, str(error.detail))
    return _page(request, 404, "there is no such page")


def _page(request: Request, status: int, fault: str | Exception) -> Response:
    base, title = request.scope.get("root_path", ""), HTTPStatus(status).phrase
    try:
        context = uncounted_context(request)
        detail = fault if isinstance(fault, str) else words_for(context.caller, fault)
        return render(request, context, "error.html", status=status, title=title, detail=detail)
    except errors.UserError:
        detail = fault if isinstance(fault, str) else words_for(None, fault)
        return bare("login.html", status=status, base=base, fault=detail, target="")
