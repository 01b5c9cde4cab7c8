"""The schema: what the migrations make is what the code believes in, in any number of processes at once."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import UTC, datetime
from importlib import metadata

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.operations import Operations
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
    update,
)

from chordage.orchestrator import store as store_package
from chordage.orchestrator.core.errors import WrongSchema
from chordage.orchestrator.core.presence import Process
from chordage.orchestrator.store import database, schema, schema_version
from chordage.orchestrator.store import processes as process_rows
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
    assert schema_version._known().keys() == {script.revision for script in scripts.walk_revisions()}


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


def claim(empty, version, oldest=None, **more):
    """As a newer release leaves the database."""
    with empty.write() as tx:
        tx.execute(update(schema_version.versions).values(version_num=version, oldest=oldest, **more))


@pytest.mark.parametrize("work", [schema_version.check, schema_version.upgrade])
@pytest.mark.parametrize(("version", "oldest", "is_fine"), [("0007", None, True), ("0007", "0002", False)])
def test_a_database_that_newer_code_has_expanded_is_usable_until_it_is_contracted(
    empty, work, version, oldest, is_fine
):
    schema_version.upgrade(empty)
    claim(empty, version, oldest, checksum="theirs")

    refused = pytest.raises(WrongSchema, match=f"{version} and takes code of schema {oldest} .* update chordage")
    with nullcontext() if is_fine else refused:
        work(empty)
    with empty.read() as tx:
        assert tx.execute(select(schema_version.versions)).one()[:2] == (version, "theirs")


SECOND = """
from alembic import op
from sqlalchemy import Column, String, text

revision, down_revision, branch_labels, depends_on = "0002", "0001", None, None

def upgrade() -> None:
    op.add_column("turns", Column("mood", String(8)))

def contract() -> None:
    op.get_bind().execute(text("UPDATE turns SET mood = 'plain' WHERE mood IS NULL"))
