"""Which lines of a log are shown to the user who started the fleet."""

from __future__ import annotations

import json

import pytest

from chordage.workers.fleet.member import Member, MemberRole
from chordage.workers.fleet.supervision import WIDTH, LoggedErrors, error_in


def line(level, event, **more):
    return json.dumps({"level": level, "event": event, **more}) + "\n"


def test_error_is_shown_with_the_end_of_its_traceback():
    trace = "Traceback (most recent call last):\n  File ...\nValueError: no\n"

    assert error_in(line("error", "Task failed", exception=trace)) == "Task failed (ValueError: no)"
    assert error_in(line("critical", "deaf")) == "deaf"
    assert error_in(line("error", "agent cannot be used", fault="a.toml:3")) == "agent cannot be used: a.toml:3"


@pytest.mark.parametrize(
    "said", [line("info", "ready"), line("warning", "late"), "plain text\n", '{"half": \n', "[1]\n", '{"a":' * 5000]
)
def test_everything_else_stays_in_the_file(said):
    assert error_in(said) is None


def test_very_long_error_is_cut():
    assert len(error_in(line("error", "x" * 1000))) == WIDTH + 1


def test_only_what_is_written_from_now_on_is_passed_on_with_the_name_of_the_member(tmp_path):
    member = Member(MemberRole(name="turns", arguments=()), tmp_path, {})
    member.log.parent.mkdir()
    member.log.write_text(line("error", "of yesterday"))
    told = []
    complaints = LoggedErrors([member], told.append)

    with member.log.open("a") as log:
        log.write(line("error", "of today") + line("info", "nothing"))
    complaints.report()
    complaints.report()

    assert told == ["turns: of today"]


def test_half_a_line_waits_for_its_other_half_and_a_rotated_log_is_read_from_its_start(tmp_path):
    member = Member(MemberRole(name="turns", arguments=()), tmp_path, {})
    member.log.parent.mkdir()
    member.log.write_text("long before\n" * 9)
    told = []
    complaints = LoggedErrors([member], told.append)
    whole = line("error", "in two parts")

    member.log.unlink()
    complaints.report()
    member.log.write_text(whole[:20])
    complaints.report()
    assert told == []
    with member.log.open("a") as log:
        log.write(whole[20:])
    complaints.report()

    assert told == ["turns: in two parts"]
