"""`chordage pulse`, as people and programs see it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from chordage.orchestrator.core.pulse import WorkKind
from chordage.orchestrator.store import schema_version
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.views.pulse import StandingItem
from chordage.workers.cli import main, pulse
from support.plain_room import forget_settings, write_room


@pytest.fixture
def room(tmp_path, monkeypatch):
    forget_settings(monkeypatch)
    monkeypatch.chdir(tmp_path)
    write_room(tmp_path)
    store = Store(f"sqlite:///{tmp_path}/execution.db")
    schema_version.upgrade(store)
    store.close()
    (tmp_path / "chores").mkdir()
    (tmp_path / "chores/look.md").write_text("---\nevery: 5m\n---\nLook.\n")
    return tmp_path


def chordage(*arguments):
    return CliRunner().invoke(main, arguments)


def test_pulse_lists_what_there_is(room):
    said = chordage("pulse")

    assert said.exit_code == 0
    assert said.stdout.split("\t")[:5] == ["chore:look", "new", "-", "-", "every 300 s"]


def test_pulse_reports_faults_with_file_and_line_and_exits_with_one(room):
    (room / "will.md").write_text("---\ncron: soon\n---\n")

    said = chordage("pulse", "--json")

    assert said.exit_code == 1
    assert json.loads(said.stdout)["faults"][0].startswith("will.md:2: cron: ")
    assert "chordage: will.md:2" in chordage("pulse").stderr


def test_work_for_an_agent_that_is_not_there_is_a_fault_with_its_line(room):
    (room / "chores/other.md").write_text("---\nevery: 1h\nagent: nobody\n---\nLook.\n")

    said = chordage("pulse", "--json")

    assert said.exit_code == 1
    assert json.loads(said.stdout)["faults"] == [
        "chores/other.md:3: agent: there is no agent 'nobody'; there are: agent"
    ]


def test_what_should_have_come_by_now_is_due_and_not_so_long_ago(room):
    moment = datetime.now(UTC)
    item = StandingItem(
        name="chore:look", kind=WorkKind.CHORE, path="chores/look.md", title="Look", state="live",
        schedule="every 300 s", next_due=moment, last_slot=None, turns=0, turn_id=None, under_way=False,
        started_at=None, ended_at=None,
        disposition=None, run_id=None,
    )  # fmt: skip
    later = moment + timedelta(minutes=5)

    assert [pulse._short_row(replace(item, next_due=due))[2] for due in (moment, later, None)] == ["due", later, None]


def test_pulse_run_stores_a_turn_and_reports_a_missing_worker(room):
    said = chordage("pulse", "run", "look")

    assert said.exit_code == 0
    assert "chordage dev" in said.stderr
    again = chordage("pulse", "run", "look")
    assert (again.exit_code, said.stdout.strip() in again.stderr) == (1, True)
    assert json.loads(chordage("pulse", "--json").stdout)["items"][0]["under_way"] is True


def test_pulse_run_without_a_name_lists_the_choices(room):
    said = chordage("pulse", "run", "nothing")

    assert (said.exit_code, "chore:look" in said.stderr) == (1, True)


def test_task_that_has_no_id_yet_is_listed_with_a_dash_and_what_becomes_of_it(room):
    (room / "tasks").mkdir()
    (room / "tasks/paint.md").write_text("Paint the fence.\n")
    (room / "tasks/broken.md").write_text("---\nstatus: soon\n---\nHm.\n")

    lines = [line.split("\t") for line in chordage("pulse").stdout.splitlines()]
    listed = json.loads(chordage("pulse", "--json").stdout)["items"]

    assert [line[0] for line in lines] == ["chore:look", "-"]
    assert lines[1][1:3] == ["new", "gets its id at the next tick"]
    assert lines[1][-1] == "tasks/paint.md"
    assert [(one["name"], one["path"], one["state"]) for one in listed[1:]] == [(None, "tasks/paint.md", "new")]
    assert (room / "tasks/paint.md").read_text() == "Paint the fence.\n", "a look writes nothing"
