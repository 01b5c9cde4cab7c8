"""Links to questions. A link is used by one guarded update: of several who send it, one decides."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime, timedelta

from sqlalchemy import delete, insert, select, update

from chordage.orchestrator.core.question_links import QuestionLink
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.schema import question_links

KEPT = timedelta(days=30)  # behind its end, so that it can say that it has expired
_COLUMNS = [question_links.c[field.name] for field in fields(QuestionLink)]


def add(tx: Tx, link: QuestionLink) -> None:
    tx.execute(delete(question_links).where(question_links.c.expires_at <= link.created_at - KEPT))
    tx.execute(insert(question_links), {field.name: getattr(link, field.name) for field in fields(link)})


def by_hash(tx: Tx, link_hash: str) -> QuestionLink | None:
    row = tx.execute(select(*_COLUMNS).where(question_links.c.hash == link_hash)).mappings().first()
    return QuestionLink(**row) if row else None


def use(tx: Tx, link_id: str, decision_id: str, now: datetime) -> bool:
    """False: it was used, or has expired."""
    used = update(question_links).where(
        question_links.c.id == link_id, question_links.c.used_at.is_(None), question_links.c.expires_at > now
    )
    return tx.execute(used.values(used_at=now, decision_id=decision_id)).rowcount == 1
