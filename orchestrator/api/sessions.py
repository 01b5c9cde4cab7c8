"""Who looks at the console: people log in with a key or a one-time link, and a cookie says so from then on.

For the pages of the console. All of it may ask the database, so call it from plain functions, which run in threads:

    login_with_key(request, response, key: str) -> Caller      a key that a person typed; sets the cookie
    login_with_link(request, response, token: str) -> Caller   of `LOGIN_PATH?link=TOKEN`, once; sets the cookie
    caller_of_session(request) -> Caller | None                None: send them to the login page
    csrf_token(request) -> str                                 for a hidden field of each form; "" without a session
    check_csrf(request, token: str) -> None                    before a form changes anything
    logout(request, response) -> None
    check_own_page(request) -> None                            for a form that needs no session
    session_id_of(request) -> str | None                       to know it in a list

The logins raise Unauthenticated, with words for a person. `login_with_key` and `check_csrf` raise Forbidden for a form
on a page of another site. The cookie is HttpOnly and SameSite=Strict, and Secure behind https. It opens no endpoint of
the API, which wants the key itself.
"""

from __future__ import annotations

import hmac
from dataclasses import replace
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from chordage.orchestrator.api.callers import is_of_proxy
from chordage.orchestrator.api.guards import headers_of
from chordage.orchestrator.api.services import services_of
from chordage.orchestrator.api.session_cookies import COOKIE, LASTS, Sessions
from chordage.orchestrator.core.callers import Caller
from chordage.orchestrator.core.errors import Forbidden, Unauthenticated

LOGIN_PATH = "/console/login"


def login_with_key(request: Request, response: Response, key: str) -> Caller:
    check_own_page(request)
    caller, cookie = _sessions(request).begin_with_key(key, _address(request))
    _set(request, response, cookie)
    return _at(request, caller)


def login_with_link(request: Request, response: Response, token: str) -> Caller:
    if "prefetch" in request.headers.get("sec-purpose", ""):  # the browser looks ahead, and the link works once
        raise Forbidden("open the link yourself")
    caller, cookie = _sessions(request).begin_with_link(token, _address(request))
    _set(request, response, cookie)
    return _at(request, caller)


def caller_of_session(request: Request) -> Caller | None:
    cookie = request.cookies.get(COOKIE)
    sessions = services_of(request).sessions
    caller = None if cookie is None or sessions is None else sessions.caller(cookie)
    caller = caller or _named_by_proxy(request)
    return None if caller is None else _at(request, caller)


def _named_by_proxy(request: Request) -> Caller | None:
    services = services_of(request)
    if not is_of_proxy(services, request.scope):
        return None
    assert services.proxy is not None
    return services.proxy.caller(headers_of(request.scope))


def csrf_token(request: Request) -> str:
    cookie = request.cookies.get(COOKIE)
    if cookie is not None and (token := _sessions(request).form_token(cookie)) is not None:
        return token
    caller = _named_by_proxy(request)
    return "" if caller is None else _sessions(request).form_token_of(caller.id)


def check_csrf(request: Request, token: str) -> None:
    check_own_page(request)
    expected = csrf_token(request)
    if not expected or not hmac.compare_digest(expected.encode(), token.encode("utf-8", "replace")):
        raise Forbidden("this form is not of your session: load the page again, and send it once more")


def logout(request: Request, response: Response) -> None:
    if (cookie := request.cookies.get(COOKIE)) is not None:
        _sessions(request).leave(cookie)
    response.delete_cookie(COOKIE, path=_path(request), httponly=True, samesite="strict")


def session_id_of(request: Request) -> str | None:
    cookie = request.cookies.get(COOKIE)
    return None if cookie is None else _sessions(request).id_of(cookie)


def _sessions(request: Request) -> Sessions:
    sessions = services_of(request).sessions
    if sessions is None:
        raise Unauthenticated("this server has no console")
    return sessions


def _at(request: Request, caller: Caller) -> Caller:
    return replace(caller, address=_address(request))


def _address(request: Request) -> str | None:
    return request.client.host if request.client else None


def _set(request: Request, response: Response, cookie: str) -> None:
    response.set_cookie(
        COOKIE,
        cookie,
        max_age=int(LASTS.total_seconds()),
        path=_path(request),
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def _path(request: Request) -> str:
    """Behind a proxy that serves us under a prefix, the cookie is for that prefix alone."""
    return request.scope.get("root_path") or "/"


def check_own_page(request: Request) -> None:
    """What browsers say of the page that sent a form. A program says neither; it has no cookie of a person."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        is_own = site in {"same-origin", "none"}
    else:
        is_own = origin is None or urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower()
    if not is_own:
        raise Forbidden("a page of another site sent this form: open the console itself")
