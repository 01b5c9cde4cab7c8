"""How many connections the database accepts, and how many are taken by all its clients."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text

from chordage.orchestrator.store.database import Store, Tx

# Each limit there may be, and what counts towards it. Reserved connections are for superusers and the like.
LIMITS = text("""
SELECT * FROM (
  SELECT 'max_connections of the server' AS named,
         current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
         - coalesce(current_setting('reserved_connections', true)::int, 0) AS at_most,
         (SELECT sum(numbackends) FROM pg_stat_database) AS taken
  UNION ALL
  SELECT 'the CONNECTION LIMIT of the database', datconnlimit,
         (SELECT numbackends FROM pg_stat_database s WHERE s.datid = d.oid)
    FROM pg_database d WHERE datname = current_database() AND datconnlimit >= 0
  UNION ALL
  SELECT 'the CONNECTION LIMIT of the account', rolconnlimit,
         (SELECT count(*) FROM pg_stat_activity WHERE usename = current_user)
    FROM pg_roles WHERE rolname = current_user AND rolconnlimit >= 0
) AS limits ORDER BY at_most - taken LIMIT 1
""")


@dataclass(frozen=True, kw_only=True, slots=True)
class Capacity:
    """The limit that is reached first."""

    named: str
    at_most: int
    taken: int

    @property
    def left(self) -> int:
        return self.at_most - self.taken


def capacity(store: Store) -> Capacity | None:
    """None: a file has no limit."""
    if not store.is_postgres:
        return None
    with store.read() as tx:
        return _capacity(tx)


def _capacity(tx: Tx) -> Capacity:
    row = tx.execute(LIMITS).one()
    return Capacity(
        named=row.named, at_most=row.at_most, taken=int(row.taken) - 1
    )  # without the connection of this statement
