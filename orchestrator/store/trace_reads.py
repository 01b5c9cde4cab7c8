"""What `trace` reads: the row of a message with all its columns, the turns ahead of it, what was sent for it, and what
the spans of its run are made of.

Rows are returned as they are, so a column that another version has or lacks changes nothing here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import func, or_, select, tuple_

from chordage.orchestrator.core.approvals import Why
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.schema import (
    calls,
    decisions,
    journal,
    outbox,
    projection,
    runs,
    suspensions,
    takeovers,
    turns,
)

TraceRow = dict[str, Any]

WINDOW = 100  # how many arrivals before a message may be ahead of it
_AHEAD = [turns.c[name] for name in ("id", "arrival", "status", "disposition", "run_id", "started_at", "done_at")]


def turn_row(tx: Tx, turn_id: str) -> TraceRow | None:
    row = tx.execute(select(turns).where(turns.c.id == turn_id)).mappings().first()
    return dict(row) if row else None


def ahead(tx: Tx, row: Mapping[str, Any]) -> list[TraceRow]:
    """The turns of its thread that came before it and were not done when it came; the nearest last."""
    arrival: int = row["arrival"]
    earlier = (
        select(*_AHEAD)
        .where(
            turns.c.thread_id == row["thread_id"],
            turns.c.arrival < arrival,
            turns.c.arrival >= arrival - WINDOW,
            or_(turns.c.done_at.is_(None), turns.c.done_at > row["queued_at"]),
        )
        .order_by(turns.c.arrival)
    )
    return [dict(ahead_of_it) for ahead_of_it in tx.execute(earlier).mappings()]


def deliveries_of(tx: Tx, turn_id: str) -> list[TraceRow]:
    return [dict(row) for row in tx.execute(select(outbox).where(outbox.c.turn_id == turn_id)).mappings()]


def notes(tx: Tx, ids: Collection[str]) -> list[tuple[str, str, int]]:
    """The notes that triggers wrote into the journal under these ids: the id, the kind and the position."""
    matching = select(journal.c.run_id, journal.c.kind, journal.c.id).where(journal.c.run_id.in_(sorted(ids)))
    return [(row.run_id, row.kind, row.id) for row in tx.execute(matching)]


def on_the_bus(tx: Tx) -> int | None:
    """Up to which position the journal is on the bus. None: nothing was ever copied."""
    return tx.execute(select(projection.c.position).where(projection.c.name == "bus")).scalar()


def suspensions_of(tx: Tx, call_ids: Collection[str]) -> list[str]:
    """The questions about these calls that are the newest, or were answered."""
    wanted = sorted(call_ids)
    if not wanted:
        return []
    newest = select(calls.c.suspension_id).where(calls.c.id.in_(wanted), calls.c.suspension_id.is_not(None))
    answered = select(decisions.c.suspension_id).where(decisions.c.call_id.in_(wanted))
    return sorted({*tx.execute(newest).scalars(), *tx.execute(answered).scalars()})


def call_of(tx: Tx, suspension_ids: Collection[str]) -> dict[str, str]:
    """The call that each of these questions is about."""
    matching = select(suspensions.c.id, suspensions.c.call_id).where(suspensions.c.id.in_(sorted(suspension_ids)))
    return {row.id: row.call_id for row in tx.execute(matching)}


def latest_on(tx: Tx, thread_id: str) -> str | None:
    newest = select(turns.c.id).where(turns.c.thread_id == thread_id).order_by(turns.c.arrival.desc()).limit(1)
    return tx.execute(newest).scalar()


def with_dedupe_key(tx: Tx, key: str, *, agent: str | None, source: str | None) -> list[TraceRow]:
    """Turns with this key, which is unique within an agent and a source. With both it is one look-up in the index."""
    scopes = [(agent, source)] if agent and source else _scopes(tx)
    rows: list[TraceRow] = []
    for of_agent, of_source in scopes:
        if agent in {None, of_agent} and source in {None, of_source}:
            rows += _keyed(tx, of_agent, of_source, key)
    return rows


def _keyed(tx: Tx, agent: str, source: str, key: str) -> Sequence[TraceRow]:
    matching = select(turns.c.id, turns.c.agent, turns.c.source).where(
        turns.c.agent == agent, turns.c.source == source, turns.c.dedupe_key == key
    )
    return [dict(row) for row in tx.execute(matching).mappings()]


def _scopes(tx: Tx) -> Iterator[tuple[str, str]]:
    """The pairs of agent and source that have keys: one step in the index from each to the next."""
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


# What the spans of a run are made of, beside its journal and its calls.

_LEVEL = 500  # ids of one statement


def runs_below(tx: Tx, run_id: str) -> list[str]:
    """The run itself, and those of its sub-agents, level by level."""
    level, found = [run_id], [run_id]
    while level:
        below: list[str] = []
        for part in _parts(level):
            children = select(turns.c.run_id).where(turns.c.parent_run.in_(part), turns.c.run_id.is_not(None))
            below += tx.execute(children).scalars()
        level = sorted(set(below) - set(found))
        found += level
    return found


def children_of(tx: Tx, run_id: str) -> list[TraceRow]:
    """The turns of its sub-agents, in the order of their ids."""
    columns = (turns.c.run_id, turns.c.parent_call, turns.c.queued_at)
    children = select(*columns).where(turns.c.parent_run == run_id).order_by(turns.c.id)
    return [dict(row) for row in tx.execute(children).mappings()]


def questions_of(tx: Tx, run_id: str) -> list[TraceRow]:
    """Every question that a person was asked about a call of the run, with its decision."""
    asked = (
        select(
            *(suspensions.c[name] for name in ("id", "call_id", "why", "status", "prompt", "created_at")),
            *(decisions.c[name] for name in ("action", "payload", "reason", "decided_by")),
            decisions.c.id.label("decision_id"),
            decisions.c.created_at.label("decided_at"),
        )
        .outerjoin(decisions, decisions.c.suspension_id == suspensions.c.id)
        .where(suspensions.c.run_id == run_id, suspensions.c.why != Why.CHILD.value)
        .order_by(suspensions.c.created_at, suspensions.c.id)
    )
    return [dict(row) for row in tx.execute(asked).mappings()]


def traceparents_of(tx: Tx, turn_ids: Collection[str]) -> list[str]:
    """What the callers of these turns have sent, in the order of the turns."""
    sent = select(turns.c.traceparent).where(turns.c.id.in_(sorted(turn_ids)), turns.c.traceparent.is_not(None))
    return list(tx.execute(sent.order_by(turns.c.id)).scalars())


def latest_moment(tx: Tx, run_ids: Sequence[str]) -> datetime:
    """The last thing that is recorded of these runs."""
    decided = suspensions.join(decisions, decisions.c.suspension_id == suspensions.c.id)
    moments: list[datetime | None] = []
    for part in _parts(run_ids):
        for moment, of_run, rows in (
            (runs.c.started_at, runs.c.id, runs),
            (runs.c.ended_at, runs.c.id, runs),
            (journal.c.at, journal.c.run_id, journal),
            (calls.c.started_at, calls.c.run_id, calls),
            (calls.c.ended_at, calls.c.run_id, calls),
            (suspensions.c.created_at, suspensions.c.run_id, suspensions),
            (decisions.c.created_at, suspensions.c.run_id, decided),
            (takeovers.c.noticed_at, takeovers.c.run_id, takeovers),
            (turns.c.queued_at, turns.c.parent_run, turns),
        ):
            latest = select(func.max(moment)).select_from(rows).where(of_run.in_(part))
            moments.append(tx.execute(latest).scalar())
    return max(moment for moment in moments if moment is not None)


def _parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[first : first + _LEVEL] for first in range(0, len(ids), _LEVEL))
