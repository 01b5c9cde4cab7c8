"""What the processes of the HTTP server share for the console: the secret that signs its sessions, and one-time links.

A link is stored as its hash, and taking it deletes its row: of several requests with the same link one gets in.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, insert, select

from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.schema import login_links, web_secrets
from chordage.orchestrator.store.statements import insert_or

SESSIONS = "sessions"


def session_secret(tx: Tx) -> str | None:
    return tx.execute(select(web_secrets.c.value).where(web_secrets.c.name == SESSIONS)).scalar()


def keep_session_secret(tx: Tx, new: str) -> str:
    """The secret that is kept: of several processes that bring one, the first is kept."""
    added = insert_or(tx.dialect.name, web_secrets).values(name=SESSIONS, value=new)
    tx.execute(added.on_conflict_do_nothing(index_elements=["name"]))
    kept: str = tx.execute(select(web_secrets.c.value).where(web_secrets.c.name == SESSIONS)).scalar_one()
    return kept


def add_link(tx: Tx, link_hash: str, *, now: datetime, expires_at: datetime) -> None:
    tx.execute(delete(login_links).where(login_links.c.expires_at <= now))
    tx.execute(insert(login_links), {"hash": link_hash, "expires_at": expires_at})


def take_link(tx: Tx, link_hash: str, now: datetime) -> bool:
    """False: it was used, has expired, or was never made."""
    taken = delete(login_links).where(login_links.c.hash == link_hash, login_links.c.expires_at > now)
    return tx.execute(taken).rowcount == 1
