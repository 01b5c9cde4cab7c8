"""The page on which a person logs in, with a key or a one-time link, and out again."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

import anyio.to_thread
from fastapi import Request
from fastapi.responses import RedirectResponse, Response

from chordage.orchestrator.api.sessions import caller_of_session, login_with_key, login_with_link, logout
from chordage.orchestrator.console.forms import sent_form
from chordage.orchestrator.console.pages import HEADERS, bare, page_router
from chordage.orchestrator.core.errors import Forbidden, TooManyRequests, Unauthenticated

LONGEST_FORM = 10_000  # bytes

router = page_router()


@router.get("/login")
def show_login(request: Request, next: str = "/", link: str = "") -> Response:  # noqa: A002 - the name of the query
    """With a link, the page behind it. A link is used up by the first who opens it."""
    base, target = request.scope.get("root_path", ""), own_path(next)
    if link:
        response = RedirectResponse(f"{base}{target}", status_code=303, headers=dict(HEADERS))
        try:
            login_with_link(request, response, link)
        except (Unauthenticated, Forbidden) as error:
            return bare("login.html", status=401, base=base, fault=str(error), target=target)
        return response
    if caller_of_session(request) is not None:
        return RedirectResponse(f"{base}{target}", status_code=303, headers=dict(HEADERS))
    return bare("login.html", status=200, base=base, fault="", target=target)


@router.post("/login")
async def log_in(request: Request) -> Response:
    """There is no session yet, and no token of one: what the browser says of the page that sent it counts."""
    body = await request.body()
    fields = dict(parse_qsl(body[:LONGEST_FORM].decode("utf-8", "replace")))
    return await anyio.to_thread.run_sync(_log_in, request, fields.get("key", ""), own_path(fields.get("next", "/")))


def _log_in(request: Request, key: str, target: str) -> Response:
    base = request.scope.get("root_path", "")
    response = RedirectResponse(f"{base}{target}", status_code=303, headers=dict(HEADERS))
    try:
        login_with_key(request, response, key)
    except (Unauthenticated, Forbidden, TooManyRequests) as error:
        status = {Unauthenticated: 401, Forbidden: 403, TooManyRequests: 429}[type(error)]
        return bare("login.html", status=status, base=base, fault=str(error), target=target)
    return response


@router.post("/logout")
async def log_out(request: Request) -> Response:
    await sent_form(request)
    response = RedirectResponse(f"{request.scope.get('root_path', '')}/login", status_code=303, headers=dict(HEADERS))
    logout(request, response)
    return response


def own_path(target: str) -> str:
    """A page of the console, whatever the address says: never another site."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc or not target.startswith("/") or target.startswith(("//", "/\\")):
        return "/"
    return target if target.isprintable() else "/"
