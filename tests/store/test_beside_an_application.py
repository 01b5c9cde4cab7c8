"""Chordage in the database of an application that has tables of the same names and an Alembic of its own."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import text
from sqlalchemy.engine import make_url

from chordage.orchestrator.core.errors import ConfigError, WrongSchema
from chordage.orchestrator.store import database, schema_version
from chordage.orchestrator.store.database import Store
from support.fakes import rounds_of
from support.invariants import check_all
from support.world import World

ENV = """
from alembic import context
from sqlalchemy import create_engine

engine = create_engine(context.config.get_main_option("sqlalchemy.url"))
with engine.connect() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()
engine.dispose()
"""
VERSION = """
from alembic import op

revision, down_revision = "{revision}", {before!r}


def upgrade():
    {statements}
"""
FIRST = """op.execute("CREATE TABLE runs (id integer PRIMARY KEY, shoes text)")
    op.execute("CREATE TABLE groups (id integer PRIMARY KEY)")
    op.execute("CREATE TABLE journal (line text)")
    op.execute("INSERT INTO runs VALUES (1, 'old')")"""


class Application:
    """With migrations that it applies by itself."""

    def __init__(self, folder, url):
        self.url = url
        self._folder = folder
        (folder / "versions").mkdir(parents=True)
        (folder / "env.py").write_text(ENV)
        self._config = Config()
        self._config.set_main_option("script_location", str(folder))
        self._config.set_main_option("path_separator", "os")
        self._config.set_main_option("sqlalchemy.url", url)

    def migrate(self, revision, before, statements):
        text = VERSION.format(revision=revision, before=before, statements=statements)
        (self._folder / "versions" / f"{revision}.py").write_text(text)
        command.upgrade(self._config, "head")

    def rows(self, query):
        address = make_url(self.url).set(drivername="postgresql").render_as_string(hide_password=False)
        with closing(psycopg.connect(address, autocommit=True)) as connection:
            cursor = connection.execute(query)
            return cursor.fetchall() if cursor.description else []


@pytest.fixture
def application(tmp_path, databases, make_database_url):
    made = Application(tmp_path / "app", make_database_url(databases.empty, "postgres"))
    made.migrate("a1", None, FIRST)
    return made


def tables_of(application, schema):
    found = application.rows(f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}'")
    return {name for (name,) in found}


def do_a_turn(store):
    world = World(store)
    world.models.script = rounds_of(2)
    turn = world.submit()
    world.run_dry()
    assert world.row("turns", id=turn)["disposition"] == "answered"
    check_all(world.store)
    world.close()


@pytest.mark.postgres
@pytest.mark.parametrize("schema", [None, "agents", "Odd-Name"])
def test_both_live_in_one_database_and_neither_sees_the_other(application, schema):
    theirs = tables_of(application, "public")
    url = application.url if schema is None else f'{application.url}?options=-csearch_path%3D"{schema}"'
    store = Store(url)

    schema_version.upgrade(store)
    schema_version.check(store)
    application.migrate("a2", "a1", """op.execute("ALTER TABLE runs ADD COLUMN miles integer")""")

    assert schema_version.upgrade(store) == (schema_version.newest(), schema_version.newest())
    assert tables_of(application, "public") == theirs == {"runs", "groups", "journal", "alembic_version"}
    assert application.rows("SELECT * FROM public.runs") == [(1, "old", None)]
    assert application.rows("SELECT * FROM public.journal") == []
    assert application.rows("SELECT version_num FROM public.alembic_version") == [("a2",)]
    assert tables_of(application, schema or "chordage") > {"runs", "groups", "journal", "chordage_version"}
    do_a_turn(store)
    assert application.rows("SELECT count(*) FROM public.journal") == [(0,)]


@pytest.mark.postgres
def test_what_is_written_by_others_is_noted_in_our_journal_and_not_in_theirs(application):
    """An operator mends a row by hand, in a session that knows nothing of our search path."""
    store = Store(application.url)
    schema_version.upgrade(store)
    world = World(store)
    turn = world.submit()

    application.rows(
        "UPDATE chordage.turns SET status = 'done', disposition = 'cancelled', done_at = now(), ready = 0"
        f" WHERE id = '{turn}' RETURNING id"
    )

    assert len(world.rows("journal", kind="TurnDropped")) == 1
    assert application.rows("SELECT * FROM public.journal") == []
    world.close()


@pytest.mark.postgres
def test_schema_with_tables_of_another_application_is_refused_unchanged(application):
    store = Store(f"{application.url}?options=-csearch_path%3Dpublic")
    before = tables_of(application, "public")

    for work in (schema_version.upgrade, schema_version.check):
        with pytest.raises(WrongSchema, match="schema public .* tables of another application: groups, journal, runs"):
            work(store)

    assert tables_of(application, "public") == before
    store.close()


def test_file_with_tables_of_another_application_is_refused_unchanged(databases, make_database_url):
    store = Store(make_database_url(databases.empty, "sqlite"))
    with store.write() as tx:
        tx.execute(text("CREATE TABLE runs (shoes text)"))

    for work in (schema_version.upgrade, schema_version.check):
        with pytest.raises(WrongSchema, match="another application: runs. Nothing was changed; give an empty database"):
            work(store)

    with store.read() as tx:
        assert tx.execute(text("SELECT name FROM sqlite_master")).scalars().all() == ["runs"]
    store.close()


@pytest.mark.postgres
def test_account_that_may_not_make_a_schema_is_shown_the_command_for_its_owner(application):
    application.rows("CREATE ROLE clerk LOGIN")
    limited = make_url(application.url).set(username="clerk").render_as_string(hide_password=False)
    store = Store(limited)
    try:
        with pytest.raises(ConfigError, match="`CREATE SCHEMA chordage AUTHORIZATION clerk`"):
            schema_version.upgrade(store)

        application.rows("CREATE SCHEMA chordage AUTHORIZATION clerk")
        schema_version.upgrade(store)
        do_a_turn(store)
    finally:
        store.close()
        application.rows("DROP OWNED BY clerk; DROP ROLE clerk")


@pytest.mark.postgres
def test_a_pooler_that_drops_the_search_path_is_found_out_before_anything_is_made(application, monkeypatch):
    monkeypatch.delitem(database.SESSION_SETTINGS, "search_path")
    store = Store(application.url)

    for work in (schema_version.upgrade, schema_version.check):
        with pytest.raises(ConfigError, match="drops the start-up option search_path"):
            work(store)

    assert "turns" not in tables_of(application, "public")
    store.close()


@pytest.mark.postgres
def test_settings_in_the_url_take_precedence_over_ours(application):
    more = "connect_timeout=7&options=-cstatement_timeout%3D777&options=-c%20work_mem%3D2MB&application_name=mine"
    store = Store(f"{application.url}?{more}")
    with store.read() as tx:
        names = ("statement_timeout", "work_mem", "application_name", "search_path", "lock_timeout")
        told = [tx.execute(text(f"SHOW {name}")).scalar() for name in names]
        connect_timeout = tx.connection.dbapi_connection.info.get_parameters()["connect_timeout"]

    assert told == ["777ms", "2MB", "mine", "chordage", "10s"]
    assert connect_timeout == "7"
    store.close()
