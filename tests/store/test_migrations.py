"""The schema: what the migrations make is what the code believes in, in any number of processes at once."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    CheckConstraint,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    select,
    text,
)

from chordage.orchestrator import store as store_package
from chordage.orchestrator.core.errors import WrongSchema
from chordage.orchestrator.store import database, schema, schema_version
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.store.statements import PreparedStatement

OF_POSTGRES = """
SELECT 'column', table_name, column_name, data_type || ' ' || coalesce(character_maximum_length::text, '') || ' '
       || is_nullable || ' ' || coalesce(column_default, '') || is_identity
  FROM information_schema.columns WHERE table_schema = current_schema()
UNION ALL
SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid)
  FROM pg_constraint WHERE connamespace = current_schema()::regnamespace
UNION ALL
SELECT 'index', tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema()
UNION ALL
SELECT 'function', proname, proname, pg_get_functiondef(oid)
  FROM pg_proc WHERE pronamespace = current_schema()::regnamespace
UNION ALL
SELECT 'trigger', tgrelid::regclass::text, tgname, pg_get_triggerdef(t.oid)
  FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid
 WHERE c.relnamespace = current_schema()::regnamespace AND NOT tgisinternal
"""


@pytest.fixture
def empty(empty_database_url):
    store = Store(empty_database_url)
    yield store
    store.close()


def catalogue(store):
    """All there is: columns, constraints, and indexes with their predicates."""
    with store.read() as tx:
        if store.is_postgres:
            found = {tuple(row) for row in tx.execute(text(OF_POSTGRES))}
        else:
            rows = tx.execute(text("SELECT type, tbl_name, name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
            found = {(*row[:3], part) for row in rows for part in _parts(row.sql)}
    return {row for row in found if row[1] != "chordage_version"}


def _parts(sql):
    """The lines of a statement: columns and constraints in whatever order."""
    return {re.sub(r"\s+", " ", line).strip(" ,") for line in sql.splitlines() if line.strip(" ,()")}


def test_migrations_make_the_schema_of_the_code(store, empty):
    with empty.write() as tx:
        if empty.is_postgres:
            tx.execute(text("CREATE SCHEMA chordage"))
        schema.metadata.create_all(tx)

    assert catalogue(store) == catalogue(empty)


def test_first_version_is_written_out_before_a_second_one_is_added():
    """Until then it is made from schema.py, which always describes the newest version."""
    first = next(schema_version.VERSIONS.glob("v0001_*.py")).read_text()

    assert schema_version.newest() == "0001" or "store.schema" not in first


# SQLite does not say over which expression an index is; PostgreSQL does, and the same is compared there.
@pytest.mark.filterwarnings("ignore:Skipped unsupported reflection of expression-based index")
@pytest.mark.filterwarnings("ignore:autogenerate skipping metadata-specified expression-based index")
def test_nothing_is_left_to_generate(store):
    with store.read() as tx:
        context = MigrationContext.configure(tx, opts={"compare_type": True, "version_table": "chordage_version"})
        assert compare_metadata(context, schema.metadata) == []


def test_versions_read_from_file_names_equal_those_of_alembic():
    config = Config()
    config.set_main_option("script_location", "chordage.orchestrator.store:migrations")
    config.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(config)

    assert schema_version.newest() == scripts.get_current_head()
    assert schema_version._known() == {script.revision for script in scripts.walk_revisions()}


def test_upgrade_returns_both_versions_and_does_nothing_the_second_time(empty):
    assert schema_version.upgrade(empty) == (None, schema_version.newest())
    before = catalogue(empty)

    assert schema_version.upgrade(empty) == (schema_version.newest(), schema_version.newest())
    assert catalogue(empty) == before


@pytest.mark.postgres
def test_migrations_that_start_at_once_go_one_by_one(databases, make_database_url):
    """Every container of a deploy may run the command."""
    stores = [Store(url) for url in [make_database_url(databases.empty, "postgres")] * 5]

    with ThreadPoolExecutor(len(stores)) as pool:
        told = list(pool.map(schema_version.upgrade, stores))

    assert {after for _, after in told} == {schema_version.newest()}
    for store in stores:
        schema_version.check(store)
        store.close()


def test_migrations_of_one_sqlite_file_that_start_at_once_go_one_by_one(databases, make_database_url):
    stores = [Store(url) for url in [make_database_url(databases.empty, "sqlite")] * 5]

    with ThreadPoolExecutor(len(stores)) as pool:
        told = list(pool.map(schema_version.upgrade, stores))

    assert {after for _, after in told} == {schema_version.newest()}
    for store in stores:
        schema_version.check(store)
        store.close()


def test_an_empty_database_and_an_unknown_version_are_refused_with_what_to_do(empty):
    with pytest.raises(WrongSchema, match="empty: run `chordage migrate`"):
        schema_version.check(empty)

    schema_version.upgrade(empty)
    with empty.write() as tx:
        tx.execute(text("UPDATE chordage_version SET version_num = 'from_the_future'"))

    with pytest.raises(WrongSchema, match="from_the_future.*update chordage"):
        schema_version.check(empty)


@pytest.mark.parametrize(("ahead", "is_fine"), [(1, True), (2, False)])
def test_schema_of_the_next_release_is_accepted_and_of_the_one_after_it_refused(empty, ahead, is_fine):
    schema_version.upgrade(empty)
    version = f"{int(schema_version.newest()) + ahead:04}"
    with empty.write() as tx:
        tx.execute(text(f"UPDATE chordage_version SET version_num = '{version}'"))

    with nullcontext() if is_fine else pytest.raises(WrongSchema, match=f"{version}.*update chordage"):
        schema_version.check(empty)


def test_a_migration_that_fails_leaves_the_database_as_it_was(empty, monkeypatch):
    plain = command.upgrade

    def fail(*args):
        plain(*args)
        raise RuntimeError("in the middle")

    monkeypatch.setattr(command, "upgrade", fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        schema_version.upgrade(empty)

    assert catalogue(empty) == set()


def test_a_schema_newer_than_the_code_is_left_alone_by_migrate_too(empty):
    schema_version.upgrade(empty)
    with empty.write() as tx:
        tx.execute(text("UPDATE chordage_version SET version_num = '9999'"))

    with pytest.raises(WrongSchema, match="9999, which this code .* does not know: update chordage"):
        schema_version.upgrade(empty)


def test_old_code_that_migrates_what_the_next_release_has_migrated_finds_nothing_to_do(empty):
    schema_version.upgrade(empty)
    version = f"{int(schema_version.newest()) + 1:04}"
    with empty.write() as tx:
        tx.execute(text(f"UPDATE chordage_version SET version_num = '{version}', checksum = 'theirs'"))

    assert schema_version.upgrade(empty) == (version, version)


@pytest.mark.parametrize("noted", ["'another'", "NULL"])
def test_a_database_whose_tables_were_made_by_an_earlier_edit_of_the_version_is_refused_and_kept(empty, noted):
    schema_version.upgrade(empty)
    with empty.write() as tx:
        tx.execute(text(f"UPDATE chordage_version SET checksum = {noted}"))
    before = catalogue(empty)

    for work in (schema_version.check, schema_version.upgrade):
        with pytest.raises(WrongSchema, match="made by an earlier pre-release .* Nothing was changed; give an empty"):
            work(empty)

    assert catalogue(empty) == before


@pytest.mark.parametrize("schema_of_old", ["public", "chordage"])
def test_tables_of_a_pre_release_are_refused_and_left_alone(empty, schema_of_old):
    with empty.write() as tx:
        prefix = ""
        if empty.is_postgres:
            tx.execute(text(f"CREATE SCHEMA IF NOT EXISTS {schema_of_old}"))
            prefix = f"{schema_of_old}."
        for table in schema_version.PRE_RELEASE_TABLES:
            tx.execute(text(f"CREATE TABLE {prefix}{table} (version_num text)"))
        tx.execute(text(f"INSERT INTO {prefix}alembic_version VALUES ('0001')"))

    for work in (schema_version.check, schema_version.upgrade):
        with pytest.raises(WrongSchema, match="made by an earlier pre-release .* Nothing was changed; give an empty"):
            work(empty)

    with empty.read() as tx:
        assert tx.execute(text(f"SELECT version_num FROM {prefix}alembic_version")).scalar() == "0001"


@pytest.mark.parametrize("spoilt", ["ALTER TABLE groups RENAME served TO was_served", "ALTER TABLE groups RENAME TO g"])
def test_missing_table_or_column_is_an_error_that_names_migrate(empty, spoilt):
    schema_version.upgrade(empty)
    with empty.write() as tx:
        tx.execute(text(spoilt))
    hot = PreparedStatement(select(schema.groups))

    for ask in (lambda tx: hot.rows(tx, {}), lambda tx: tx.execute(select(schema.groups))):
        told = "does not have the tables of this version .* run `chordage migrate`"
        with pytest.raises(WrongSchema, match=told), empty.read() as tx:
            ask(tx)
        with pytest.raises(WrongSchema, match="does not have the tables"), empty.write() as tx:
            ask(tx)


def test_migration_has_no_time_limit_and_the_next_one_waits_for_it(empty_database_url, monkeypatch):
    run_alembic, began = schema_version._run_alembic, threading.Event()

    def slowly(tx):
        began.set()
        if tx.dialect.name == "postgresql":
            tx.execute(text("SELECT pg_sleep(1)"))
        time.sleep(1)
        run_alembic(tx)

    monkeypatch.setattr(database, "BUSY_MS", 50)
    monkeypatch.setattr(schema_version, "_run_alembic", slowly)
    first, second = (Store(empty_database_url, hold=0.5) for _ in range(2))
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(schema_version.upgrade, first)
        began.wait(10)
        assert schema_version.upgrade(second) == (schema_version.newest(), schema_version.newest())
        assert slow.result(10) == (None, schema_version.newest())

    with first.write() as tx:
        limit = "SHOW statement_timeout" if first.is_postgres else "PRAGMA busy_timeout"
        assert tx.execute(text(limit)).scalar() == ("500ms" if first.is_postgres else 50)
    for store in (first, second):
        schema_version.check(store)
        store.close()


def test_checksum_is_the_same_in_every_process_and_covers_every_table(backend):
    dialect = "sqlite" if backend == "sqlite" else "postgresql"
    command = f"from chordage.orchestrator.store.schema_version import checksum; print(checksum({dialect!r}))"
    alone = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    for module in pkgutil.iter_modules(store_package.__path__):  # any of them could declare a table of its own
        importlib.import_module(f"{store_package.__name__}.{module.name}")

    assert alone.stdout.strip() == schema_version.checksum_of(
        schema.metadata, schema.trigger_statements(dialect), schema_version.DIALECTS[dialect]
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.append_column(Column("more", Integer)),
        lambda t: t.append_constraint(CheckConstraint("n > 1")),
        lambda t: t.append_constraint(UniqueConstraint("n")),
        lambda t: t.append_constraint(ForeignKeyConstraint(["n"], ["u.n"])),
        lambda t: Index("i", t.c.n),
        lambda t: Index("i", t.c.n, unique=True),
        lambda t: Index("i", t.c.n, sqlite_where=text("n = 1")),
        lambda t: setattr(t.c.n, "type", String(7)),
        lambda t: setattr(t.c.n, "nullable", False),
    ],
)
def test_the_checksum_changes_with_all_that_a_database_would_see(change):
    def sum_with(*changes, triggers=()):
        table = Table("t", MetaData(), Column("n", Integer))
        Table("u", table.metadata, Column("n", Integer))
        for one in changes:
            one(table)
        return schema_version.checksum_of(table.metadata, list(triggers), schema_version.DIALECTS["sqlite"])

    plain = sum_with()
    assert sum_with() == plain
    assert sum_with(change) != plain
    assert sum_with(triggers=["CREATE TRIGGER x"]) != plain
