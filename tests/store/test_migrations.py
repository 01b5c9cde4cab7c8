"""The schema: what the migrations make is what the code believes in, whoever runs them and however many at once."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from chordage.orchestrator.core.errors import WrongSchema
from chordage.orchestrator.store import migrating, schema
from chordage.orchestrator.store.tx import Store

OF_POSTGRES = """
SELECT 'column', table_name, column_name, data_type || ' ' || coalesce(character_maximum_length::text, '') || ' '
       || is_nullable || ' ' || coalesce(column_default, '') || is_identity
  FROM information_schema.columns WHERE table_schema = 'public'
UNION ALL
SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid)
  FROM pg_constraint WHERE connamespace = 'public'::regnamespace
UNION ALL
SELECT 'index', tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'
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
    return {row for row in found if row[1] != "alembic_version"}


def _parts(sql):
    """The lines of a statement: columns and constraints in whatever order."""
    return {re.sub(r"\s+", " ", line).strip(" ,") for line in sql.splitlines() if line.strip(" ,()")}


def test_migrations_make_the_schema_of_the_code(store, empty):
    schema.metadata.create_all(empty.engine)

    assert catalogue(store) == catalogue(empty)


def test_nothing_is_left_to_generate(store):
    with store.read() as tx:
        context = MigrationContext.configure(tx, opts={"compare_type": True})
        assert compare_metadata(context, schema.metadata) == []


def test_the_versions_told_by_file_names_are_those_of_alembic():
    config = Config()
    config.set_main_option("script_location", "chordage.orchestrator.store:migrations")
    config.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(config)

    assert migrating.newest() == scripts.get_current_head()
    assert migrating._known() == {script.revision for script in scripts.walk_revisions()}


def test_upgrade_says_from_where_to_where_and_finds_nothing_to_do_the_second_time(empty):
    assert migrating.upgrade(empty) == (None, migrating.newest())
    before = catalogue(empty)

    assert migrating.upgrade(empty) == (migrating.newest(), migrating.newest())
    assert catalogue(empty) == before


@pytest.mark.postgres
def test_migrations_that_start_at_once_go_one_by_one(databases, make_database_url):
    """Every container of a deploy may run the command."""
    stores = [Store(url) for url in [make_database_url(databases.empty, "postgres")] * 5]

    with ThreadPoolExecutor(len(stores)) as pool:
        told = list(pool.map(migrating.upgrade, stores))

    assert {after for _, after in told} == {migrating.newest()}
    for store in stores:
        migrating.check(store)
        store.close()


def test_migrations_of_one_sqlite_file_that_start_at_once_go_one_by_one(databases, make_database_url):
    stores = [Store(url) for url in [make_database_url(databases.empty, "sqlite")] * 5]

    with ThreadPoolExecutor(len(stores)) as pool:
        told = list(pool.map(migrating.upgrade, stores))

    assert {after for _, after in told} == {migrating.newest()}
    for store in stores:
        migrating.check(store)
        store.close()


def test_an_empty_database_and_an_unknown_version_are_refused_with_what_to_do(empty):
    with pytest.raises(WrongSchema, match="empty: run `chordage migrate`"):
        migrating.check(empty)

    migrating.upgrade(empty)
    with empty.write() as tx:
        tx.execute(text("UPDATE alembic_version SET version_num = 'from_the_future'"))

    with pytest.raises(WrongSchema, match="from_the_future.*update chordage"):
        migrating.check(empty)


@pytest.mark.parametrize(("ahead", "is_fine"), [(1, True), (2, False)])
def test_the_schema_of_the_next_release_is_worked_with_and_that_of_the_one_after_it_is_not(empty, ahead, is_fine):
    migrating.upgrade(empty)
    version = f"{int(migrating.newest()) + ahead:04}"
    with empty.write() as tx:
        tx.execute(text(f"UPDATE alembic_version SET version_num = '{version}'"))

    with nullcontext() if is_fine else pytest.raises(WrongSchema, match=f"{version}.*update chordage"):
        migrating.check(empty)


def test_a_migration_that_fails_leaves_the_database_as_it_was(empty, monkeypatch):
    plain = command.upgrade

    def fail(*args):
        plain(*args)
        raise RuntimeError("in the middle")

    monkeypatch.setattr(command, "upgrade", fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        migrating.upgrade(empty)

    assert catalogue(empty) == set()
