"""What commands print for people and for programs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import Bounds
from chordage.workers.cli.output import ago, print_json, print_table, span

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_json_has_values_of_ours_as_plain_ones(capsys):
    print_json({"bounds": Bounds(), "group": Group.CHAT, "at": NOW, "names": {"b", "a"}, "text": "ä"})

    printed = capsys.readouterr().out
    assert json.loads(printed) == {
        "bounds": {"text_bytes": 262144, "meta_bytes": 65536},
        "group": "chat",
        "at": "2026-01-01T00:00:00+00:00",
        "names": ["a", "b"],
        "text": "ä",
    }
    assert "ä" in printed


def test_table_for_programs_is_one_line_a_row_without_heading(capsys):
    print_table(["name", "text", "at"], [["one", "two\nlines\tand tabs", NOW], ["two", None, Group.WILL]])

    assert capsys.readouterr().out == "one\ttwo lines and tabs\t2026-01-01T00:00:00+00:00\ntwo\t-\twill\n"


def test_table_for_people_has_a_heading(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_table(["name"], [["one"]])
    print_table(["name"], [], empty="there are none")

    lines = capsys.readouterr().out.splitlines()
    assert "name" in lines[0]
    assert "one" in lines[1]
    assert lines[2] == "there are none"


def test_durations_are_shown_in_the_largest_unit_that_fits():
    assert [span(seconds) for seconds in (0.25, 12, 119, 120, 7200, 172800)] == [
        "0.2 s", "12 s", "119 s", "2 min", "2 h", "2 d",
    ]  # fmt: skip


def test_times_are_shown_relative_to_now():
    assert ago(NOW - timedelta(seconds=30), NOW) == "30 s ago"
    assert ago(NOW + timedelta(minutes=5), NOW) == "in 5 min"
    assert ago(NOW, NOW) == "now"
