"""The schema is brought up to date by one command, forward only; and every process asks for its version before it
works.
"""

from __future__ import annotations

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from chordage.orchestrator.core.errors import WrongSchema
from chordage.orchestrator.store import schema_notes  # noqa: F401 - its triggers belong to the schema too
from chordage.orchestrator.store.tx import Store

ADVISORY_LOCK = 0x63686F7264  # any number that nobody else uses


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", "chordage.orchestrator.store:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def newest() -> str:
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None
    return head


def current(store: Store) -> str | None:
    with store.read() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def upgrade(store: Store) -> tuple[str | None, str]:
    """From which version to which. Several may call at once: they go one by one, and the later find nothing to do."""
    before = current(store)
    with store.write() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})"))
        command.upgrade(_config(connection), "head")
    return before, newest()


def check(store: Store) -> None:
    """Raises WrongSchema when this code cannot work with the database as it is."""
    found, wanted = current(store), newest()
    if found == wanted:
        return
    if found is None:
        raise WrongSchema("the database is empty: run `chordage migrate`")
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if found in known:
        raise WrongSchema(f"the database is at schema {found}, this code needs {wanted}: run `chordage migrate`")
    if found.isdigit() and int(found) == int(wanted) + 1:
        return  # the next release has migrated already; this one works on it until it is replaced
    raise WrongSchema(
        f"the database is at schema {found}, which this code (at {wanted}) does not know: update chordage"
    )
