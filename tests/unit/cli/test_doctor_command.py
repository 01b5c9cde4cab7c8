"""`chordage doctor`: what it prints, and its exit codes."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

import pytest

from chordage.config.settings import load
from chordage.orchestrator.core.groups import ALL_QUEUES
from chordage.orchestrator.core.presence import Process
from chordage.orchestrator.store import processes
from chordage.workers.cli.context import open_store
from support.repository import ROOT


@pytest.fixture
def worker(chordage, room, monkeypatch):
    """A database, and a worker that is seen on it. It need not show itself again while a slow test lasts."""
    monkeypatch.setenv("CHORDAGE_PRESENCE", "60")
    monkeypatch.setenv("CHORDAGE_GONE_AFTER", "600")
    chordage("migrate")
    with open_store(load(room=room)) as store, store.write() as tx:
        one = Process(id="far/1:7", machine="far", pid=7, born="then", queues=ALL_QUEUES)
        processes.show(tx, [one], datetime.now(UTC))


def test_fleet_that_is_well_ends_with_zero_and_says_what_was_looked_at(chordage, worker):
    done = chordage("doctor")

    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("nothing is wrong. Looked at:\n  settings ")
    assert re.search(r"^  database +SQLite 3", done.stdout, re.MULTILINE)
    assert json.loads(chordage("doctor", "--json").stdout)["state"] == "fine"


def test_warnings_alone_end_with_one(chordage, worker):
    done = chordage("doctor", prot="8630")

    (line,) = done.stdout.splitlines()
    assert done.exit_code == 1
    assert line.split("\t")[:4] == ["warning", "unknown_setting", "settings", "-"]
    assert "variable CHORDAGE_PROT: there is no such setting; did you mean CHORDAGE_PORT?" in line
    assert line.endswith("\tchordage check")
    assert done.stderr == "\n0 errors, 1 warning\n"


def test_errors_end_with_two_and_come_first(chordage, room, worker):
    (room / "agents" / "beta.toml").write_text('name = "beta"\nmodel = 3\n')
    with open_store(load(room=room)) as store, store.write() as tx:
        processes.mark_ended(tx, ["far/1:7"], datetime.now(UTC) - timedelta(hours=1))

    done = chordage("doctor", "--json", prot="8630")

    report = json.loads(done.stdout)
    assert (done.exit_code, report["state"]) == (2, "errors")
    assert [finding["severity"] for finding in report["findings"]] == ["error", "error", "warning"]
    by_code = {finding["code"]: finding for finding in report["findings"]}
    assert by_code["no_worker"]["remedy"] == "chordage start"
    assert by_code["no_worker"]["since"] is not None
    assert "agents/beta.toml:2: model: must be a text" in by_code["broken_file"]["text"]


def test_settings_that_cannot_be_used_are_all_named_and_nothing_else_is_looked_at(chordage):
    done = chordage("doctor", "--json", port="high", lease="-1")

    report = json.loads(done.stdout)
    assert (done.exit_code, report["probes"]) == (2, [])
    assert {finding["code"] for finding in report["findings"]} == {"bad_setting"}
    assert len(report["findings"]) == 2


def test_before_the_first_start_it_says_so_and_creates_nothing(chordage, room):
    done = chordage("doctor")

    assert done.exit_code == 2
    assert "error\tdatabase_away\tdatabase\t-\tdatabase cannot be reached: there is no database at" in done.stdout
    assert not (room / "execution.db").exists()


def test_page_of_operations_lists_the_codes_that_there_are():
    """Nothing else in these modules is written so."""
    made = "".join(file.read_text() for file in (ROOT / "workers" / "doctor").glob("*.py"))
    page = (ROOT / "docs" / "how-to" / "operations.md").read_text()
    table = page.partition("## Doctor")[2].partition("## What to watch")[0]
    listed = {code for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for code in re.findall(r"`(\w+)`", row)}

    assert listed == {*re.findall(r'"([a-z]+_[a-z_]+)"', made), "database_away", "redis_away"}


def test_help_documents_the_exit_codes(chordage):
    words = " ".join(chordage("doctor", "--help").output.split())

    assert "0 nothing is wrong; 1 warnings alone; 2 errors" in words
