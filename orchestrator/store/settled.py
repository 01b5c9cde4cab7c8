"""Which journal rows may be copied: those before which nothing can appear any more.

PostgreSQL hands out ids before the rows become visible, so a row may commit behind others with greater ids. Failure: a
reader that has passed the greater id never sees it. Mechanism: whoever inserts into the journal holds a lock on the
table from before it takes an id until it has committed or is gone. So rows without a gap in their ids are settled; and
of those behind a gap, once everybody has let go who held that lock when the greatest of them was seen. It is what
CREATE INDEX CONCURRENTLY does. It does not look at transaction ids: a long transaction of somebody else holds nothing
up, unless it has written into the journal; nor does a vacuum, which locks the table in another mode.
"""

from __future__ import annotations

import time

from sqlalchemy import text

from chordage.orchestrator.store.tx import Store

PAUSES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)

_WRITERS = text(
    "SELECT virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND granted AND pid <> pg_backend_pid() "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND relation = 'journal'::regclass AND mode = 'RowExclusiveLock'"
)


def everybody_let_go(store: Store) -> bool:
    """Whether all who may have had an unseen row when this was called are through. False: somebody takes long."""
    if not store.is_postgres:
        return True  # one writer at a time: ids become visible in their order
    left = _writers(store)
    for pause in PAUSES:
        if not left:
            return True
        time.sleep(pause)
        left &= _writers(store)
    return not left


def _writers(store: Store) -> set[str]:
    with store.read() as tx:
        return set(tx.execute(_WRITERS).scalars())
