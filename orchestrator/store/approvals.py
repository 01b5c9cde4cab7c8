"""Suspensions and decisions: a question about a call, and its answer.

A suspension is one row for each question; at most one of a call is open. A decision is stored before anything is done
with it, and the schema allows one for each suspension.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import RowMapping, Select, func, insert, or_, select, tuple_, update

from chordage.orchestrator.core.approvals import (
    Action,
    ClosedQuestion,
    Decision,
    OnExpiry,
    Question,
    ResumeMode,
    Suspension,
    SuspensionStatus,
    Why,
    digest,
)
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.store.contents import owned
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.predicates import (
    ASKED_OF_PEOPLE,
    OPEN_CHILD_SUSPENSIONS,
    OPEN_SUSPENSIONS,
    STILL_OPEN_SUSPENSION,
    STILL_UNSETTLED,
    UNSETTLED_SUSPENSIONS,
    still,
)
from chordage.orchestrator.store.schema import calls, decisions, runs, suspension_space, suspensions, turns
from chordage.orchestrator.store.statements import decryptable, readable_rows


@dataclass(frozen=True, kw_only=True, slots=True)
class CallInQuestion:
    """The call that a question is about."""

    call_id: str
    run_id: str
    thread_id: str
    agent: str
    step: int
    tool: str
    arguments: dict[str, Any]


_OF_CALL = ("call_id", "run_id", "thread_id", "agent", "step", "tool")


def ask(
    tx: Tx,
    suspension_id: str,
    about: CallInQuestion,
    question: Question,
    now: datetime,
    *,
    about_claim: str | None = None,
) -> None:
    expires = None if question.expires_in is None else now + timedelta(seconds=question.expires_in)
    row = {
        "id": suspension_id, **{name: getattr(about, name) for name in _OF_CALL}, "why": question.why.value,
        "prompt": question.prompt, "schema": question.schema, "resume_mode": question.resume_mode.value,
        "digest": digest(about.arguments), "status": SuspensionStatus.OPEN.value, "created_at": now,
        "expires_at": expires, "on_expiry": question.on_expiry.value, "default": question.default,
        "about_claim": about_claim,
    }  # fmt: skip
    root_thread = select(runs.c.root_thread).where(runs.c.id == about.run_id).scalar_subquery()
    tx.execute(insert(suspensions).values(root_thread=root_thread), owned(tx, suspensions, row))


_ENUMS = {"why": Why, "resume_mode": ResumeMode, "status": SuspensionStatus, "on_expiry": OnExpiry}


def _from_row(row: Mapping[Any, Any]) -> Suspension:
    return Suspension(**{**row, **{name: enum(row[name]) for name, enum in _ENUMS.items()}})


def _first(tx: Tx, matching: Select[Any]) -> Suspension | None:
    row = tx.execute(matching).mappings().first()
    return _from_row(row) if row else None


def load(tx: Tx, suspension_id: str) -> Suspension | None:
    return _first(tx, select(suspensions).where(suspensions.c.id == suspension_id))


def find(tx: Tx, target: str) -> Suspension | None:
    """By its own id, or the newest of the call with that id."""
    of_call = select(suspensions).join(calls, calls.c.suspension_id == suspensions.c.id).where(calls.c.id == target)
    return load(tx, target) or _first(tx, of_call)


def open_about_claim(tx: Tx, call_id: str, token: str) -> Suspension | None:
    """The open question about the outcome of the call, asked because the holder of this claim seemed dead."""
    is_open = (suspensions.c.call_id == call_id, suspensions.c.about_claim == token, STILL_OPEN_SUSPENSION)
    return _first(tx, select(suspensions).where(*is_open))


def claims_in_question(tx: Tx, call_ids: Collection[str]) -> set[str]:
    """The claims of these calls whose holders may still bring the outcome."""
    claims = select(suspensions.c.about_claim).where(
        suspensions.c.call_id.in_(sorted(call_ids)), STILL_OPEN_SUSPENSION, suspensions.c.about_claim.is_not(None)
    )
    return set(tx.execute(claims).scalars())


def unsettled(tx: Tx, run_id: str) -> list[Suspension]:
    rows = tx.execute(select(suspensions).where(suspensions.c.run_id == run_id, STILL_UNSETTLED)).mappings()
    return sorted(map(_from_row, rows), key=lambda suspension: suspension.id)


def expired(tx: Tx, now: datetime, limit: int) -> list[Suspension]:
    past = (
        select(suspensions)
        .where(OPEN_SUSPENSIONS, suspensions.c.expires_at <= now, suspensions.c.escalated_at.is_(None))
        .order_by(suspensions.c.expires_at)
        .limit(limit)
    )
    return readable_rows(decryptable(tx.execute(past).mappings()), _from_row)


_CLOSED = (
    select(
        *(suspensions.c[name] for name in ("id", "run_id", "tool", "why", "status", "expires_at", "on_expiry")),
        calls.c.status.label("call_status"),
        *(runs.c[name].label(f"run_{name}") for name in ("reason", "code", "detail", "ended_at")),
        *(decisions.c[name] for name in ("action", "source", "decided_by", "applied_at")),
        decisions.c.created_at.label("decided_at"),
    )
    .join(calls, calls.c.id == suspensions.c.call_id)
    .join(runs, runs.c.id == suspensions.c.run_id)
    .outerjoin(decisions, decisions.c.suspension_id == suspensions.c.id)
)
_CLOSED_ENUMS = {
    "why": Why, "status": SuspensionStatus, "on_expiry": OnExpiry, "call_status": CallStatus, "run_reason": Reason,
    "action": Action,
}  # fmt: skip


def closed(tx: Tx, suspension_id: str) -> ClosedQuestion:
    """How a question that is not open any more was closed."""
    row = tx.execute(_CLOSED.where(suspensions.c.id == suspension_id)).mappings().one()
    enums = {name: enum(row[name]) for name, enum in _CLOSED_ENUMS.items() if row[name] is not None}
    return ClosedQuestion(**{**row, **enums})


def set_status(tx: Tx, suspension_id: str, status: SuspensionStatus, *, was: SuspensionStatus) -> bool:
    moved = update(suspensions).where(suspensions.c.id == suspension_id, still(suspensions.c.status, was))
    return tx.execute(moved.values(status=status.value)).rowcount == 1


def escalate(tx: Tx, suspension_id: str, now: datetime) -> bool:
    moved = update(suspensions).where(
        suspensions.c.id == suspension_id, STILL_OPEN_SUSPENSION, suspensions.c.escalated_at.is_(None)
    )
    return tx.execute(moved.values(escalated_at=now)).rowcount == 1


def close_of_run(tx: Tx, run_id: str) -> None:
    """The run ended without an answer."""
    closed = update(suspensions).where(suspensions.c.run_id == run_id, STILL_UNSETTLED)
    tx.execute(closed.values(status=SuspensionStatus.SUPERSEDED.value))


def close_of_calls(tx: Tx, call_ids: Collection[str]) -> None:
    """The calls were settled in another way."""
    closed = update(suspensions).where(suspensions.c.call_id.in_(sorted(call_ids)), UNSETTLED_SUSPENSIONS)
    tx.execute(closed.values(status=SuspensionStatus.SUPERSEDED.value))


def settle(tx: Tx, suspension_ids: Collection[str]) -> None:
    done = update(suspensions).where(
        suspensions.c.id.in_(sorted(suspension_ids)), still(suspensions.c.status, SuspensionStatus.DECIDED)
    )
    tx.execute(done.values(status=SuspensionStatus.SETTLED.value))


# decisions

_DECISION_COLUMNS = [
    decisions.c[name]
    for name in ("id", "suspension_id", "call_id", "run_id", "action", "payload", "edited_args", "reason", "key")
]


def store_decision(tx: Tx, decision: Decision, *, source: str, decided_by: str, now: datetime) -> None:
    edited = decision.edited_args
    row = {
        "id": decision.id, "suspension_id": decision.suspension_id, "call_id": decision.call_id,
        "run_id": decision.run_id, "key": decision.key, "action": decision.action.value, "payload": decision.payload,
        "edited_args": edited, "edited_digest": None if edited is None else digest(edited), "reason": decision.reason,
        "source": source, "decided_by": decided_by, "created_at": now,
    }  # fmt: skip
    tx.execute(insert(decisions), owned(tx, decisions, row))


def _decision_from_row(row: Any) -> Decision:
    return Decision(**{**row, "action": Action(row["action"])})


def decision_of(tx: Tx, suspension_id: str) -> Decision | None:
    row = tx.execute(select(*_DECISION_COLUMNS).where(decisions.c.suspension_id == suspension_id)).mappings().first()
    return _decision_from_row(row) if row else None


def decision_by_key(tx: Tx, call_id: str, key: str) -> Decision | None:
    """The answer under that key to any question about this call."""
    matching = select(*_DECISION_COLUMNS).where(decisions.c.call_id == call_id, decisions.c.key == key)
    row = tx.execute(matching.order_by(decisions.c.id.desc()).limit(1)).mappings().first()
    return _decision_from_row(row) if row else None


def decisions_of(tx: Tx, suspension_ids: Collection[str]) -> dict[str, Decision]:
    matching = select(*_DECISION_COLUMNS).where(decisions.c.suspension_id.in_(sorted(suspension_ids)))
    return {row["suspension_id"]: _decision_from_row(row) for row in tx.execute(matching).mappings()}


def mark_applied(tx: Tx, decision_ids: Collection[str], now: datetime) -> None:
    tx.execute(update(decisions).where(decisions.c.id.in_(sorted(decision_ids))).values(applied_at=now))


# what readers see

SuspensionRow = RowMapping

_OPEN = (
    select(
        *(
            suspensions.c[name]
            for name in (
                "id", "call_id", "run_id", "thread_id", "agent", "tool", "why", "prompt", "schema", "resume_mode",
                "created_at", "expires_at", "on_expiry", "escalated_at",
            )
        ),
        calls.c.arguments,
        runs.c.root_run,
        runs.c.root_thread,
        runs.c.path,
        turns.c.sent_by,
    )
    .join(calls, calls.c.id == suspensions.c.call_id)
    .join(runs, runs.c.id == suspensions.c.run_id)
    .outerjoin(turns, turns.c.id == runs.c.turn_id)
    .order_by(suspensions.c.created_at, suspensions.c.id)
)  # fmt: skip
_ASKED = [
    suspensions.c[name]
    for name in (
        "id", "why", "prompt", "schema", "resume_mode", "status", "created_at", "expires_at", "on_expiry",
        "escalated_at",
    )
]  # fmt: skip
_ANSWER = [
    decisions.c[name].label(f"answer_{name}")
    for name in ("id", "action", "payload", "edited_args", "reason", "source", "decided_by", "created_at", "applied_at")
]
_ANSWERED = select(*_ASKED, *_ANSWER).outerjoin(decisions, decisions.c.suspension_id == suspensions.c.id)


def list_open(
    tx: Tx,
    *,
    limit: int,
    agent: str | None = None,
    thread_id: str | None = None,
    run_id: str | None = None,
    root_thread: str | None = None,
    root_run: str | None = None,
    why: Why | None = None,
    after: tuple[datetime, str] | None = None,
    space: str | None = None,
    suspension_id: str | None = None,
) -> Sequence[SuspensionRow]:
    """Oldest first, with the arguments in question. `after`: the time and the id of the last on the page before."""
    page = _OPEN.where(OPEN_CHILD_SUSPENSIONS if why is Why.CHILD else ASKED_OF_PEOPLE).limit(limit)
    wanted = {
        "agent": agent, "thread_id": thread_id, "run_id": run_id, "why": why and why.value, "id": suspension_id,
    }  # fmt: skip
    for name, value in wanted.items():
        if value is not None:
            page = page.where(suspensions.c[name] == value)
    if root_thread is not None:
        page = page.where(or_(runs.c.root_thread == root_thread, runs.c.thread_id == root_thread))
    if root_run is not None:
        page = page.where(or_(runs.c.root_run == root_run, runs.c.id == root_run))
    if space is not None:
        page = page.where(suspension_space == space)
    if after is not None:
        page = page.where(tuple_(suspensions.c.created_at, suspensions.c.id) > after)
    return tx.execute(page).mappings().all()


def with_arguments(tx: Tx, suspension_id: str) -> SuspensionRow | None:
    """As a row of `list_open`, whatever its status, which it has too."""
    wanted = _OPEN.add_columns(suspensions.c.status).where(suspensions.c.id == suspension_id)
    return tx.execute(wanted).mappings().first()


def count_open(tx: Tx, *, limit: int, space: str | None = None) -> int:
    """The open questions to people; counting stops at `limit`."""
    listed = select(suspensions.c.id).where(ASKED_OF_PEOPLE)
    if space is not None:
        listed = listed.where(suspension_space == space)
    counted = select(func.count()).select_from(listed.limit(limit).subquery())
    return int(tx.execute(counted).scalar() or 0)


def with_answers(tx: Tx, suspension_ids: Collection[str]) -> Sequence[SuspensionRow]:
    """These questions, each with its answer if it has one."""
    if not suspension_ids:
        return []
    return tx.execute(_ANSWERED.where(suspensions.c.id.in_(sorted(suspension_ids)))).mappings().all()
