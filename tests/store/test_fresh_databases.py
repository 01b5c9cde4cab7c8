"""Every test of the store begins with a database of its own, on both backends."""

from __future__ import annotations

import contextlib

from sqlalchemy import create_engine, inspect, text


def tables(url):
    with disposing(url) as engine:
        return set(inspect(engine).get_table_names())


@contextlib.contextmanager
def disposing(url):
    engine = create_engine(url)
    yield engine
    engine.dispose()


def test_database_is_at_the_newest_schema(database_url):
    assert {"alembic_version", "turns"} <= tables(database_url)


def test_empty_database_has_no_tables(empty_database_url):
    assert tables(empty_database_url) == set()


def test_two_databases_of_one_test_share_nothing(backend, migrated_database_url):
    first, second = migrated_database_url(backend), migrated_database_url(backend)

    with disposing(first) as engine, engine.begin() as connection:
        connection.execute(text("DROP TABLE alembic_version"))

    assert "alembic_version" not in tables(first)
    assert "alembic_version" in tables(second)
