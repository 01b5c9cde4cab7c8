"""The schema is brought up to date by one command, forward only; and every process asks for its version before it
works.
"""

from __future__ import annotations

import re
from pathlib import Path

from sqlalchemy import inspect, text

from chordage.orchestrator.core.errors import WrongSchema
from chordage.orchestrator.store import schema_notes  # noqa: F401 - its triggers belong to the schema too
from chordage.orchestrator.store.tx import Store, Tx

ADVISORY_LOCK = 0x63686F7264  # any number that nobody else uses
VERSIONS = Path(__file__).parent / "migrations" / "versions"


def newest() -> str:
    return max(_known())


def _known() -> set[str]:
    """The number of each version stands in the name of its file. Alembic would load them all to tell, in every process
    that starts.
    """
    return {found[1] for file in VERSIONS.iterdir() if (found := re.match(r"v(\d+)_.*\.py$", file.name))}


def current(store: Store) -> str | None:
    with store.read() as tx:
        if not inspect(tx).has_table("alembic_version"):
            return None
        found: str | None = tx.execute(text("SELECT version_num FROM alembic_version")).scalar()
        return found


def upgrade(store: Store) -> tuple[str | None, str]:
    """From which version to which. Several may call at once: they go one by one, and the later find nothing to do."""
    before = current(store)
    with store.write() as tx:
        if tx.dialect.name == "postgresql":
            tx.execute(text(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})"))
        _run_alembic(tx)
    return before, newest()


def _run_alembic(tx: Tx) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "chordage.orchestrator.store:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = tx
    command.upgrade(config, "head")


def check(store: Store) -> None:
    """Raises WrongSchema when this code cannot work with the database as it is."""
    found, wanted = current(store), newest()
    if found == wanted:
        return
    if found is None:
        raise WrongSchema("the database is empty: run `chordage migrate`")
    if found in _known():
        raise WrongSchema(f"the database is at schema {found}, this code needs {wanted}: run `chordage migrate`")
    if found.isdigit() and int(found) == int(wanted) + 1:
        return  # the next release has migrated already; this one works on it until it is replaced
    raise WrongSchema(
        f"the database is at schema {found}, which this code (at {wanted}) does not know: update chordage"
    )
