"""Lock waits in PostgreSQL, so that a test continues as soon as a transaction waits for a lock."""

from __future__ import annotations

from sqlalchemy import text

from chordage.orchestrator.store.database import Store

BLOCKED = text(
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0"
)


def has_lock_waits(store: Store) -> bool:
    with store.read() as tx:
        return bool(tx.execute(BLOCKED).scalar_one())
