"""Tickets for streams. Only a hash of each is kept, and taking one deletes its row: of several requests one gets in."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, insert, select

from chordage.orchestrator.core.logins import TicketHolder
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.schema import stream_tickets

FORGOTTEN = 100  # that are over, with each that is made


def add(tx: Tx, ticket_hash: str, path: str, holder: TicketHolder, *, now: datetime, expires_at: datetime) -> None:
    table = stream_tickets.c
    over = select(table.hash).where(table.expires_at <= now).order_by(table.expires_at).limit(FORGOTTEN)
    tx.execute(delete(stream_tickets).where(table.hash.in_(over)))
    whose = {"caller": holder.caller, "on_behalf": holder.user}
    tx.execute(insert(stream_tickets), {"hash": ticket_hash, "path": path, **whose, "expires_at": expires_at})


def take(tx: Tx, ticket_hash: str, path: str, now: datetime) -> TicketHolder | None:
    """None: it was used, has expired, is for another path, or was never made."""
    table = stream_tickets.c
    taken = delete(stream_tickets).where(table.hash == ticket_hash, table.path == path, table.expires_at > now)
    row = tx.execute(taken.returning(table.caller, table.on_behalf)).first()
    return None if row is None else TicketHolder(caller=row.caller, user=row.on_behalf)
