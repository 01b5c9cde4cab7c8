"""Every test of the store begins with a database of its own, on both backends."""

from __future__ import annotations

from contextlib import closing

import pytest
from sqlalchemy import inspect, text

from chordage.orchestrator.store.database import Store
from support.rows import a_run


def tables(url):
    with closing(Store(url)) as store, store.read() as tx:
        return set(inspect(tx).get_table_names())


def test_database_is_at_the_newest_schema(database_url):
    assert {"chordage_version", "turns"} <= tables(database_url)


def test_empty_database_has_no_tables(empty_database_url):
    assert tables(empty_database_url) == set()


def test_two_databases_of_one_test_share_nothing(backend, migrated_database_url):
    first, second = migrated_database_url(backend), migrated_database_url(backend)

    with closing(Store(first)) as store, store.write() as tx:
        tx.execute(text("DROP TABLE chordage_version"))

    assert "chordage_version" not in tables(first)
    assert "chordage_version" in tables(second)


@pytest.mark.postgres
def test_a_database_that_is_used_again_has_no_row_of_the_test_before(databases):
    url = databases.migrated("postgres")
    with closing(Store(url)) as store:
        a_run(store)
    databases.drop(url)

    assert databases.migrated("postgres") == url
    with closing(Store(url)) as store, store.read() as tx:
        counts = [tx.execute(text(f"SELECT count(*) FROM {table}")).scalar() for table in ("journal", "runs", "turns")]
    databases.drop(url)
    assert counts == [0, 0, 0]
