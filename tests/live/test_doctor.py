"""`chordage doctor` beside real servers: how Redis is set, services that are away, disks, and a probe that hangs."""

from __future__ import annotations

import re
import shutil
import threading
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from sqlalchemy.engine import make_url

from chordage.orchestrator.core.doctor import FleetState, ProbeAnswer
from chordage.orchestrator.core.groups import ALL_QUEUES
from chordage.orchestrator.core.presence import Process
from chordage.orchestrator.gateways.redis_state import read_state
from chordage.orchestrator.store import processes
from chordage.orchestrator.store.database import Store
from chordage.workers.bootstrap import quick_redis_from
from chordage.workers.doctor import fleet, machine, services
from chordage.workers.doctor.context import RoomFault
from chordage.workers.doctor.examining import PROBES, Doctor, DoctorProbe
from chordage.workers.presence import process_of
from support import client_room
from support.examining import context_of, is_error, only, real_now
from support.waiting import PATIENCE

pytestmark = pytest.mark.redis


@pytest.fixture
def valkey(start_valkey):
    return start_valkey()


@pytest.fixture
def store(migrated_database_url):
    with closing(Store(migrated_database_url("sqlite"))) as made:
        yield made


@pytest.fixture
def context(store, valkey, tmp_path):
    room = client_room.write(tmp_path / "room")
    made = context_of(store, room, redis_url=valkey.url, presence=60, gone_after=600)  # for tests that take long
    return replace(made, redis=quick_redis_from(made.settings))


def show_worker(store, **more):
    with store.write() as tx:
        one = Process(id="here/1:7", machine="here", pid=7, born="then", queues=ALL_QUEUES, **more)
        processes.show(tx, [one], datetime.now(UTC))


def limit(store, database, connections):
    with store.write() as tx:
        tx.exec_driver_sql(f'ALTER DATABASE "{database}" CONNECTION LIMIT {connections}')


def codes(report):
    return {symptom.code for symptom in report.findings}


# all of it


def test_fleet_that_is_well_has_no_finding(context, store):
    show_worker(store)

    report = Doctor(context, [replace(probe, seconds=PATIENCE) for probe in PROBES]).examine()

    assert (report.findings, report.state) == ((), FleetState.FINE)
    assert [record.probe for record in report.probes if record.summary] == [probe.name for probe in PROBES]


def test_redis_that_is_away_is_one_error_and_the_database_is_looked_at_all_the_same(context, store, valkey):
    show_worker(store)
    with store.write() as tx:
        tx.exec_driver_sql("DROP INDEX ix_runs_lease")
    valkey.kill()

    report = Doctor(context).examine()

    assert codes(report) == {"redis_away", "missing_index"}
    assert report.state is FleetState.ERRORS
    away = next(symptom for symptom in report.findings if symptom.code == "redis_away")
    assert away.text.startswith("redis cannot be reached: Redis at redis://127.0.0.1:")
    summaries = {record.probe: record.summary for record in report.probes}
    assert summaries["work"] == "not looked at: no redis"


def test_database_that_is_away_is_one_error(context, tmp_path):
    gone = Store(f"sqlite:///{tmp_path / 'gone.db'}")
    absent = replace(context, store=gone, settings=context.settings.model_copy(update={"database_url": None}))

    report = Doctor(absent).examine()

    assert codes(report) == {"database_away"}
    assert "there is no database at" in report.findings[0].text
    assert report.findings[0].remedy == "chordage migrate"
    assert not (tmp_path / "room" / "execution.db").exists()


def test_probe_that_hangs_or_fails_is_a_finding_and_is_not_begun_twice(context):
    release, begun = threading.Event(), []

    def hang(_context):
        begun.append(1)
        release.wait(120)
        return ProbeAnswer(summary="at last")

    def fail(_context):
        raise ZeroDivisionError("by nought")

    probes = [DoctorProbe(name="slow", look=hang, seconds=0.05), DoctorProbe(name="broken", look=fail, remedy="mend")]
    one = Doctor(context, probes)

    report, again = one.examine(), one.examine()
    release.set()

    slow, broken = report.findings
    assert (slow.code, slow.text) == ("probe_not_made", "slow could not be looked at: it did not end within 0.05 s.")
    assert (broken.text, broken.remedy) == ("broken could not be looked at: ZeroDivisionError: by nought.", "mend")
    assert report.state is FleetState.WARNINGS
    assert again.findings == report.findings
    assert len(begun) == 1


def test_page_has_the_last_report_at_once_and_an_old_one_is_made_anew(context, store):
    show_worker(store)
    moments = [real_now()]
    one = Doctor(replace(context, now=lambda: moments[-1]), [PROBES[1]])

    assert one.latest() is None
    first = one.examine()
    assert one.latest() is first
    moments.append(moments[-1] + timedelta(minutes=1))
    one.latest()
    assert one.examine().made_at == moments[-1]


# Redis


@pytest.mark.parametrize(
    ("setting", "value", "code", "text"),
    [
        ("maxmemory-policy", "allkeys-lru", "redis_evicts", "maxmemory-policy is allkeys-lru: when the memory is full"),
        ("appendonly", "no", "redis_not_durable", "appendonly and save are off: a restart loses messages by name"),
        ("maxmemory", "1100000", "redis_memory_full", "of 1100000 bytes are in use: beyond that, Redis refuses"),
    ],
)
def test_setting_of_redis_that_loses_messages_is_named(context, setting, value, code, text):
    context.redis.config_set(setting, value)

    symptom = only(services.look_at_redis(context))

    assert symptom.code == code
    assert text in symptom.text
    assert symptom.remedy.startswith("valkey-cli ")


