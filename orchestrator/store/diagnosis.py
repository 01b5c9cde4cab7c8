"""What `chordage doctor` reads of the database: its server, its indexes, and rows that should be moving.

Each statement reads a bounded part of an index: `MOST` rows, oldest first, and one more that says whether there are
others. Nothing is locked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, func, literal_column, select, text

from chordage.orchestrator.core.deliveries import DeliveryStatus
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.pulse import named
from chordage.orchestrator.store import fairness, groups, projection, pulse
from chordage.orchestrator.store import runs as run_rows
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.predicates import (
    CALLS_IN_FLIGHT,
    OPEN_SUSPENSIONS,
    PENDING_DELIVERIES,
    QUEUED_TURNS,
    RUNNING_RUNS,
    has,
)
from chordage.orchestrator.store.schema import (
    caller_keys,
    calls,
    journal,
    outbox,
    polls,
    processes,
    runs,
    suspensions,
    turns,
)

NEWEST = 500  # failed turns among which poison is looked for
_HAS_FAILED = turns.c.disposition == literal_column("'failed'")
MOST = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class LateRows:
    """The first `MOST` rows of one kind that should have moved, and since when the oldest should have."""

    ids: tuple[str, ...] = ()
    since: datetime | None = None
    has_more: bool = False

    @property
    def number(self) -> str:
        return f"more than {MOST}" if self.has_more else str(len(self.ids))


def _oldest(tx: Tx, row_id: ColumnElement[Any], since: ColumnElement[Any], *where: ColumnElement[bool]) -> LateRows:
    rows = tx.execute(select(row_id, since).where(*where).order_by(since).limit(MOST + 1)).all()
    return LateRows(
        ids=tuple(str(row[0]) for row in rows[:MOST]), since=rows[0][1] if rows else None, has_more=len(rows) > MOST
    )


# the server


def server_version(tx: Tx) -> str:
    name = "PostgreSQL" if tx.dialect.name == "postgresql" else "SQLite"
    statement = "SHOW server_version" if tx.dialect.name == "postgresql" else "SELECT sqlite_version()"
    return f"{name} {tx.execute(text(statement)).scalar_one()}"


def clock(tx: Tx) -> datetime | None:
    """None: SQLite has no clock of its own."""
    if tx.dialect.name != "postgresql":
        return None
    now: datetime = tx.execute(text("SELECT clock_timestamp()")).scalar_one()
    return now


def unsafe_settings(tx: Tx) -> list[str]:
    """The settings because of which a crash of the server may undo what was committed. SQLite is opened by us."""
    if tx.dialect.name != "postgresql":
        return []
    names = ("fsync", "full_page_writes", "synchronous_commit")
    values = tx.execute(select(*(func.current_setting(name) for name in names))).one()
    return [name for name, value in zip(names, values, strict=True) if value == "off"]


# work


def unrenewed_runs(tx: Tx, before: datetime) -> LateRows:
    return _oldest(tx, runs.c.id, runs.c.lease_until, RUNNING_RUNS, runs.c.lease_until < before)


def unrenewed_calls(tx: Tx, before: datetime) -> LateRows:
    return _oldest(tx, calls.c.id, calls.c.lease_until, CALLS_IN_FLIGHT, calls.c.lease_until < before)


def untaken_runs(tx: Tx, queues: Collection[Group], *, settled_before: datetime, leased_before: datetime) -> LateRows:
    """Runs of these groups, whose queues are empty, that have no call in flight and were taken by no worker: settled
    rounds that no worker has committed, and starts that none has carried out. Rescue's own question.
    """
    late = run_rows.untaken(tx, queues, MOST + 1, settled_before=settled_before, leased_before=leased_before)
    ids = tuple(run.id for run in late)
    return LateRows(ids=ids[:MOST], has_more=len(ids) > MOST)


def poisoned_runs(tx: Tx, since: datetime) -> LateRows:
    """Among the newest turns that failed; ids are in the order of time."""
    newest = select(turns.c.run_id).where(_HAS_FAILED).order_by(turns.c.id.desc()).limit(NEWEST).subquery()
    of_poison = and_(runs.c.code == "poison", runs.c.ended_at >= since)
    return _oldest(tx, runs.c.id, runs.c.ended_at, runs.c.id.in_(select(newest.c.run_id)), of_poison)


def startable_turns(tx: Tx, group: Group, now: datetime, *, budget: int, before: datetime) -> LateRows:
    """Turns that could have started before then, as far as the free budget of their group reaches."""
    free = min(groups.places(tx, group, default=budget).free, MOST)
    ready = [turn_id for turn_id, _ in fairness.next_turns(tx, group, now, free)] if free else []
    return _oldest(tx, turns.c.id, turns.c.due_at, turns.c.id.in_(ready), turns.c.due_at < before)


def turns_past_deadline(tx: Tx, before: datetime) -> LateRows:
    return _oldest(tx, turns.c.id, turns.c.deadline, QUEUED_TURNS, turns.c.deadline < before)


def unclosed_questions(tx: Tx, before: datetime) -> LateRows:
    """Open questions that expired, and were not closed as their sender laid down."""
    is_late = and_(suspensions.c.expires_at < before, suspensions.c.escalated_at.is_(None))
    return _oldest(tx, suspensions.c.id, suspensions.c.expires_at, OPEN_SUSPENSIONS, is_late)


def unsent_deliveries(tx: Tx, before: datetime) -> LateRows:
    return _oldest(tx, outbox.c.id, outbox.c.next_at, PENDING_DELIVERIES, outbox.c.next_at < before)


def dead_deliveries(tx: Tx) -> LateRows:
    return _oldest(tx, outbox.c.id, outbox.c.dead_at, has(outbox.c.status, DeliveryStatus.DEAD))


def unstarted_work(tx: Tx, before: datetime) -> LateRows:
    """Tasks, chores and the will that no tick of the pulse has looked at: they were due before then, or their turn had
    ended.
    """
    times = [(work.next_due, work) for work in pulse.due(tx, before, MOST + 1)]
    times += [(work.ended_at, work) for _, work in pulse.ended(tx, MOST + 1)]
    late = sorted((at, named(work.kind, work.key)) for at, work in times if at is not None and at < before)
    ids = tuple(name for _, name in late)
    return LateRows(ids=ids[:MOST], since=late[0][0] if late else None, has_more=len(ids) > MOST)


# the bus, channels, keys, processes


@dataclass(frozen=True, kw_only=True, slots=True)
class CursorDelay:
    """`oldest`: when the first row of the journal was written that is behind the cursor."""

    oldest: datetime | None
    failures: int = 0
    error: str | None = None
    error_at: datetime | None = None


def delay_of(tx: Tx, cursor: str = projection.NAME) -> CursorDelay:
    """Of the bus, or of another reader of the journal."""
    row = projection.load(tx, cursor)
    position = row.mark.position if row else 0
    unread = select(journal.c.at).where(journal.c.id > position).order_by(journal.c.id).limit(1)
    oldest = tx.execute(unread).scalar()
    if row is None:
        return CursorDelay(oldest=oldest)
    return CursorDelay(oldest=oldest, failures=row.failures, error=row.error, error_at=row.error_at)


def failing_channels(tx: Tx) -> Sequence[Row[str, int, datetime | None]]:
    """Without their errors, which may quote what was received."""
    failing = select(polls.c.name, polls.c.failures, polls.c.looked_at).where(polls.c.failures > 0)
    return tx.execute(failing.order_by(polls.c.name).limit(MOST)).all()


def expiring_keys(tx: Tx, now: datetime, until: datetime) -> Sequence[Row[str, str, datetime]]:
    soon = and_(caller_keys.c.revoked_at.is_(None), caller_keys.c.expires_at > now, caller_keys.c.expires_at <= until)
    rows = select(caller_keys.c.id, caller_keys.c.name, caller_keys.c.expires_at).where(soon)
    return tx.execute(rows.order_by(caller_keys.c.expires_at).limit(MOST)).all()


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenProcess:
    id: str
    queues: str | None  # with commas; None: not known
    version: str | None
    agents: Mapping[str, str] | None  # the digest of each agent, by name; None: not known
    seen_at: datetime  # by its own clock
    gone_at: datetime | None


def processes_on_record(tx: Tx) -> list[SeenProcess]:
    """Those that went lately too."""
    columns = [processes.c[field.name] for field in fields(SeenProcess)]
    return [SeenProcess(**row) for row in tx.execute(select(*columns).order_by(processes.c.id)).mappings()]
