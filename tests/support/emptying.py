"""A PostgreSQL database as it was when it had just been migrated, in a hundredth of the time that a new one takes."""

from __future__ import annotations

import psycopg
from sqlalchemy import make_url

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.store.database import SCHEMA
from chordage.orchestrator.store.schema import groups, metadata

MANY = 2_000  # dead rows slow the tests down that come after
ALONE = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)
INDEXES = "SELECT count(*) FROM pg_indexes WHERE schemaname = current_schema()"
TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
COUNTERS = "SELECT sequencename FROM pg_sequences WHERE schemaname = current_schema() AND last_value IS NOT NULL"
Shape = tuple[frozenset[str], int]


def connected(url: str) -> psycopg.Connection:
    """Kept for the time in which the database is emptied again and again: what a connection knows of its tables and
    indexes takes longer to read than all of them to empty.
    """
    address = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    options = f"-c search_path={SCHEMA}"
    return psycopg.connect(address, autocommit=True, connect_timeout=60, options=options)


def emptied(connection: psycopg.Connection, shape: Shape) -> bool:
    """False where it is better thrown away: not as the migration left it, crowded, or not to be reached."""
    try:
        connection.execute(ALONE)
        return shape_of(connection) == shape and _empty(connection)
    except psycopg.Error:
        return False


def shape_of(connection: psycopg.Connection) -> Shape:
    """To see whether a test has changed more than rows."""
    tables = frozenset(name for (name,) in connection.execute(TABLES))
    found = connection.execute(INDEXES).fetchone()
    assert found is not None
    return tables, found[0]


def _empty(connection: psycopg.Connection) -> bool:
    filled = [table for table in reversed(metadata.sorted_tables) if table is not groups]
    counters = connection.execute(COUNTERS).fetchall()
    with connection.pipeline():  # one trip for all of it
        deleted = [connection.execute(f'DELETE FROM "{table.name}"') for table in filled]
        for (name,) in counters:
            connection.execute(f'ALTER SEQUENCE "{name}" RESTART')
        kept = connection.execute("UPDATE groups SET budget = NULL, served = NULL, hand_on = 0")
    return sum(table.rowcount for table in deleted) < MANY and kept.rowcount == len(Group)
