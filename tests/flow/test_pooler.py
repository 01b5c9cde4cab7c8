"""Behind a pooler in transaction mode, with CHORDAGE_PIPELINE=off: no state outlives a transaction."""

from __future__ import annotations

import pytest
from sqlalchemy import select, text

from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.store import database, schema, schema_version
from chordage.orchestrator.store.database import SWITCH, Store
from support.fakes import rounds_of
from support.invariants import check_all
from support.transaction_pooler import transaction_pooler
from support.world import World

pytestmark = pytest.mark.postgres


def test_start_up_options_are_refused_by_the_pooler(migrated_database_url) -> None:
    with transaction_pooler(migrated_database_url("postgres")) as pooler:
        store = Store(pooler.url)
        with pytest.raises(Unavailable, match="refuses start-up options .*: options.*set CHORDAGE_PIPELINE=off"):
            store.ping()
        store.close()


def test_database_is_migrated_and_a_turn_runs_through_the_pooler(databases, make_database_url) -> None:
    with transaction_pooler(make_database_url(databases.empty, "postgres")) as pooler:
        world = World(Store(f"{pooler.url}?{SWITCH}=off", pool_size=2))
        schema_version.upgrade(world.store)
        schema_version.check(world.store)
        world.models.script = rounds_of(3, rounds=2)
        turn = world.submit("hello")

        world.run_dry()

        assert world.row("turns", id=turn)["disposition"] == "answered"
        check_all(world.store)
        assert set(pooler.transactions) == {0, 1, 2}, "each transaction had another session"
        assert pooler.named == []
        world.close()


def test_every_transaction_and_every_single_statement_has_our_settings(migrated_database_url) -> None:
    url = f"{migrated_database_url('postgres')}?{SWITCH}=off&options=-c%20statement_timeout%3D7s"
    wanted = {**database.SESSION_SETTINGS, **database.limits(6), "statement_timeout": "7s"}
    store = Store(url, hold=6)

    for opened in (store.write, store.single, store.unlimited):
        with opened() as tx:
            found = {name: tx.execute(text(f"SHOW {name}")).scalar() for name in wanted}
        if opened == store.unlimited:
            assert {found[name] for name in database.limits(6)} == {"0"}
            continue
        assert found == {**wanted, "lock_timeout": "4s", "idle_in_transaction_session_timeout": "6s"}
    with store.plain.connect() as tx:
        session = tx.connection.dbapi_connection.execute("SHOW search_path").fetchone()
        assert session != (database.SCHEMA,), "the session itself has no settings of ours"
    store.close()


def test_single_statement_that_failed_does_not_spoil_the_next(migrated_database_url) -> None:
    store = Store(f"{migrated_database_url('postgres')}?{SWITCH}=off", pool_size=1)
    with store.single() as tx:
        with pytest.raises(Exception, match="division by zero"):
            tx.execute(text("SELECT 1 / 0"))

        assert tx.execute(select(schema.groups.c.name)).all()
    store.close()
