"""What `trace` asks: one message's row with all its columns, who was ahead of it, and what has left for it.

Rows are handed on as they are: a column that another version has, or has not, changes nothing here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import func, or_, select, tuple_

from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.schema import calls, decisions, journal, metadata, outbox, suspensions, turns

TraceRow = dict[str, Any]

WINDOW = 100  # how many arrivals before a message are looked at for who was ahead of it
_AHEAD = [turns.c[name] for name in ("id", "arrival", "status", "disposition", "run_id", "started_at", "done_at")]


def turn_row(tx: Tx, turn_id: str) -> TraceRow | None:
    row = tx.execute(select(turns).where(turns.c.id == turn_id)).mappings().first()
    return dict(row) if row else None


def ahead(tx: Tx, row: Mapping[str, Any]) -> list[TraceRow]:
    """The turns of its thread that had come before and were not done when it came; the nearest last."""
    arrival: int = row["arrival"]
    found = (
        select(*_AHEAD)
        .where(
            turns.c.thread_id == row["thread_id"],
            turns.c.arrival < arrival,
            turns.c.arrival >= arrival - WINDOW,
            or_(turns.c.done_at.is_(None), turns.c.done_at > row["queued_at"]),
        )
        .order_by(turns.c.arrival)
    )
    return [dict(one) for one in tx.execute(found).mappings()]


def deliveries_of(tx: Tx, turn_id: str) -> list[TraceRow]:
    """What was to be sent for this turn: its row in the outbox, and what became of it where that has a table."""
    found = tx.execute(select(outbox).where(outbox.c.turn_id == turn_id)).mappings()
    return [dict(row) for row in found] + [row for name in ("deliveries",) for row in _of_table(tx, name, turn_id)]


def _of_table(tx: Tx, name: str, turn_id: str) -> Iterator[TraceRow]:
    table = metadata.tables.get(name)
    if table is None or "turn_id" not in table.c:
        return
    yield from (dict(row) for row in tx.execute(select(table).where(table.c.turn_id == turn_id)).mappings())


def notes(tx: Tx, ids: Collection[str]) -> list[tuple[str, str, int]]:
    """What the journal notes beside its checkpoints under these ids: the id, the kind and the position."""
    found = select(journal.c.run_id, journal.c.kind, journal.c.id).where(journal.c.run_id.in_(sorted(ids)))
    return [(row.run_id, row.kind, row.id) for row in tx.execute(found)]


def on_the_bus(tx: Tx) -> int | None:
    """Up to which position the journal is on the bus; None where nothing is said of that."""
    table = metadata.tables.get("projection")
    if table is None or "position" not in table.c:
        return None
    return tx.execute(select(func.max(table.c.position))).scalar()


def suspensions_of(tx: Tx, call_ids: Collection[str]) -> list[str]:
    """Every question about these calls that is the newest, or was answered."""
    wanted = sorted(call_ids)
    if not wanted:
        return []
    newest = select(calls.c.suspension_id).where(calls.c.id.in_(wanted), calls.c.suspension_id.is_not(None))
    answered = select(decisions.c.suspension_id).where(decisions.c.call_id.in_(wanted))
    found = {*tx.execute(newest).scalars(), *tx.execute(answered).scalars()}
    return sorted(found)


def call_of(tx: Tx, suspension_ids: Collection[str]) -> dict[str, str]:
    """Which call each of these questions is about."""
    found = select(suspensions.c.id, suspensions.c.call_id).where(suspensions.c.id.in_(sorted(suspension_ids)))
    return {row.id: row.call_id for row in tx.execute(found)}


def latest_on(tx: Tx, thread_id: str) -> str | None:
    found = select(turns.c.id).where(turns.c.thread_id == thread_id).order_by(turns.c.arrival.desc()).limit(1)
    return tx.execute(found).scalar()


def with_dedupe_key(tx: Tx, key: str, *, agent: str | None, source: str | None) -> list[TraceRow]:
    """Turns of this key; a key counts within an agent and a source. With both it is one look into the index."""
    scopes = [(agent, source)] if agent and source else _scopes(tx)
    found: list[TraceRow] = []
    for of_agent, of_source in scopes:
        if agent in {None, of_agent} and source in {None, of_source}:
            found += _keyed(tx, of_agent, of_source, key)
    return found


def _keyed(tx: Tx, agent: str, source: str, key: str) -> Sequence[TraceRow]:
    found = select(turns.c.id, turns.c.agent, turns.c.source).where(
        turns.c.agent == agent, turns.c.source == source, turns.c.dedupe_key == key
    )
    return [dict(row) for row in tx.execute(found).mappings()]


def _scopes(tx: Tx) -> Iterator[tuple[str, str]]:
    """The pairs of agent and source that have keys. From each to the next is one look: the index leads with them."""
    last = ("", "")
    scope = tuple_(turns.c.agent, turns.c.source)
    while True:
        following = (
            select(turns.c.agent, turns.c.source)
            .where(turns.c.dedupe_key.is_not(None), scope > last)
            .order_by(turns.c.agent, turns.c.source)
            .limit(1)
        )
        row = tx.execute(following).first()
        if row is None:
            return
        last = (row.agent, row.source)
        yield last
