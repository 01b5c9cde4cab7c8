"""The version of the schema in the database: `chordage migrate` brings it up to date, and every process checks it.

Migrations only go forward, in two steps, so that two releases can work side by side. `upgrade` expands: each version
adds what older code does not see. `contract` removes what only older code needs, when none of it works any more. The
database has the version to which it was expanded and the oldest whose code can still work with it; code whose own
version lies between them may start (ADR 69).

Indexes of tables that have rows are built after the transaction, while other processes write. Until they are complete
the checksum says so: no code of the new version starts, older code works on, and the next `upgrade` builds the rest.

Chordage may share the database of an application: on PostgreSQL its tables are in a schema
of their own, and its version is in a table that the application's Alembic does not know. The first migration changes
nothing that exists: it refuses tables that are not ours, and those of an earlier pre-release.

Until the first release the schema changes without a new version, so `migrate` also stores a checksum of the schema as
the code declares it (columns, constraints, indexes, triggers), and every start compares it. It does not cover the SQL
text, which releases of SQLAlchemy may write differently.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

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
from sqlalchemy.schema import CreateIndex, DropIndex

from chordage.orchestrator.core.errors import ConfigError, WrongSchema
from chordage.orchestrator.store import encryption
from chordage.orchestrator.store.database import APPLICATION, Store, Tx
from chordage.orchestrator.store.schema import metadata, processes, trigger_statements

ADVISORY_LOCK = 0x63686F7264  # any number that no other program uses
INDEX_LOCK = ADVISORY_LOCK + 1  # held while indexes are built
POLL = 0.2  # seconds between two tries to get it
VERSIONS = Path(__file__).parent / "migrations" / "versions"
VERSION_TABLE = "chordage_version"
FIRST = "0001"
UNFINISHED = "unfinished"  # in the place of a checksum: indexes are being built, or that was interrupted
# Alembic would create it with one column. The last one is not there in databases of the first version that was never
# contracted; then it is FIRST.
OLDEST = Column("oldest", String(32))
versions = Table(
    VERSION_TABLE,
    MetaData(),
    Column("version_num", String(32), primary_key=True),
    Column("checksum", String(64)),
    OLDEST,
)
# The tables of a pre-release, which kept its version in Alembic's own table.
PRE_RELEASE_TABLES = {"alembic_version", "turns", "journal", "suspensions", "plugin_state"}
ALTERNATIVES = "an empty database in CHORDAGE_DATABASE_URL, or on PostgreSQL another schema in CHORDAGE_DATABASE_SCHEMA"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredVersion:
    """The version that the database was migrated to. `oldest`: that of the oldest code that can work with it."""

    version: str
    checksum: str | None
    oldest: str


def newest() -> str:
    return max(_known())


def _known() -> dict[str, str]:
    """The modules by version, from the file names: Alembic would import each of them, in every process that starts."""
    names = (re.match(r"(v(\d+)_.*)\.py$", file.name) for file in VERSIONS.iterdir())
    return {name[2]: name[1] for name in names if name}


def current(store: Store) -> str | None:
    with store.read() as tx:
        stored = _stored_version(tx)
        return stored.version if stored else None


def stored_version(store: Store, *, note_key: bool = True) -> StoredVersion:
    """Raises what `check` raises."""
    check(store, note_key=note_key)
    with store.read() as tx:
        stored = _stored_version(tx)
    assert stored is not None
    return stored


def upgrade(store: Store) -> tuple[str | None, str]:
    """The version before and after. Several processes may call it at once: all but the first find nothing to do."""
    is_unfinished = False
    with store.unlimited() as tx:
        if tx.dialect.name == "postgresql":
            tx.execute(text(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})"))
            tx.execute(text("SET LOCAL lock_timeout = '10s'"))  # a wait for a table blocks all that come later
            _make_schema(tx)
        stored = _stored_version(tx)
        if stored is None:
            _refuse_what_is_there(tx)
            versions.create(tx, checkfirst=False)
        elif stored.version not in _known() or (stored.version == newest() and stored.checksum != UNFINISHED):
            _check(tx, stored)
            return stored.version, stored.version
        if stored is None or stored.version != newest():
            _run_alembic(tx)
        is_unfinished = store.builds_concurrently and bool(missing_indexes(tx))
        if not is_unfinished:
            _build_indexes(tx)
        made = UNFINISHED if is_unfinished else checksum(tx.dialect.name)
        tx.execute(update(versions).values(checksum=made))
    if is_unfinished:
        _build_concurrently(store)
    return stored.version if stored else None, newest()


def contract(store: Store, own: str) -> tuple[str, str]:
    """Remove what only code of older versions needs; from then on it is refused. The oldest version before and after.

    `own`: the release of this process. Raises WrongSchema while a process of another one lives. One that is started at
    this very moment may pass its own check before; it then fails at each statement that needs what is gone, changes
    nothing, and does not start again.
    """
    with store.unlimited() as tx:
        if tx.dialect.name == "postgresql":
            tx.execute(text(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})"))
            tx.execute(text("SET LOCAL lock_timeout = '10s'"))
        stored = _stored_version(tx)
        if stored is None:
            raise WrongSchema("the database is empty: run `chordage migrate`")
        _check(tx, stored)
        if stored.version != newest():
            raise WrongSchema(
                f"the database is at schema {stored.version}, and this code at {newest()}: run `chordage migrate "
                "--contract` with the version of chordage that migrated it"
            )
        if stored.oldest == newest():
            return newest(), newest()
        if others := other_releases(tx, own):
            raise WrongSchema(
                f"older code may still be at work: {listed(others)}. Nothing was changed; end these processes, "
                "then run `chordage migrate --contract` again"
            )
        if OLDEST.name not in _version_columns(tx):
            tx.execute(text(f"ALTER TABLE {VERSION_TABLE} ADD COLUMN {OLDEST.name} VARCHAR(32)"))
        _run_contractions(tx, stored.oldest)
        tx.execute(update(versions).values(oldest=newest()))
    return stored.oldest, newest()


def _run_contractions(tx: Tx, oldest: str) -> None:
    """`contract()` of each version after `oldest`, where it has one."""
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext

    with Operations.context(MigrationContext.configure(tx)):
        for version, name in sorted(_known().items()):
            module: Any = importlib.import_module(f"{__package__}.migrations.versions.{name}")
            if version > oldest and hasattr(module, "contract"):
                module.contract()


def other_releases(tx: Tx, own: str) -> dict[str, list[str]]:
    """Processes that carry out work with another release than this, or one that is not known, by release. On PostgreSQL
    also every other process that is connected, such as servers and commands.
    """
    others: dict[str, list[str]] = {}
    alive = select(processes.c.id, processes.c.version).where(processes.c.gone_at.is_(None))
    for row in tx.execute(alive.order_by(processes.c.id)):
        if row.version != own:
            others.setdefault(row.version or "not known", []).append(row.id)
    if tx.dialect.name == "postgresql":
        for name, number in tx.execute(_CONNECTED, {"name": f"{APPLICATION} %"}):
            release = name.removeprefix(f"{APPLICATION} ")
            if release != own:
                others.setdefault(release, []).append(f"{number} connections")
    return others


_CONNECTED = text(
    "SELECT application_name, count(*) FROM pg_stat_activity WHERE datname = current_database() "
    "AND application_name LIKE :name GROUP BY 1 ORDER BY 1"
)


def listed(others: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{release} in {', '.join(ids)}" for release, ids in sorted(others.items()))


def described(stored: StoredVersion, others: Mapping[str, Sequence[str]]) -> str:
    """For operators: which code can work with the database, and whether it may be contracted."""
    if stored.version == stored.oldest:  # and no other, so it is that of this code
        return stored.version
    reach = f"{stored.version}, for code of {stored.oldest} and newer"
    if stored.version != newest():
        return f"{reach}; this code is of {newest()}"
    return f"{reach}; to contract, end {listed(others)}" if others else f"{reach}; no older code is at work"


def missing_indexes(tx: Tx) -> list[Index]:
    """Of the schema: not there, or not used by PostgreSQL because building them failed."""
    if tx.dialect.name == "postgresql":
        usable = text(
            "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = current_schema() AND i.indisvalid"
        )
    else:
        usable = text("SELECT name FROM sqlite_master WHERE type = 'index'")
    there = set(tx.execute(usable).scalars())
    indexes = {str(index.name): index for table in metadata.tables.values() for index in table.indexes}
    return [indexes[name] for name in sorted(indexes.keys() - there)]


def statements_for(index: Index, dialect: Dialect) -> tuple[str, str]:
    """They drop what is left of it, and make it; on PostgreSQL writers need not wait."""
    dropped = str(DropIndex(index, if_exists=True).compile(dialect=dialect))
    made = " ".join(str(CreateIndex(index).compile(dialect=dialect)).split())
    if dialect.name == "postgresql":
        made = made.replace(" INDEX ", " INDEX CONCURRENTLY ", 1)
    return " ".join(dropped.split()), made


def _build_indexes(tx: Tx) -> None:
    for index in missing_indexes(tx):
        tx.execute(DropIndex(index, if_exists=True))
        tx.execute(CreateIndex(index))


def _build_concurrently(store: Store) -> None:
    """PostgreSQL builds such an index outside any transaction, and waits for every transaction that has read before. So
    the lock is polled for: who waited for it would be waited for. It is held by a transaction that only ever held a
    snapshot for an instant, and ends with its process.
    """
    while not _built_under_lock(store):
        time.sleep(POLL)


def _built_under_lock(store: Store) -> bool:
    """False: another process has the lock."""
    with store.unlimited() as lock:
        if not lock.execute(text(f"SELECT pg_try_advisory_xact_lock({INDEX_LOCK})")).scalar():
            return False
        with store.autocommit() as tx:
            for index in missing_indexes(tx):
                for statement in statements_for(index, tx.dialect):
                    tx.exec_driver_sql(statement)
        unfinished = update(versions).where(versions.c.version_num == newest(), versions.c.checksum == UNFINISHED)
        lock.execute(unfinished.values(checksum=checksum(lock.dialect.name)))
    return True


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
    if version == wanted and stored.checksum == UNFINISHED:
        raise WrongSchema(
            f"the migration of the database to schema {version} has not ended: wait for the `chordage migrate` that "
            "runs, or run it again"
        )
    if version == wanted:
        raise WrongSchema(
            f"the database was made by an earlier pre-release of chordage: it is at schema {version}, and its tables "
            f"are not those of this version. Nothing was changed; give {ALTERNATIVES}, or use the chordage that made it"
        )
    if version in _known():
        raise WrongSchema(f"the database is at schema {version}, this code needs {wanted}: run `chordage migrate`")
    if not version.isdigit():
        raise WrongSchema(
            f"the database is at schema {version}, which this code (at {wanted}) does not know: update chordage"
        )
    if stored.oldest > wanted:
        raise WrongSchema(
            f"the database is at schema {version} and takes code of schema {stored.oldest} and newer; this code is at "
            f"{wanted}: update chordage"
        )
    # A newer release has expanded it already; this one works on it until it is replaced.


def _stored_version(tx: Tx) -> StoredVersion | None:
    """None: the database was never migrated."""
    if VERSION_TABLE not in _tables(tx, _schema(tx)):
        return None
    row = tx.execute(text(f"SELECT * FROM {VERSION_TABLE}")).mappings().first()  # noqa: S608 - a constant
    if row is None:
        return None
    return StoredVersion(version=row["version_num"], checksum=row["checksum"], oldest=row.get(OLDEST.name) or FIRST)


def _version_columns(tx: Tx) -> set[str]:
    return set(tx.execute(text(f"SELECT * FROM {VERSION_TABLE}")).keys())  # noqa: S608 - a constant


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
