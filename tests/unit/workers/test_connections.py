"""How many connections to PostgreSQL each process may take, and what is said where there are too few."""

from __future__ import annotations

import contextlib
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from chordage.config.settings import load
from chordage.orchestrator.core.errors import ConfigError, Unavailable
from chordage.orchestrator.store import database
from chordage.orchestrator.store.capacity import Capacity, capacity
from chordage.orchestrator.store.database import Store
from chordage.workers import connections, worker_plan
from chordage.workers.fleet import roles
from chordage.workers.worker_plan import WorkerRole, plan_of
from support.repository import ROOT

DEFAULT_OF_POSTGRES = 100 - 3


def of_plan(settings, role, **more):
    plan = plan_of(role, settings, **more)
    threads = plan.pool is worker_plan.Pool.THREADS
    taken = connections.of_threads(settings) if threads else connections.of_processes(plan.concurrency)
    return f"{plan.concurrency} {'threads' if threads else 'processes'}", taken


def test_table_of_sizes_has_the_same_connections():
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text().partition("## Sizing")[2]
    listed = dict(re.findall(r"^\| ([^|]+) \| .* \| (\d+) \|$", page, re.MULTILINE))
    settings = load()

    assert {name: int(most) for name, most in listed.items()} == {
        "turns worker": of_plan(settings, WorkerRole.TURNS)[1],
        "tools worker, 8 processes": of_plan(settings, WorkerRole.TOOLS, concurrency=8)[1],
        "both in one": of_plan(settings, WorkerRole.ALL)[1],
        "HTTP, each of its processes": connections.of_server(settings),
        "beat": 0,
        "Flower": 0,
    }


def test_table_of_the_docs_equals_the_code():
    section = (
        (ROOT / "docs" / "how-to" / "operations.md").read_text().partition("### Connections")[2].partition("\n\n##")[0]
    )
    told = {
        process: (works, int(most))
        for process, works, most in re.findall(r"^\| ([^|]+) \| ([^|]*?) ?\| (\d+) \|$", section, re.MULTILINE)
    }
    settings, reserved = load(), load(reserve=4)

    assert told == {
        "turns worker": of_plan(settings, WorkerRole.TURNS),
        "both in one": of_plan(settings, WorkerRole.ALL),
        "tools worker, 8 processes": of_plan(settings, WorkerRole.TOOLS, concurrency=8),
        "reserve of turns, `CHORDAGE_RESERVE` = 4": of_plan(reserved, WorkerRole.TURNS, reserved=True),
        "reserve of tools, `CHORDAGE_RESERVE` = 4": of_plan(reserved, WorkerRole.TOOLS, reserved=True),
        "HTTP, each of its processes": ("128 threads", connections.of_server(settings)),
        "poll": ("a thread a channel", connections.of_server(settings)),
        "beat, Flower": ("", 0),
    }
    example = (
        3 * connections.of_threads(settings) + 3 * connections.of_processes(8) + 2 * connections.of_server(settings)
    )
    assert f"3 × 6 + 3 × 19 + 2 × 5 = {example}." in section
    assert example <= DEFAULT_OF_POSTGRES


def test_a_fleet_takes_what_its_processes_take():
    settings = load(reserve=2, loops=("server", "poll", "pulse"))
    members = {role.name: role.connections(settings) for role in roles.of_fleet(settings, tools=1, with_workers=True)}

    assert members == {
        "turns": connections.of_threads(settings),
        "tools-1": connections.of_processes(2),
        "turns-chat": connections.of_threads(settings),
        "tools-chat": connections.of_processes(2),
        "web": connections.of_server(settings),
        "poll": connections.of_server(settings),
        "beat": 0,
    }
    assert roles.beat().connections(settings) == 0


@pytest.mark.postgres
def test_threads_never_take_more_than_they_may_and_all_are_served(migrated_database_url):
    store = Store(migrated_database_url("postgres"), pool_size=5)
    store.limit_connections(3)
    both_kinds = threading.Barrier(24)

    def work(number):
        both_kinds.wait(120)
        with store.write() if number % 2 else store.single() as tx:
            tx.execute(text("SELECT pg_sleep(0.02)"))
            ours = "datname = current_database() AND application_name LIKE 'chordage%'"
            count = f"SELECT count(*) FROM pg_stat_activity WHERE {ours}"
            return tx.execute(text(count)).scalar()

    with ThreadPoolExecutor(24) as pool:
        seen = list(pool.map(work, range(24)))

    assert max(seen) == 3
    store.close()


def test_a_file_has_no_such_limit(migrated_database_url):
    settings = load(database_url=migrated_database_url("sqlite"))

    assert connections.shortage(settings, 10_000, "this fleet") is None


@pytest.fixture
def limited(migrated_database_url):
    """An account that may have four connections."""
    url = make_url(migrated_database_url("postgres"))
    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    with contextlib.closing(psycopg.connect(address, autocommit=True)) as connection:
        connection.execute("CREATE ROLE four LOGIN CONNECTION LIMIT 4")
        connection.execute("GRANT USAGE ON SCHEMA chordage TO four")
        yield url.set(username="four").render_as_string(hide_password=False)
        connection.execute("DROP OWNED BY four")
        connection.execute("DROP ROLE four")


@pytest.mark.postgres
def test_a_process_that_may_take_more_than_there_are_does_not_start(limited):
    with pytest.raises(ConfigError) as told:
        connections.shortage(load(database_url=limited), 5, "this worker")

    assert str(told.value) == (
        "PostgreSQL lets 4 connections in (the CONNECTION LIMIT of the account), 0 are taken, and this worker may take "
        "5: raise that limit, or lower CHORDAGE_POOL_SIZE, --concurrency or the number of workers "
        "(docs/how-to/operations.md, Connections)"
    )


@pytest.mark.postgres
def test_process_that_may_take_more_connections_than_are_left_reports_it(limited):
    store = Store(limited)
    with store.read(), store.read():
        told = connections.shortage(load(database_url=limited), 3, "this worker")
        enough = connections.shortage(load(database_url=limited), 2, "this worker")

    assert told is not None
    assert "4 connections in (the CONNECTION LIMIT of the account), 2 are taken, and this worker may take 3" in told
    assert enough is None
    store.close()


@pytest.mark.postgres
def test_one_connection_too_many_is_unavailable_with_the_remedy(limited):
    store = Store(limited, pool_size=5)
    with contextlib.ExitStack() as held:
        for _ in range(4):
            held.enter_context(store.read())
        with pytest.raises(Unavailable, match="takes no further connection .* raise its max_connections, or lower"):
            held.enter_context(store.read())
    store.close()


@pytest.mark.postgres
def test_the_server_itself_has_a_limit_too(migrated_database_url):
    store = Store(migrated_database_url("postgres"))
    found = capacity(store)

    assert found is not None
    assert found.named == "max_connections of the server"
    assert found.at_most > found.taken >= 0
    store.close()


@pytest.mark.parametrize(("taken", "is_fault"), [(0, False), (90, False), (91, True), (100, True)])
def test_status_names_a_server_that_is_nearly_full(taken, is_fault):
    told = connections.fault(Capacity(named="max_connections of the server", at_most=100, taken=taken))

    assert (told is not None) == is_fault
    assert not told or told.startswith(f"{taken} of 100 connections are taken (max_connections of the server): raise")


def test_no_caller_waits_for_a_connection_for_ever():
    assert 0 < database.PATIENCE < load().lease
