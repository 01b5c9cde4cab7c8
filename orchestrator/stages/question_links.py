"""Not in the line of a turn: an address that lets a person without an account answer one question, once.

To look at it uses nothing up: programs that read mail open every link. The answer uses it up, in the transaction that
stores the decision: an answer that is refused leaves the link as it was, and of two that come at once one is stored.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from chordage.orchestrator.core import message
from chordage.orchestrator.core.approvals import DecisionRequest, Suspension, SuspensionStatus, Why, digest
from chordage.orchestrator.core.audit import Actor, Audited
from chordage.orchestrator.core.errors import Conflict, InvalidDecision, NotFound
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.core.keys import hash_of
from chordage.orchestrator.core.question_links import (
    ADDRESS_MAX,
    LASTS,
    LONGEST,
    SHORTEST,
    QuestionLink,
    is_signed,
    signature,
)
from chordage.orchestrator.run import approvals
from chordage.orchestrator.run.approvals import Decided
from chordage.orchestrator.run.unit import Unit, insist
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import approvals as suspensions
from chordage.orchestrator.store import audit, calls, question_links, runs
from chordage.orchestrator.store.database import Store, Tx

SOURCE = "link"
UNKNOWN = "this link is not known here: it was copied in part, or changed; ask for a new one"
OTHER_ARGUMENTS = "this link was made for other arguments than would run now; ask for a new one"


@dataclass(frozen=True, kw_only=True, slots=True)
class NewQuestionLink:
    """`token`: the last part of the address, which is known at this moment only."""

    link: QuestionLink
    token: str = field(repr=False)


def make_question_link(
    store: Store,
    question_id: str,
    *,
    by: Actor,
    now: datetime,
    secret: bytes,
    link_id: str,
    lasts: timedelta = LASTS,
    space: str | None = None,
) -> NewQuestionLink:
    """It ends with its question at the latest. `secret`: of the sessions of the console, which all servers share.
    `space`: of a caller.
    """
    if not SHORTEST <= lasts <= LONGEST:
        raise InvalidDecision("a link lasts from a minute to 30 days", field="expires_in")
    with store.write() as tx:
        question = suspensions.load(tx, question_id)
        run = runs.load(tx, question.run_id) if question else None
        if question is None or run is None or not message.holds(space, run.home_thread):
            raise NotFound(f"there is no suspension {question_id!r}; `chordage inbox` lists what waits, with whole ids")
        _check_open(tx, question)
        if question.why is Why.CHILD:
            raise Conflict(f"suspension {question_id} is answered by its sub-agent, not by a person")
        end = min(now + lasts, question.expires_at or now + lasts).replace(microsecond=0)
        if end <= now:
            raise Conflict(f"suspension {question_id} expires at this moment")
        token = secrets.token_urlsafe(32)
        token = f"{token}.{signature(secret, token, question.id, question.digest, end)}"
        link = QuestionLink(
            id=link_id, hash=hash_of(token), question_id=question.id, digest=question.digest, made_by=by.id,
            created_at=now, expires_at=end,
        )  # fmt: skip
        question_links.add(tx, link)
        detail = {"suspension": question.id, "expires": end.isoformat()}
        audit.record(tx, by, Audited.LINK_MADE, link.id, now=now, detail=detail)
    return NewQuestionLink(link=link, token=token)


def open_question_link(store: Store, token: str, now: datetime, *, secret: bytes) -> QuestionLink:
    """Raises NotFound or Conflict, with words for the person who has it."""
    with store.read() as tx:
        return _open(tx, secret, token, now)


def decide_by_link(
    rt: Runtime, token: str, request: DecisionRequest, *, secret: bytes, address: str | None = None
) -> tuple[Decided, list[Intent]]:
    """`request`: its target is the question of the link, whatever it says. Other arguments are refused."""
    if request.edited_args is not None:
        raise InvalidDecision("a link is for the arguments that it shows: they cannot be changed", field="arguments")
    link = open_question_link(rt.store, token, rt.now(), secret=secret)
    request = replace(request, target=link.question_id, key=None)
    asked = approvals.check_decisions(rt, [request])
    if asked[0].why is Why.GATE and request.payload is not None and request.payload is not True:
        problem = "a link answers one question: it cannot allow the calls that come after it"
        raise InvalidDecision(problem, field="payload")
    by = Actor(id=link.decider, address=address)
    attempt: list[str] = []  # the decision of an attempt whose commit may have been lost
    return insist(rt, lambda unit: _decide(unit, token, request, asked, by, attempt))


def _decide(
    unit: Unit, token: str, request: DecisionRequest, asked: list[Suspension], by: Actor, attempt: list[str]
) -> Decided:
    link = question_links.by_hash(unit.tx, hash_of(token))
    if link is not None and link.decision_id is not None and link.decision_id in attempt:
        question = asked[0]
        return Decided(
            decision_id=link.decision_id, suspension_id=question.id, call_id=question.call_id, run_id=question.run_id
        )
    (decided,) = approvals.take_decisions(unit, [request], asked, SOURCE, by=by)
    if decided.duplicate:
        raise Conflict(f"this question {suspensions.closed(unit.tx, asked[0].id).fate}")
    attempt.append(decided.decision_id)
    if link is None or not question_links.use(unit.tx, link.id, decided.decision_id, unit.now):
        raise Conflict("this link was used, or has expired, at this moment; nothing was decided by it")
    return decided


def _open(tx: Tx, secret: bytes, token: str, now: datetime) -> QuestionLink:
    link = question_links.by_hash(tx, hash_of(token)) if token.isascii() and len(token) <= ADDRESS_MAX else None
    if link is None or not is_signed(secret, token, link):
        raise NotFound(UNKNOWN)
    if link.used_at is not None:
        raise Conflict(f"this link was used at {link.used_at:%Y-%m-%d %H:%M} UTC: it works once")
    if link.expires_at <= now:
        raise Conflict(f"this link expired at {link.expires_at:%Y-%m-%d %H:%M} UTC; ask for a new one")
    question = suspensions.load(tx, link.question_id)
    call = calls.load(tx, question.call_id) if question else None
    if question is None or call is None:
        raise NotFound(UNKNOWN)
    _check_open(tx, question)
    if link.digest != question.digest or digest(call.arguments) != link.digest:
        raise Conflict(OTHER_ARGUMENTS)
    return link


def _check_open(tx: Tx, question: Suspension) -> None:
    if question.status is not SuspensionStatus.OPEN:
        raise Conflict(f"this question {suspensions.closed(tx, question.id).fate}")