"""


@pytest.fixture
def newer(monkeypatch):
    """This process is one of the next release."""
    second = types.ModuleType("v0002_second")
    exec(SECOND, second.__dict__)  # noqa: S102 - the text above
    name = f"{schema_version.__package__}.migrations.versions.v0002_second"
    known = {"0001": "v0001_pre_first_tables", "0002": "v0002_second"}

    def expand(tx):
        with Operations.context(MigrationContext.configure(tx)):
            second.upgrade()
        tx.execute(text("UPDATE chordage_version SET version_num = '0002'"))

    def begin():
        monkeypatch.setitem(sys.modules, name, second)
        monkeypatch.setattr(schema_version, "_known", lambda: known)
        monkeypatch.setattr(schema_version, "_run_alembic", expand)

    return begin


def test_contracting_waits_for_older_processes_and_then_refuses_older_code(empty, newer, monkeypatch):
    schema_version.upgrade(empty)
    with empty.write() as tx:  # as the first version left it
        tx.execute(text("ALTER TABLE chordage_version DROP COLUMN oldest"))
    show(empty, "old/1:1", "0.1.0")
    with monkeypatch.context():
        newer()
        assert schema_version.upgrade(empty) == ("0001", "0002")
        show(empty, "new/1:2", "0.2.0")
        with pytest.raises(WrongSchema, match=r"older code may still be at work: .*0\.1\.0 in old/1:1.*Nothing"):
            schema_version.contract(empty, "0.2.0")
        assert schema_version.stored_version(empty).oldest == "0001"
        with empty.write() as tx:
            process_rows.mark_ended(tx, ["old/1:1"], datetime.now(UTC))

        monkeypatch.setattr(schema_version, "APPLICATION", "named by another")  # our own connections are of 0.1.0
        assert schema_version.contract(empty, "0.2.0") == ("0001", "0002")
        assert schema_version.contract(empty, "0.2.0") == ("0002", "0002")
        schema_version.check(empty)
    monkeypatch.undo()
    with pytest.raises(WrongSchema, match=r"takes code of schema 0002 and newer; this code is at 0001: update"):
        schema_version.check(empty)


def show(empty, process, release):
    row = Process(id=process, machine="m", pid=1, born="1", version=release)
    with empty.write() as tx:
        process_rows.show(tx, [row], datetime.now(UTC))


@pytest.mark.postgres
def test_every_connected_process_counts_as_one_that_is_at_work(databases, make_database_url):
    """Servers and commands show no presence."""
    store = Store(make_database_url(databases.empty, "postgres"))
    schema_version.upgrade(store)

    with store.read() as tx:
        assert schema_version.other_releases(tx, metadata.version("chordage")) == {}
        others = schema_version.other_releases(tx, "0.2.0")
        assert others.keys() == {metadata.version("chordage")}
    claim(store, "0001", "0000")
    with pytest.raises(WrongSchema, match=r"older code may still be at work: .* connections"):
        schema_version.contract(store, "0.2.0")
    store.close()


def test_only_the_version_that_expanded_the_database_contracts_it(empty):
    with pytest.raises(WrongSchema, match="empty: run `chordage migrate`"):
        schema_version.contract(empty, "0.1.0")
    schema_version.upgrade(empty)
    claim(empty, "0002")

    with pytest.raises(WrongSchema, match="0002, and this code at 0001: run .* with the version .* that migrated it"):
        schema_version.contract(empty, "0.1.0")


def test_code_does_not_start_before_the_indexes_of_its_version_are_built(empty):
    """The process that builds them has died in the middle: on PostgreSQL one may be there that is not complete."""
    schema_version.upgrade(empty)
    name = min(str(index.name) for index in schema.turns.indexes)
    with empty.write() as tx:
        tx.execute(text(f"DROP INDEX {name}"))
        tx.execute(update(schema_version.versions).values(checksum=schema_version.UNFINISHED))
    if empty.is_postgres:
        with empty.write() as tx:
            tx.execute(text(f"CREATE INDEX {name} ON turns (id)"))
            tx.execute(text(f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{name}'::regclass"))

    with pytest.raises(WrongSchema, match="migration of the database to schema 0001 has not ended: wait"):
        schema_version.check(empty)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(schema_version.upgrade, [empty, empty]))

    schema_version.check(empty)
    with empty.read() as tx:
        assert schema_version.missing_indexes(tx) == []


def test_indexes_are_built_while_others_write(empty):
    index = min(schema.turns.indexes, key=lambda index: str(index.name))
    dropped, made = schema_version.statements_for(index, empty.engine.dialect)

    assert dropped == f"DROP INDEX IF EXISTS {index.name}"
    assert ("CONCURRENTLY" in made) is empty.is_postgres


@pytest.mark.postgres
def test_an_index_is_built_without_the_limits_of_other_statements(databases, make_database_url):
    store = Store(make_database_url(databases.empty, "postgres"), hold=0.3, pool_size=1)
    names = ("statement_timeout", "transaction_timeout")

    with store.autocommit() as tx:
        tx.execute(text("SELECT pg_sleep(0.5)"))

    with store.read() as tx:
        assert [tx.execute(text(f"SHOW {name}")).scalar() for name in names] == ["300ms"] * 2
    store.close()


EXPANDING = {"add_column", "create_table", "bulk_insert", "get_bind", "execute"}


def faults_of(source):
    """What an expansion may not do, because older code could not work beside it."""
    steps = next(
        node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == "upgrade"
    )
    for call in (node for node in ast.walk(steps) if isinstance(node, ast.Call)):
        called = ast.unparse(call.func)
        if called.startswith("op.") and called.removeprefix("op.") not in EXPANDING:
            yield called
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        is_new_column = called == "op.add_column"
        columns = [node for node in ast.walk(call) if is_new_column and isinstance(node, ast.Call)]
        given.update({keyword.arg: ast.unparse(keyword.value) for node in columns for keyword in node.keywords})
        if is_new_column and given.get("nullable") == "False" and "server_default" not in given:
            yield "a column without a default"


def test_versions_only_add_what_older_code_does_not_see():
    assert {file.name: list(faults_of(file.read_text())) for file in schema_version.VERSIONS.glob("v*.py")} == {
        file.name: [] for file in schema_version.VERSIONS.glob("v*.py")
    }
    assert list(faults_of("def upgrade():\n op.drop_column('turns', 'text')")) == ["op.drop_column"]
    assert list(faults_of("def upgrade():\n op.create_index('i', 'turns', ['text'])")) == ["op.create_index"]
    added = "def upgrade():\n op.add_column('turns', Column('mood', String, nullable=False{}))"
    assert list(faults_of(added.format(""))) == ["a column without a default"]
    assert list(faults_of(added.format(", server_default='x'"))) == []


def test_a_migration_that_fails_leaves_the_database_as_it_was(empty, monkeypatch):
    plain = command.upgrade

    def fail(*args):
        plain(*args)
        raise RuntimeError("in the middle")

    monkeypatch.setattr(command, "upgrade", fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        schema_version.upgrade(empty)

    assert catalogue(empty) == set()


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
        assert began.wait(120)
        assert schema_version.upgrade(second) == (schema_version.newest(), schema_version.newest())
        assert slow.result(120) == (None, schema_version.newest())

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
