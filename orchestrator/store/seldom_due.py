"""What a sweep seldom finds, in tables that are small or at rest. Every sweep asks, so one statement asks for all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, exists, select

from chordage.orchestrator.store import bulk
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.schema import caller_audit, replays

_OLDEST_RECORD = select(caller_audit.c.at).order_by(caller_audit.c.at, caller_audit.c.id).limit(1).scalar_subquery()
_DUE = select(
    exists().where(replays.c.until <= bindparam("now")).label("replays"),
    (bindparam("audit_before") > _OLDEST_RECORD).label("audit"),
    bulk.due(bindparam("now")).exists().label("bulk"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SeldomDue:
    replays: bool  # some can be forgotten
    audit: bool  # likewise
    bulk: bool  # a job whose worker is gone, or whose message was lost


def find(tx: Tx, now: datetime, *, audit_before: datetime) -> SeldomDue:
    row = tx.execute(_DUE, {"now": now, "audit_before": audit_before}).one()
    return SeldomDue(replays=bool(row.replays), audit=bool(row.audit), bulk=bool(row.bulk))
