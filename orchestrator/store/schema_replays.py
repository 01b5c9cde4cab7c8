"""The table of signed bytes that were taken: by it a copy under another id is known again."""

from __future__ import annotations

from sqlalchemy import Column, Index, String, Table

from chordage.orchestrator.store.schema import Id, metadata
from chordage.orchestrator.store.types import Moment

replays = Table(
    "replays",
    metadata,
    Column("source", String(200), primary_key=True),  # as of its turn
    Column("digest", String(100), primary_key=True),  # of what was signed
    Column("turn_id", Id, nullable=False),
    Column("until", Moment, nullable=False),  # from then on the same bytes may be another delivery
)
Index("ix_replays_until", replays.c.until)
