"""Pages and parts of pages, made from templates.

Every value is escaped unless it is markup that this package made. Invisible characters and those that change the order
of words are shown by their numbers, so that a call looks like what it is. A page allows itself only its own scripts, by
a nonce that is new for each page; parts that are streamed into it later carry no attributes that htmx acts on, so they
need none (`hx-csp` would take such attributes away).
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote_plus, urlencode

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from chordage.orchestrator import views
from chordage.orchestrator.api.guards import headers_of, size_of
from chordage.orchestrator.api.services import Services, services_of
from chordage.orchestrator.api.sessions import caller_of_session, csrf_token
from chordage.orchestrator.console import words
from chordage.orchestrator.console.payloads import HIDDEN, shown_to
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.errors import Forbidden, NotFound, Unauthenticated
from chordage.orchestrator.core.inert import inert
from chordage.orchestrator.core.prices import cost_text, dollars_text

V = TypeVar("V")

HERE = Path(__file__).parent
STATIC = (HERE / "static").resolve()
# Of the content of each style and script. It is a part of their addresses, so that browsers may keep them.
DIGESTS = {
    path.relative_to(STATIC).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    for path in STATIC.rglob("*")
    if path.is_file()
}
COUNTED = 99  # open questions that the menu counts
POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types htmx"
)
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


def page_router() -> APIRouter:
    return APIRouter(include_in_schema=False, dependencies=[Depends(_check_address)])


async def _check_address(request: Request) -> None:
    """Parts of the address are looked for in the database, and PostgreSQL takes no NUL."""
    if "\x00" in request.url.path or "\x00" in unquote_plus(request.url.query):
        raise NotFound("there is no such page")


@dataclass(frozen=True, kw_only=True, slots=True)
class PageContext:
    """What every template knows: who reads, where links begin, and what time it is."""

    caller: Caller
    base: str  # the path of the console, also behind a prefix
    path: str  # of this page, behind `base`
    query: str
    now: datetime
    nonce: str
    csrf: str

    def may(self, scope: str) -> bool:
        return KeyScope(scope) in self.caller.scopes

    def link(self, path: str, **query: Any) -> str:
        """The address of another page of the console."""
        given = {name: value for name, value in query.items() if value not in {None, ""}}
        return f"{self.base}{path}" + (f"?{urlencode(given)}" if given else "")

    def shown(self, view: V) -> V:
        return shown_to(self.caller, view)


def static(name: str) -> str:
    return f"/static/{name}?v={DIGESTS[name]}"


def _environment() -> Environment:
    env = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    for name in ("span", "ago", "iso", "full_time", "clock", "count", "plain_word", "excerpt", "pretty", "scalar",
                 "short_id"):  # fmt: skip
        env.filters[name] = getattr(words, name)
    env.filters["markdown"] = words.markdown
    env.filters["cost_text"], env.filters["dollars"] = cost_text, dollars_text
    env.globals["HIDDEN"], env.globals["static"] = HIDDEN, static
    return env


_ENVIRONMENT = _environment()


def context_of(request: Request, *scopes: KeyScope) -> PageContext:
    """Of a request, which counts for the rates of the key behind the session. Raises Unauthenticated, TooManyRequests,
    and Forbidden if the caller lacks one of these scopes.
    """
    context = uncounted_context(request)
    services_of(request).limits.take(context.caller, size_of(request.scope, headers_of(request.scope)))
    for scope in scopes:
        if scope not in context.caller.scopes:
            problem = f"{context.caller.label} does not have the scope {scope.value!r}"
            raise Forbidden(problem, scope=scope.value)
    return context


def uncounted_context(request: Request) -> PageContext:
    """For the page of an error: of a request that was counted. Raises Unauthenticated."""
    caller = caller_of_session(request)
    if caller is None:
        raise Unauthenticated("log in first")
    base = request.scope.get("root_path", "")
    return PageContext(
        caller=caller, base=base, path=request.url.path.removeprefix(base), query=request.url.query,
        now=datetime.now(UTC), nonce=secrets.token_urlsafe(18), csrf=csrf_token(request),
    )  # fmt: skip


def render(request: Request, context: PageContext, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    waiting = values.pop("waiting", None)
    if waiting is None:
        waiting = open_questions(services_of(request), context.caller)
    html = inert(_ENVIRONMENT.get_template(template).render(at=context, waiting=waiting, **values))
    policy = POLICY.format(nonce=context.nonce)
    return HTMLResponse(html, status_code=status, headers={**HEADERS, "Content-Security-Policy": policy})


def open_questions(services: Services, caller: Caller) -> int:
    return views.count_open_questions(services.rt.store, limit=COUNTED + 1, space=caller.reach)


def part(context: PageContext, template: str, macro: str, *values: Any) -> Markup:
    """One part of a page, made by the macro that made it in the page."""
    module = _ENVIRONMENT.get_template(f"parts/{template}.html").module
    made = getattr(module, macro)(replace(context, nonce=""), *values)
    return Markup(inert(made))  # noqa: S704 - escaped where it was made


def bare(template: str, *, status: int, base: str, **values: Any) -> Response:
    """A page for someone who is not known. Its own address may be a secret: what it loads is not told that address."""
    nonce = secrets.token_urlsafe(18)
    html = inert(_ENVIRONMENT.get_template(template).render(base=base, nonce=nonce, **values))
    policy = POLICY.format(nonce=nonce)
    headers = {**HEADERS, "Content-Security-Policy": policy, "Referrer-Policy": "strict-origin"}
    return HTMLResponse(html, status_code=status, headers=headers)


def back(context: PageContext, path: str, **query: Any) -> RedirectResponse:
    """After a form: the browser reads a page anew, so that a reload repeats nothing."""
    return RedirectResponse(context.link(path, **query), status_code=303, headers=dict(HEADERS))
