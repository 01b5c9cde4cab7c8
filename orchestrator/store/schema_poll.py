"""The tables of polled channels: where each binding stands, and the messages of theirs that became no turn."""

from __future__ import annotations

from sqlalchemy import Column, Index, Integer, String, Table, Text, UniqueConstraint

from chordage.orchestrator.store.schema import metadata
from chordage.orchestrator.store.types import Moment, Serial

polls = Table(
    "polls",
    metadata,
    Column("name", String(200), primary_key=True),  # of the binding in channels.toml
    Column("cursor", Text),
    Column("revision", Integer, nullable=False),  # counts what was stored: whoever read an older one stores nothing
    Column("holder", String(200)),  # the process that looks at it
    Column("lease_until", Moment),
    Column("looked_at", Moment),
    Column("stored_at", Moment),
    Column("failures", Integer, nullable=False),  # in a row
    Column("error", Text),
    Column("next_look", Moment),  # not before this, because it failed
    Column("taken", Integer, nullable=False),  # messages that became turns
    Column("doubled", Integer, nullable=False),  # that came again
    Column("refused", Integer, nullable=False),
    Column("passed_over", Integer, nullable=False),  # that are none for us
)

refusals = Table(
    "refusals",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("source", String(200), nullable=False),
    Column("key", String(200), nullable=False),
    Column("why", Text, nullable=False),
    Column("excerpt", Text, nullable=False),
    Column("at", Moment, nullable=False),
    UniqueConstraint("source", "key"),  # refused once, however often it is handed out
    sqlite_autoincrement=True,
)

Index("ix_refusals_recent", refusals.c.source, refusals.c.id)
