"""Suspensions: one row for each question about a call. At most one of a call's is open."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import insert, select, update

from chordage.orchestrator.core.suspending import (
    OnExpiry,
    Question,
    ResumeMode,
    Suspension,
    SuspensionStatus,
    Why,
    digest,
)
from chordage.orchestrator.store.newer import readable
from chordage.orchestrator.store.predicates import (
    OPEN_SUSPENSIONS,
    STILL_ASKED,
    STILL_UNSETTLED,
    UNSETTLED_SUSPENSIONS,
    still,
)
from chordage.orchestrator.store.schema import calls, suspensions
from chordage.orchestrator.store.tx import Tx


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """The call that a question is about."""

    call_id: str
    run_id: str
    thread_id: str
    agent: str
    step: int
    tool: str
    arguments: dict[str, Any]


def ask(
    tx: Tx, suspension_id: str, about: Asked, question: Question, now: datetime, *, about_claim: str | None = None
) -> None:
    expires = None if question.expires_in is None else now + timedelta(seconds=question.expires_in)
    tx.execute(
        insert(suspensions),
        {
            "id": suspension_id, "call_id": about.call_id, "run_id": about.run_id, "thread_id": about.thread_id,
            "agent": about.agent, "step": about.step, "tool": about.tool, "why": question.why.value,
            "prompt": question.prompt, "schema": question.schema, "resume_mode": question.resume_mode.value,
            "digest": digest(about.arguments), "status": SuspensionStatus.OPEN.value, "created_at": now,
            "expires_at": expires, "on_expiry": question.on_expiry.value, "default": question.default,
            "about_claim": about_claim,
        },
    )  # fmt: skip


def from_row(row: Any) -> Suspension:
    fields = dict(row)
    kinds = {
        "why": Why, "resume_mode": ResumeMode, "status": SuspensionStatus, "on_expiry": OnExpiry,
    }  # fmt: skip
    return Suspension(**{**fields, **{name: kind(fields[name]) for name, kind in kinds.items()}})


def _one(tx: Tx, found: Any) -> Suspension | None:
    row = tx.execute(found).mappings().first()
    return from_row(row) if row else None


def load(tx: Tx, suspension_id: str) -> Suspension | None:
    return _one(tx, select(suspensions).where(suspensions.c.id == suspension_id))


def named(tx: Tx, target: str) -> Suspension | None:
    """By its own id, or the newest of the call of that id."""
    of_call = select(suspensions).join(calls, calls.c.suspension_id == suspensions.c.id).where(calls.c.id == target)
    return load(tx, target) or _one(tx, of_call)


def about_claim(tx: Tx, call_id: str, token: str) -> Suspension | None:
    """The open question what became of the call, asked because the holder of this claim was taken for dead."""
    asked = (suspensions.c.call_id == call_id, suspensions.c.about_claim == token, STILL_ASKED)
    return _one(tx, select(suspensions).where(*asked))


def claims_asked_about(tx: Tx, call_ids: Collection[str]) -> set[str]:
    """The claims of these calls whose holders may still answer what became of the call."""
    found = select(suspensions.c.about_claim).where(
        suspensions.c.call_id.in_(sorted(call_ids)), STILL_ASKED, suspensions.c.about_claim.is_not(None)
    )
    return set(tx.execute(found).scalars())


def unsettled(tx: Tx, run_id: str) -> list[Suspension]:
    found = select(suspensions).where(suspensions.c.run_id == run_id, STILL_UNSETTLED)
    return sorted((from_row(row) for row in tx.execute(found).mappings()), key=lambda one: one.id)


def expired(tx: Tx, now: datetime, limit: int) -> list[Suspension]:
    found = (
        select(suspensions)
        .where(OPEN_SUSPENSIONS, suspensions.c.expires_at <= now, suspensions.c.escalated_at.is_(None))
        .order_by(suspensions.c.expires_at)
        .limit(limit)
    )
    return readable(tx.execute(found).mappings(), from_row)


def mark(tx: Tx, suspension_id: str, status: SuspensionStatus, *, was: SuspensionStatus) -> bool:
    moved = update(suspensions).where(suspensions.c.id == suspension_id, still(suspensions.c.status, was))
    return tx.execute(moved.values(status=status.value)).rowcount == 1


def escalate(tx: Tx, suspension_id: str, now: datetime) -> bool:
    moved = update(suspensions).where(
        suspensions.c.id == suspension_id, STILL_ASKED, suspensions.c.escalated_at.is_(None)
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
