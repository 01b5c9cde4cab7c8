"""Templates: migrated once, copied whole, dropped after use."""

from __future__ import annotations

import contextlib
import sqlite3

from support.databases import Databases


def no_postgres():
    raise AssertionError("no test wants PostgreSQL")


def fill(url):
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE t (n)")
        connection.execute("INSERT INTO t VALUES (1)")
        connection.commit()


def count(url):
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        return connection.execute("SELECT count(*) FROM t").fetchone()[0]


def test_migration_runs_once_for_many_databases(tmp_path):
    migrated = []
    databases = Databases(tmp_path, no_postgres, lambda url: (migrated.append(url), fill(url)))

    first, second = databases.migrated("sqlite"), databases.migrated("sqlite")

    assert len(migrated) == 1
    assert first != second
    assert count(first) == count(second) == 1


def test_what_is_still_in_the_write_ahead_log_is_copied_too(tmp_path):
    open_connections = []

    def fill_and_stay_connected(url):
        fill(url)
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        connection.execute("INSERT INTO t VALUES (2)")
        connection.commit()
        open_connections.append(connection)

    copy = Databases(tmp_path, no_postgres, fill_and_stay_connected).migrated("sqlite")

    assert count(copy) == 2
    open_connections[0].close()


def test_dropped_database_leaves_no_file(tmp_path):
    databases = Databases(tmp_path, no_postgres, fill)
    url = databases.empty("sqlite")
    fill(url)

    databases.drop(url)

    assert list(tmp_path.iterdir()) == []
