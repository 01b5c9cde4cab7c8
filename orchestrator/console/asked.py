"""The page of a link to one question: what would run, and the answer. Who has the address needs no account.

The address is the secret, so a form of this page needs no token of a session; it has to come from a page of this site
all the same.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import parse_qsl

import anyio.to_thread
from fastapi import Path, Request
from fastapi.responses import Response

from chordage.orchestrator import stages, views
from chordage.orchestrator.api.services import services_of
from chordage.orchestrator.api.sessions import check_own_page
from chordage.orchestrator.console.forms import FIELDS_MAX, SentForm
from chordage.orchestrator.console.inbox import card_of, decision_request
from chordage.orchestrator.console.pages import PageContext, bare, page_router
from chordage.orchestrator.core.approvals import Action, Why
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.errors import Conflict, Forbidden, InvalidDecision, NotFound
from chordage.orchestrator.core.question_links import ADDRESS_MAX

LONGEST_FORM = 1_000_000  # bytes

router = page_router()
Token = Annotated[str, Path(max_length=ADDRESS_MAX)]


@router.get("/ask/{token}")
def show_question(request: Request, token: Token) -> Response:
    """To look at it uses nothing up."""
    return _page(request, token)


@router.post("/ask/{token}")
async def answer_question(request: Request, token: Token) -> Response:
    body = await request.body()
    return await anyio.to_thread.run_sync(_answer, request, token, body)


def _answer(request: Request, token: str, body: bytes) -> Response:
    services = services_of(request)
    secret = stages.session_secret(services.rt.store)
    try:
        check_own_page(request)
        form = _form(body)
        link = stages.open_question_link(services.rt.store, token, services.rt.now(), secret=secret)
        question = views.open_question_by_id(services.rt.store, link.question_id)
        _check(form)
        wanted = decision_request(_context(request), question, form.first("verdict"), form)
        address = request.client.host if request.client else None
        _, intents = stages.decide_by_link(services.rt, token, wanted, secret=secret, address=address)
    except (Forbidden, NotFound, Conflict) as error:
        status = 403 if isinstance(error, Forbidden) else 404 if isinstance(error, NotFound) else 409
        return _bare(request, status, fault=f"Nothing was decided: {error}.")
    except InvalidDecision as error:
        return _page(request, token, form, fault=str(error), status=422)
    services.send(intents)
    return _bare(request, 200, notice="Denied." if wanted.action is Action.CANCEL else "Approved.")


def _check(form: SentForm) -> None:
    if form.first("verdict") not in {"approve", "deny"}:
        raise InvalidDecision("choose to approve or to deny", field="verdict")
    if form.first("arguments"):
        problem = "a link is for the arguments that it shows: they cannot be changed"
        raise InvalidDecision(problem, field="arguments")


def _form(body: bytes) -> SentForm:
    try:
        text = body[:LONGEST_FORM].decode("utf-8", "replace")
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError as error:
        raise Conflict(f"the form has more than {FIELDS_MAX} fields") from error
    return SentForm(tuple((name, value.replace("\r\n", "\n")) for name, value in pairs))


def _page(
    request: Request, token: str, sent: SentForm | None = None, *, fault: str = "", status: int = 200
) -> Response:
    services = services_of(request)
    secret = stages.session_secret(services.rt.store)
    try:
        link = stages.open_question_link(services.rt.store, token, services.rt.now(), secret=secret)
        question = views.open_question_by_id(services.rt.store, link.question_id)
    except (NotFound, Conflict) as error:
        return _bare(request, 404 if isinstance(error, NotFound) else 410, fault=str(error))
    context = _context(request)
    card = card_of(context, question, sent, fault)
    if question.why is Why.GATE:  # what else its form offers concerns later calls
        card = replace(card, fields=())
    return _bare(request, status, at=context, card=card, until=link.expires_at, made_by=link.made_by, path=context.path)


def _bare(request: Request, status: int, **values: object) -> Response:
    blank = {"at": None, "card": None, "until": None, "made_by": "", "path": "", "notice": "", "fault": ""}
    return bare("asked.html", status=status, base=request.scope.get("root_path", ""), **{**blank, **values})


def _context(request: Request) -> PageContext:
    """Of the person who has the link: may see this question and answer it."""
    base = request.scope.get("root_path", "")
    return PageContext(
        caller=Caller(id="link", scopes=frozenset({KeyScope.PAYLOADS, KeyScope.DECIDE})), base=base,
        path=request.url.path.removeprefix(base), query="", now=datetime.now(UTC), nonce=secrets.token_urlsafe(18),
        csrf="",
    )  # fmt: skip
