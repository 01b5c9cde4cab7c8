"""The table of the pulse: what is known of each task, chore and will. Its row is locked before any other."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Index, Integer, String, Table, Text, text

from chordage.orchestrator.store.schema import Id, metadata
from chordage.orchestrator.store.types import Moment

pulse = Table(
    "pulse",
    metadata,
    Column("kind", String(10), primary_key=True),
    Column("key", Id, primary_key=True),
    Column("path", Text, nullable=False),
    Column("rev", Integer, nullable=False),  # counts the writes: the guard of each
    Column("state", String(10), nullable=False),
    Column("paused", Integer, nullable=False),
    Column("seen", String(64)),  # hash of the text that its newest turn was given
    Column("own", String(64)),  # hash of what the tools of that turn made of it
    Column("schedule", Text),
    Column("anchor", Moment),
    Column("next_due", Moment),
    Column("last_slot", Moment),
    Column("count", Integer, nullable=False),
    Column("turn_id", Id),
    Column("open", Integer, nullable=False),  # 1: the end of that turn was not noted yet
    Column("started_at", Moment),
    Column("ended_at", Moment),
    Column("disposition", String(20)),
    Column("run_id", Id),
    Column("gone_at", Moment),
    CheckConstraint("kind IN ('chore', 'task', 'will')", name="kind"),
    CheckConstraint("state IN ('done', 'gone', 'live')", name="state"),
    CheckConstraint("open = 0 OR turn_id IS NOT NULL", name="open_has_turn"),
)
_DUE = text("state = 'live' AND paused = 0 AND open = 0")
Index("ix_pulse_due", pulse.c.next_due, sqlite_where=_DUE, postgresql_where=_DUE)
_UNDER_WAY = text("open = 1")
Index("ix_pulse_open", pulse.c.turn_id, sqlite_where=_UNDER_WAY, postgresql_where=_UNDER_WAY)
_GONE = text("state = 'gone'")
Index("ix_pulse_gone", pulse.c.gone_at, sqlite_where=_GONE, postgresql_where=_GONE)