def test_snapshots_alone_are_told_from_nothing_at_all(context):
    context.redis.config_set("appendonly", "no")
    context.redis.config_set("save", "3600 1")

    assert "if they came after the last snapshot" in only(services.look_at_redis(context)).text


def test_replica_takes_no_messages(context, start_valkey):
    other = start_valkey("other")
    context.redis.replicaof("127.0.0.1", other.port)

    assert "redis_is_replica" in {symptom.code for symptom in services.look_at_redis(context).symptoms}


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"write_failures": ("append-only file",)}, "redis_cannot_save", "the last append-only file could not be"),
        ({"clients": 95, "most_clients": 100}, "redis_clients_full", "95 of 100 clients are connected"),
        ({"version": "5.0.7", "name": "Redis"}, "old_redis", "Redis 5.0.7 is older than 6.2."),
        ({"has_log": False, "has_snapshots": None}, "redis_not_durable", "the server does not say whether"),
    ],
)
def test_what_redis_says_of_itself_is_judged(context, change, code, text):
    state = replace(read_state(context.redis), **change)

    (symptom,) = services.redis_symptoms(state, "redis://here")

    assert (symptom.code, symptom.where) == (code, "redis://here")
    assert text in symptom.text


def test_queue_with_messages_and_without_workers_is_an_error(context, store):
    served = tuple(queue for queue in ALL_QUEUES if queue != "chat")
    with store.write() as tx:
        one = Process(id="here/1:7", machine="here", pid=7, born="then", queues=served)
        processes.show(tx, [one], datetime.now(UTC))
    assert fleet.look_at_processes(context).symptoms == ()
    context.redis.lpush(f"{context.settings.broker_prefix}chat", "a", "b")

    symptom = only(fleet.look_at_processes(context))

    assert (symptom.code, symptom.where) == ("queue_without_worker", "chat")
    assert symptom.text == "no worker takes messages from the queue chat, in which 2 messages wait."
    assert symptom.remedy == "chordage worker --queues chat"


@pytest.mark.parametrize(("seconds", "side"), [(60, "behind"), (-60, "ahead of")])
def test_clock_that_differs_from_that_of_redis_is_named_with_the_seconds(context, seconds, side):
    moved = replace(context, now=lambda: real_now() + timedelta(seconds=seconds))

    symptom = only(fleet.look_at_clocks(moved))

    assert (symptom.code, symptom.where) == ("clock_skew", "Redis")
    found = re.search(rf"the clock of Redis is (\d+) s {side} that of this machine\.", symptom.text)
    assert 30 <= int(found[1]) <= 90, "the minute, and what this machine may take between two looks"


@pytest.mark.postgres
def test_clock_and_connections_of_postgres_are_looked_at(migrated_database_url, tmp_path):
    with closing(Store(migrated_database_url("postgres"))) as store:
        context = context_of(store, tmp_path, now=lambda: real_now() + timedelta(seconds=60))
        symptom = only(fleet.look_at_clocks(context))
        name = make_url(store.url).database
        limit(store, name, 1)
        with store.read() as tx:
            tx.exec_driver_sql("SELECT 1")  # its connection is the one
            few = only(services.look_at_connections(context))
        limit(store, name, -1)

    assert (symptom.code, symptom.where) == ("clock_skew", "the database")
    assert few.code == "few_connections"
    assert "of 1 connections are taken (the CONNECTION LIMIT of the database): raise that limit" in few.text


def test_old_postgres_is_a_warning():
    (symptom,) = services.server_symptoms("PostgreSQL 12.4 (Debian 12.4-1)", unsafe=[])

    assert (symptom.code, is_error(symptom)) == ("old_database", False)
    assert "PostgreSQL 12.4" in symptom.text


# this machine


@pytest.mark.parametrize(("free", "error"), [(500, False), (50, True)])
def test_disk_that_is_nearly_full_is_named(context, monkeypatch, free, error):
    monkeypatch.setattr(shutil, "disk_usage", lambda _place: SimpleNamespace(free=free * machine.MIB))

    symptom = machine.look_at_disks(context).symptoms[0]

    assert (symptom.code, is_error(symptom)) == ("disk_full", error)
    assert symptom.text == f"{free} MiB are free on the disk of {symptom.where}."
    assert symptom.remedy == f"df -h {symptom.where}"


def test_faults_of_the_room_and_variables_that_are_no_settings_are_told_apart(context):
    faults = [
        RoomFault(place="settings", text="variable CHORDAGE_PROT: there is no such setting; did you mean PORT?"),
        RoomFault(place="settings", text="setting port (CHORDAGE_PORT or chordage.toml): must be a number"),
        RoomFault(place="agents", text="agents/beta.toml:2: model: must be a text"),
    ]

    symptoms = machine.look_at_settings(replace(context, room=lambda: faults)).symptoms

    assert [(symptom.code, is_error(symptom)) for symptom in symptoms] == [
        ("unknown_setting", False), ("bad_setting", True), ("broken_file", True),
    ]  # fmt: skip
    assert [symptom.text for symptom in symptoms] == [fault.text for fault in faults]
    assert {symptom.remedy for symptom in symptoms} == {"chordage check"}


def test_visibility_timeout_below_the_longest_tool_is_a_warning(context):
    settings = context.settings.model_copy(update={"visibility_timeout": 600})

    symptom = only(machine.look_at_settings(replace(context, settings=settings)))

    assert symptom.code == "short_visibility_timeout"
    assert "a message is delivered again after 600 s, and a tool may take 900 s" in symptom.text


def test_version_of_this_process_is_no_other_version(context, store):
    show_worker(store, version=process_of(1).version)

    assert fleet.look_at_processes(context).symptoms == ()
