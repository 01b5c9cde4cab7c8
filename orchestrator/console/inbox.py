"""The inbox: every open question, what exactly would run, and the decision."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any

import anyio.to_thread
from fastapi import Query, Request
from fastapi.responses import Response

from chordage.orchestrator import stages, views
from chordage.orchestrator.api.callers import allow_decisions, decide_as
from chordage.orchestrator.api.services import services_of
from chordage.orchestrator.console.first_turn import first_turn
from chordage.orchestrator.console.forms import FormField, SentForm, answer_from, fields_of, json_of, sent_form
from chordage.orchestrator.console.live import LivePage, LiveParts, digest, streaming
from chordage.orchestrator.console.live_text import RunWatch
from chordage.orchestrator.console.login import own_path
from chordage.orchestrator.console.pages import PageContext, back, context_of, open_questions, page_router, part, render
from chordage.orchestrator.core.approvals import Action, DecisionRequest, OnExpiry, ResumeMode, Why
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.errors import Conflict, Forbidden, InvalidDecision, NotFound
from chordage.orchestrator.gateways.schemas import complaint_about
from chordage.orchestrator.views import OpenQuestion

PAGE = 25
CARDS_MAX = 100  # that a page may say it has
SOURCE = "console"
CARD = "question-"  # begins the id of a card
THEN = {
    OnExpiry.DENY: "then the call is denied",
    OnExpiry.CANCEL_RUN: "then its run is cancelled",
    OnExpiry.ESCALATE: "then it stays open and is marked as overdue",
    OnExpiry.DEFAULT: "then the default answer is applied",
}
NOT_CARRIED_OUT = "then the model reads that the call was not carried out"
DONE = {"approved": "Approved.", "denied": "Denied.", "answered": "Answered.", "twice": "That was decided before."}

router = page_router()
Cards = Annotated[str, Query(max_length=8000)]
After = Annotated[str | None, Query(max_length=200)]


@dataclass(frozen=True, kw_only=True, slots=True)
class CardWords:
    tag: str  # why it waits
    exact: str  # above the arguments
    yes: str
    no: str = "Deny"
    no_decision: str = "Your key may not decide."


WORDS = {
    Why.GATE: CardWords(tag="needs permission", exact="Exactly this would run", yes="Approve"),
    Why.TOOL: CardWords(tag="the tool asks", exact="Exactly this would run", yes="Approve"),
    Why.UNKNOWN: CardWords(tag="outcome unknown", exact="It was called with", yes="Store the outcome"),
    Why.CLIENT: CardWords(
        tag="waits for its caller", exact="The caller is asked to carry out exactly this", yes="Give this result",
        no="Give up on it",
        no_decision="The program that sent the message gives the result; a person needs the scope decide to do so.",
    ),
}  # fmt: skip
RESULT_FIELD = {
    "type": "string", "format": "textarea", "title": "Result, in place of the caller",
    "description": "As text or JSON. A result that the caller sends later is refused then.",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionCard:
    """A question as the page shows it. `edited`: arguments that were changed in the form and not taken."""

    question: OpenQuestion
    words: CardWords
    then: str
    fields: tuple[FormField, ...]
    plain: bool  # a plain yes is an answer
    is_unknown: bool
    is_with_caller: bool
    gives_result: bool  # the answer is the result of the call
    prompt: str  # what the arguments below do not say
    fault: str = ""
    edited: str | None = None
    reason: str = ""


def card_of(
    context: PageContext, question: OpenQuestion, sent: SentForm | None = None, fault: str = ""
) -> QuestionCard:
    plain, fields, shown = _plain(question), _fields(question, sent), context.shown(question)
    # The prompt of a rule repeats the arguments.
    prompt = shown.prompt.partition("\n")[0] if question.why is Why.GATE else shown.prompt
    words = WORDS.get(question.why, WORDS[Why.TOOL])
    if question.why is Why.TOOL and fields and not plain:
        words = replace(words, yes="Answer")
    then = NOT_CARRIED_OUT if question.why is Why.CLIENT else THEN[question.on_expiry]
    return QuestionCard(
        question=shown, words=words, prompt=prompt, then=then if question.expires_at else "",
        fields=tuple(fields) if context.may("payloads") else (), plain=plain,
        is_unknown=question.why is Why.UNKNOWN,
        is_with_caller=question.why is Why.CLIENT, gives_result=question.resume_mode is not ResumeMode.REPLAY,
        fault=fault, edited=sent.first("arguments") if sent else None, reason=sent.first("reason") if sent else "",
    )  # fmt: skip


def _plain(question: OpenQuestion) -> bool:
    """Of a tool of the caller, a yes would be its result."""
    schema = question.schema
    if question.why is Why.CLIENT:
        return False
    return schema is None or complaint_about(True, schema) is None or complaint_about(None, schema) is None


def _fields(question: OpenQuestion, sent: SentForm | None) -> list[FormField]:
    """None where a plain yes says all there is to say."""
    schema = question.schema
    if question.why is Why.UNKNOWN:
        return []
    if question.why is Why.CLIENT:
        return fields_of(RESULT_FIELD, sent)
    if schema is None:
        return fields_of({}, sent) if question.resume_mode is not ResumeMode.REPLAY else []
    if not _plain(question):
        return fields_of(schema, sent)
    if isinstance(schema.get("properties"), Mapping):  # more than a yes may be said
        return fields_of({"type": "object", "properties": schema["properties"]}, sent)
    return []


@router.get("/inbox")
def inbox(
    request: Request, after: After = None, agent: After = None, thread: After = None, done: After = None
) -> Response:
    context = context_of(request, KeyScope.READ)
    return _page(request, context, after=after, agent=agent, thread=thread, notice=DONE.get(done or "", ""))


def _page(
    request: Request,
    context: PageContext,
    *,
    after: str | None = None,
    agent: str | None = None,
    thread: str | None = None,
    notice: str = "",
    fault: str = "",
    redrawn: QuestionCard | None = None,
    linked: tuple[str, datetime] | None = None,
    status: int = 200,
) -> Response:
    questions = _questions(request, context, after, agent, thread)
    waiting = open_questions(services_of(request), context.caller)
    parts, known = _parts(context, questions), digest(_live_parts(context, questions, waiting, agent, thread))
    if redrawn is not None:
        parts[f"{CARD}{redrawn.question.id}"] = part(context, "question", "card", redrawn, False)
    return render(
        request, context, "inbox.html", status=status, cards=list(parts.values()), notice=notice, fault=fault,
        linked=linked, waiting=waiting,
        agent=agent, thread=thread, after=after,
        first=None if parts else first_turn(services_of(request), context),
        next=questions[-1].id if len(questions) == PAGE else None,
        live=context.link("/inbox/live", agent=agent, thread=thread, v=known, has=",".join(one.id for one in questions))
        if after is None
        else None,
    )  # fmt: skip


def _questions(
    request: Request, context: PageContext, after: str | None, agent: str | None, thread: str | None
) -> list[OpenQuestion]:
    return services_of(request).inbox(
        limit=PAGE, agent=agent, root_thread=thread, after=after, space=context.caller.reach
    )


def _parts(context: PageContext, questions: Sequence[OpenQuestion]) -> dict[str, str]:
    return {
        f"{CARD}{question.id}": part(context, "question", "card", card_of(context, question), False)
        for question in questions
    }


def _live_parts(
    context: PageContext, questions: Sequence[OpenQuestion], waiting: int, agent: str | None, thread: str | None
) -> dict[str, str]:
    return {
        "inbox-count": part(context, "question", "badge", waiting),
        "inbox-head": part(context, "question", "head", waiting, agent, thread),
        **_parts(context, questions),
    }


@router.post("/inbox/link")
async def link(request: Request) -> Response:
    form = await sent_form(request)
    return await anyio.to_thread.run_sync(_link, request, form)


def _link(request: Request, form: SentForm) -> Response:
    """An address for one question, shown this once."""
    context = context_of(request, KeyScope.DECIDE, KeyScope.PAYLOADS)
    services, target = services_of(request), form.first("target")
    try:
        allow_decisions(services, [DecisionRequest(target=target, action=Action.CANCEL)], context.caller)
        new = stages.make_question_link(
            services.rt.store, target, by=context.caller.actor, now=services.rt.now(), link_id=services.rt.new_id(),
            secret=stages.session_secret(services.rt.store),
            space=context.caller.reach,
        )  # fmt: skip
    except (NotFound, Conflict, Forbidden) as error:
        return _page(request, context, fault=f"No link was made: {error}.", status=409)
    url = request.url.replace(path=context.link(f"/ask/{new.token}"), query="", fragment="")
    return _page(request, context, linked=(str(url), new.link.expires_at))


@router.get("/inbox/live")
async def inbox_live(request: Request, agent: After = None, thread: After = None, has: Cards = "") -> Response:
    """New questions appear below. Of one that was decided elsewhere a line stays, which says how; also where the page
    was in the background meanwhile. `has`: the questions that the page began with.
    """
    context = await anyio.to_thread.run_sync(context_of, request, KeyScope.READ)
    services = services_of(request)

    def parts(_watch: RunWatch) -> LiveParts:
        questions = _questions(request, context, None, agent, thread)
        waiting = open_questions(services, context.caller)
        return LiveParts(parts=_live_parts(context, questions, waiting, agent, thread))

    def closed(names: Sequence[str]) -> dict[str, str]:
        ids = [name.removeprefix(CARD) for name in names]
        closed = views.closed_questions(services.rt.store, ids, space=context.caller.reach)
        return {f"{CARD}{one.id}": part(context, "question", "closed", one) for one in closed}

    page = LivePage(
        render=parts, key=("inbox", context.caller, context.csrf, agent, thread), target="questions", keeps=CARD,
        closed=closed, has=_cards(request.headers.get("last-event-id") or has),
    )  # fmt: skip
    return streaming(request, context.caller, page)


def _cards(listed: str) -> list[str]:
    """The names of cards, as an address or the last event has them."""
    ids = [name.removeprefix(CARD) for name in listed.split(",")[:CARDS_MAX]]
    return [f"{CARD}{one}" for one in ids if re.fullmatch(r"[0-9A-Za-z-]{1,80}", one)]


@router.post("/inbox")
async def decide(request: Request) -> Response:
    """One question with its whole form, or several with a plain answer each."""
    form = await sent_form(request)
    return await anyio.to_thread.run_sync(_decide, request, form)


def _decide(request: Request, form: SentForm) -> Response:
    context = context_of(request, KeyScope.DECIDE)
    verdict, targets = form.first("verdict"), form.every("target")
    if verdict not in {"approve", "deny"}:
        raise InvalidDecision("choose to approve or to deny", field="verdict")
    if not targets:
        return _page(request, context, fault="Select at least one question first.", status=422)
    if len(targets) == 1 and not form.first("several"):
        return _decide_one(request, context, targets[0], verdict, form)
    return _decide_several(request, context, targets, verdict, form.first("reason") or None)


def _decide_one(request: Request, context: PageContext, target: str, verdict: str, form: SentForm) -> Response:
    services, reach = services_of(request), context.caller.reach
    try:
        question = views.open_question_by_id(services.rt.store, target, space=reach)
    except (NotFound, Conflict) as error:
        status = 404 if isinstance(error, NotFound) else 409
        return _page(request, context, fault=f"Nothing was decided: {error}.", status=status)
    try:
        asked = decision_request(context, question, verdict, form)
        decided = decide_as(services, [asked], context.caller, source=SOURCE)
    except (InvalidDecision, Conflict) as error:
        card = card_of(context, question, form, fault=str(error))
        return _page(request, context, redrawn=card, status=422 if isinstance(error, InvalidDecision) else 409)
    done = "twice" if decided[0].duplicate else "denied" if asked.action is Action.CANCEL else "approved"
    return back(context, form_target(form), done=done)


def form_target(form: SentForm) -> str:
    """Where the form was: the inbox, or the page of a run."""
    return own_path(form.first("from")) if form.first("from") else "/inbox"


def decision_request(context: PageContext, question: OpenQuestion, verdict: str, form: SentForm) -> DecisionRequest:
    reason = form.first("reason").strip() or None
    if verdict == "deny":
        return DecisionRequest(target=question.id, action=Action.CANCEL, reason=reason)
    edited = form.first("arguments")
    edited_args = json_of(edited, "Arguments") if edited.strip() and context.may("payloads") else None
    if edited_args is not None and not isinstance(edited_args, dict):
        raise InvalidDecision("Arguments: give a JSON object", field="arguments")
    if _same(edited_args, question.arguments):
        edited_args = None
    return DecisionRequest(
        target=question.id, action=Action.RESUME, payload=_payload(question, form), edited_args=edited_args
    )


def _same(edited: Any, arguments: dict[str, Any]) -> bool:
    """Also the same order and the same kind of number: 1 is not 1.0, and true is not 1."""
    return json.dumps(edited) == json.dumps(arguments)


def _payload(question: OpenQuestion, form: SentForm) -> Any:
    if question.why is Why.UNKNOWN:
        return _about_the_unknown(form)
    fields = _fields(question, None)
    if question.why is Why.CLIENT:
        return _result_of(form.first(fields[0].name))
    is_filled_in = any(form.first(one.name).strip() for one in fields)
    return plain_yes(question) if _plain(question) and not is_filled_in else answer_from(fields, form)


def _about_the_unknown(form: SentForm) -> dict[str, Any]:
    match form.first("outcome"):
        case "result":
            return {"answer": "result", "result": _result_of(form.first("result"))}
        case "failed":
            reason = form.first("reason").strip()
            return {"answer": "failed", **({"reason": reason} if reason else {})}
        case "retry":
            return {"answer": "retry"}
    raise InvalidDecision("say what became of the call: run it again, it did happen, or it did not", field="outcome")


def _result_of(text: str) -> Any:
    """JSON, or a text, as most results are."""
    if not text.strip():
        raise InvalidDecision("give the result that the call had", field="payload")
    try:
        return json_of(text, "Result")
    except InvalidDecision:
        return text


def plain_yes(question: OpenQuestion) -> bool | None:
    """True, or null if the schema accepts only that."""
    schema = question.schema
    only_null = schema is not None and complaint_about(True, schema) is not None
    return None if only_null else True


def _decide_several(
    request: Request, context: PageContext, targets: list[str], verdict: str, reason: str | None
) -> Response:
    """All of them, or none."""
    services, reach = services_of(request), context.caller.reach
    try:
        questions = [views.open_question_by_id(services.rt.store, target, space=reach) for target in targets]
        decide_as(services, [_plain_request(one, verdict, reason) for one in questions], context.caller, source=SOURCE)
    except (NotFound, Conflict, InvalidDecision) as error:
        return _page(request, context, fault=f"Nothing was decided: {error}.", status=409)
    return back(context, "/inbox", done="denied" if verdict == "deny" else "approved")


def _plain_request(question: OpenQuestion, verdict: str, reason: str | None) -> DecisionRequest:
    if verdict == "deny":
        return DecisionRequest(target=question.id, action=Action.CANCEL, reason=reason)
    if not _plain(question):
        problem = f"{question.tool} wants an answer of its own: take {question.id} out"
        raise InvalidDecision(problem, field="payload")
    return DecisionRequest(target=question.id, action=Action.RESUME, payload=plain_yes(question))
