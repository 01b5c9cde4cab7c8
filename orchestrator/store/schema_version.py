"""The schema is brought up to date by one command, forward only; and every process asks for its version before it
works.

Chordage may live in the database of an application. On PostgreSQL its tables stand in a schema of their own, and its
version in a table that the application's Alembic does not know. Nothing that is there already is ever changed by the
first migration: tables that are not ours, or those of an earlier pre-release, are told of and left alone.

A checksum of the schema as the code has it: `migrate` notes it in the database, and whoever starts compares it.

The number of the version does not tell all while versions are still edited in place. What is summed up is what the
schema says (columns, constraints, indexes, triggers), not the SQL that makes it: releases of SQLAlchemy may write that
differently.
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
from chordage.orchestrator.store.database import Store, Tx
from chordage.orchestrator.store.schema import metadata, trigger_statements

ADVISORY_LOCK = 0x63686F7264  # any number that nobody else uses
VERSIONS = Path(__file__).parent / "migrations" / "versions"
VERSION_TABLE = "chordage_version"
# Alembic makes its own of one column, where it finds none.
versions = Table(
    VERSION_TABLE, MetaData(), Column("version_num", String(32), primary_key=True), Column("checksum", String(64))
)
# What stood side by side when the version was still kept in Alembic's own table.
PRE_RELEASE_TABLES = {"alembic_version", "turns", "journal", "suspensions", "plugin_state"}
ALTERNATIVES = "an empty database in CHORDAGE_DATABASE_URL, or on PostgreSQL another schema in CHORDAGE_DATABASE_SCHEMA"


class StoredVersion(NamedTuple):
    """What the database says of itself."""

    version: str
    checksum: str | None


def newest() -> str:
    return max(_known())


def _known() -> set[str]:
    """The number of each version stands in the name of its file. Alembic would load them all to tell, in every process
    that starts.
    """
    return {found[1] for file in VERSIONS.iterdir() if (found := re.match(r"v(\d+)_.*\.py$", file.name))}


def current(store: Store) -> str | None:
    with store.read() as tx:
        standing = _stored_version(tx)
        return standing.version if standing else None


def upgrade(store: Store) -> tuple[str | None, str]:
    """From which version to which. Several may call at once: they go one by one, and the later find nothing to do."""
    with store.unlimited() as tx:
        if tx.dialect.name == "postgresql":
            tx.execute(text(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})"))
            tx.execute(text("SET LOCAL lock_timeout = '10s'"))  # who waits for a table keeps everybody behind from it
            _make_schema(tx)
        standing = _stored_version(tx)
        if standing is None:
            _refuse_what_is_there(tx)
            versions.create(tx, checkfirst=False)
        elif standing.version not in _known() or standing.version == newest():
            _check(tx, standing)
            return standing.version, standing.version
        _run_alembic(tx)
        tx.execute(update(versions).values(checksum=checksum(tx.dialect.name)))
    return standing.version if standing else None, newest()


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
    with store.read() as tx:
        standing = _stored_version(tx)
        if standing is None:
            _refuse_what_is_there(tx)
            raise WrongSchema("the database is empty: run `chordage migrate`")
        _check(tx, standing)


def _check(tx: Tx, standing: StoredVersion) -> None:
    found, wanted = standing.version, newest()
    if found == wanted and standing.checksum == checksum(tx.dialect.name):
        return
    if found == wanted:
        raise WrongSchema(
            f"the database was made by an earlier pre-release of chordage: it is at schema {found}, and its tables are "
            f"not those of this version. Nothing was changed; give {ALTERNATIVES}, or use the chordage that made it"
        )
    if found in _known():
        raise WrongSchema(f"the database is at schema {found}, this code needs {wanted}: run `chordage migrate`")
    if found.isdigit() and int(found) == int(wanted) + 1:
        return  # the next release has migrated already; this one works on it until it is replaced
    raise WrongSchema(
        f"the database is at schema {found}, which this code (at {wanted}) does not know: update chordage"
    )


def _stored_version(tx: Tx) -> StoredVersion | None:
    """None: we were never here."""
    if VERSION_TABLE not in _tables(tx, _schema(tx)):
        return None
    row = tx.execute(select(versions)).first()
    return None if row is None else StoredVersion(version=row.version_num, checksum=row.checksum)


def _refuse_what_is_there(tx: Tx) -> None:
    schema = _schema(tx)
    for one in dict.fromkeys((schema, "public")):
        if _tables(tx, one) >= PRE_RELEASE_TABLES:
            where = f" (schema {one})" if one else ""
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
        found = tx.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = :schema"), {"schema": schema})
    else:
        found = tx.execute(
            text("SELECT name FROM sqlite_master WHERE type = 'table' AND :schema = ''"), {"schema": schema}
        )
    return set(found.scalars())


def _schema(tx: Tx) -> str:
    """In which our tables stand: the first of the search path. Empty on SQLite."""
    if tx.dialect.name != "postgresql":
        return ""
    path = "SELECT (parse_ident(split_part(current_setting('search_path'), ',', 1)))[1]"
    name: str = tx.execute(text(path)).scalar_one()
    if name == "$user":
        raise ConfigError(
            "PostgreSQL does not know in which schema our tables stand: what connects us to it drops the start-up "
            "option search_path. Let the pooler pass options on (docs/how-to/operations.md, PostgreSQL)"
        )
    return name


def _make_schema(tx: Tx) -> None:
    name = _schema(tx)
    if tx.execute(text("SELECT to_regnamespace(quote_ident(:name)) IS NOT NULL"), {"name": name}).scalar():
        return
    user, database = tx.execute(text("SELECT current_user, current_database()")).one()
    if not tx.execute(text("SELECT has_database_privilege(current_database(), 'CREATE')")).scalar():
        raise ConfigError(
            f"account {user} may not make the schema {name} in database {database}: have its owner say "
            f"`CREATE SCHEMA {name} AUTHORIZATION {user}`, then run `chordage migrate` again"
        )
    quoted = tx.dialect.identifier_preparer.quote(name)
    tx.execute(text(f"CREATE SCHEMA {quoted}"))


DIALECTS: dict[str, Dialect] = {"postgresql": postgresql.dialect(), "sqlite": sqlite.dialect()}  # type: ignore[no-untyped-call]  # has no types


@cache
def checksum(dialect: str) -> str:
    """Of the schema on the database of this kind."""
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
