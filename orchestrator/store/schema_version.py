"""The version of the schema in the database: `chordage migrate` brings it up to date, and every process checks it.

Migrations only go forward. Chordage may share the database of an application: on PostgreSQL its tables are in a schema
of their own, and its version is in a table that the application's Alembic does not know. The first migration changes
nothing that exists: it refuses tables that are not ours, and those of an earlier pre-release.

Until the first release the schema changes without a new version, so `migrate` also stores a checksum of the schema as
the code declares it (columns, constraints, indexes, triggers), and every start compares it. It does not cover the SQL
text, which releases of SQLAlchemy may write differently.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import (
    CheckConstraint,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    MetaData,
    String,
    Table,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Dialect

from chordage.orchestrator.core.errors import ConfigError, WrongSchema
from chordage.orchestrator.store import encryption
from chordage.orchestrator.store.database import Store, Tx
from chordage.orchestrator.store.schema import metadata, trigger_statements

ADVISORY_LOCK = 0x63686F7264  # any number that no other program uses
VERSIONS = Path(__file__).parent / "migrations" / "versions"
VERSION_TABLE = "chordage_version"
# Alembic would create it with one column.
versions = Table(
    VERSION_TABLE, MetaData(), Column("version_num", String(32), primary_key=True), Column("checksum", String(64))
)
# The tables of a pre-release, which kept its version in Alembic's own table.
PRE_RELEASE_TABLES = {"alembic_version", "turns", "journal", "suspensions", "plugin_state"}
ALTERNATIVES = "an empty database in CHORDAGE_DATABASE_URL, or on PostgreSQL another schema in CHORDAGE_DATABASE_SCHEMA"


class StoredVersion(NamedTuple):
    """The version that the database was migrated to."""

    version: str
    checksum: str | None


def newest() -> str:
    return max(_known())


def _known() -> set[str]:
    """Read from the file names: Alembic would import every version, in every process that starts."""
    names = (re.match(r"v(\d+)_.*\.py$", file.name) for file in VERSIONS.iterdir())
    return {name[1] for name in names if name}


def current(store: Store) -> str | None:
    with store.read() as tx:
        stored = _stored_version(tx)
        return stored.version if stored else None


def upgrade(store: Store) -> tuple[str | None, str]:
    """The version before and after. Several processes may call it at once: all but the first find nothing to do."""
    with store.unlimited() as tx:
        if tx.dialect.name == "postgresql":
            tx.execute(text(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})"))
            tx.execute(text("SET LOCAL lock_timeout = '10s'"))  # a wait for a table blocks all that come later
            _make_schema(tx)
        stored = _stored_version(tx)
        if stored is None:
            _refuse_what_is_there(tx)
            versions.create(tx, checkfirst=False)
        elif stored.version not in _known() or stored.version == newest():
            _check(tx, stored)
            return stored.version, stored.version
        _run_alembic(tx)
        tx.execute(update(versions).values(checksum=checksum(tx.dialect.name)))
    return stored.version if stored else None, newest()


def _run_alembic(tx: Tx) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "chordage.orchestrator.store:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = tx
    command.upgrade(config, "head")


def check(store: Store, *, note_key: bool = True) -> None:
    """Raises WrongSchema or WrongKey if this process cannot work with the database. `note_key`: the key of its cipher
    is noted, if it is a new one.
    """
    with store.read() as tx:
        stored = _stored_version(tx)
        if stored is None:
            _refuse_what_is_there(tx)
            raise WrongSchema("the database is empty: run `chordage migrate`")
        _check(tx, stored)
    encryption.check(store, note_key=note_key)


def _check(tx: Tx, stored: StoredVersion) -> None:
    version, wanted = stored.version, newest()
    if version == wanted and stored.checksum == checksum(tx.dialect.name):
        return
    if version == wanted:
        raise WrongSchema(
            f"the database was made by an earlier pre-release of chordage: it is at schema {version}, and its tables "
            f"are not those of this version. Nothing was changed; give {ALTERNATIVES}, or use the chordage that made it"
        )
    if version in _known():
        raise WrongSchema(f"the database is at schema {version}, this code needs {wanted}: run `chordage migrate`")
    if version.isdigit() and int(version) == int(wanted) + 1:
        return  # the next release has migrated already; this one works on it until it is replaced
    raise WrongSchema(
        f"the database is at schema {version}, which this code (at {wanted}) does not know: update chordage"
    )


def _stored_version(tx: Tx) -> StoredVersion | None:
    """None: the database was never migrated."""
    if VERSION_TABLE not in _tables(tx, _schema(tx)):
        return None
    row = tx.execute(select(versions)).first()
    return None if row is None else StoredVersion(version=row.version_num, checksum=row.checksum)


def _refuse_what_is_there(tx: Tx) -> None:
    schema = _schema(tx)
    for name in dict.fromkeys((schema, "public")):
        if _tables(tx, name) >= PRE_RELEASE_TABLES:
            where = f" (schema {name})" if name else ""
            raise WrongSchema(
                f"the database was made by an earlier pre-release of chordage{where}, whose tables this version cannot "
                f"use. Nothing was changed; give {ALTERNATIVES}, or drop those tables"
            )
    others = sorted(_tables(tx, schema) & set(metadata.tables))
    if others:
        where = f"schema {schema} of the database" if schema else "the database"
        raise WrongSchema(
            f"{where} has tables of another application: {', '.join(others)}. Nothing was changed; give {ALTERNATIVES}"
        )


def _tables(tx: Tx, schema: str) -> set[str]:
    if tx.dialect.name == "postgresql":
        names = text("SELECT tablename FROM pg_tables WHERE schemaname = :schema")
    else:
        names = text("SELECT name FROM sqlite_master WHERE type = 'table' AND :schema = ''")
    return set(tx.execute(names, {"schema": schema}).scalars())


def _schema(tx: Tx) -> str:
    """The schema of our tables: the first in the search path. Empty on SQLite."""
    if tx.dialect.name != "postgresql":
        return ""
    path = "SELECT (parse_ident(split_part(current_setting('search_path'), ',', 1)))[1]"
    name: str = tx.execute(text(path)).scalar_one()
    if name == "$user":
        raise ConfigError(
            "PostgreSQL does not know the schema of our tables: a pooler drops the start-up option search_path. Let it "
            "pass options on, or set CHORDAGE_PIPELINE=off (docs/how-to/operations.md, PostgreSQL)"
        )
    return name


def _make_schema(tx: Tx) -> None:
    name = _schema(tx)
    if tx.execute(text("SELECT to_regnamespace(quote_ident(:name)) IS NOT NULL"), {"name": name}).scalar():
        return
    user, database = tx.execute(text("SELECT current_user, current_database()")).one()
    if not tx.execute(text("SELECT has_database_privilege(current_database(), 'CREATE')")).scalar():
        raise ConfigError(
            f"account {user} may not create the schema {name} in database {database}: have its owner run "
            f"`CREATE SCHEMA {name} AUTHORIZATION {user}`, then run `chordage migrate` again"
        )
    quoted = tx.dialect.identifier_preparer.quote(name)
    tx.execute(text(f"CREATE SCHEMA {quoted}"))


DIALECTS: dict[str, Dialect] = {"postgresql": postgresql.dialect(), "sqlite": sqlite.dialect()}  # type: ignore[no-untyped-call]  # has no types


@cache
def checksum(dialect: str) -> str:
    """Of the schema on a database of this kind."""
    return checksum_of(metadata, trigger_statements(dialect), DIALECTS[dialect])


def checksum_of(metadata: MetaData, triggers: list[str], dialect: Dialect) -> str:
    lines = [line for table in metadata.tables.values() for line in _table_lines(table, dialect)]
    return hashlib.sha256("\n".join(sorted([*lines, *triggers])).encode()).hexdigest()[:16]


def _table_lines(table: Table, dialect: Dialect) -> Iterator[str]:
    for column in table.columns:
        kind = column.type.compile(dialect=dialect)
        yield f"column {table.name}.{column.name} {kind} null {column.nullable} numbered {column.autoincrement}"
    for constraint in table.constraints:
        if isinstance(constraint, CheckConstraint):
            yield f"check {table.name} {constraint.sqltext}"
            continue
        columns = ", ".join(column.name for column in getattr(constraint, "columns", ()))
        points_to = ", ".join(element.target_fullname for element in _elements(constraint))
        yield f"{type(constraint).__name__} {table.name} ({columns}) {points_to}"
    for index in table.indexes:
        yield _index_line(index, table, dialect)


def _elements(constraint: object) -> Iterator[ForeignKey]:
    if isinstance(constraint, ForeignKeyConstraint):
        yield from constraint.elements


def _index_line(index: Index, table: Table, dialect: Dialect) -> str:
    columns = ", ".join(str(expression) for expression in index.expressions)
    where = index.dialect_options[dialect.name]["where"]
    return f"index {index.name} {table.name} ({columns}) unique {index.unique} where {where}"
