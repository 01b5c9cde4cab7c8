"""Records of rounds: what the planner is shown of them, what the answer is given, what the logs keep."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core.planning.records import (
    PlanRecord,
    PlanRound,
    PlanStatus,
    action_results,
    done_plans,
    last_round_records,
    record_from,
    tool_logs,
)


def a_record(purpose: str = "look", **given: Any) -> PlanRecord:
    known = {"tool_name": "search", "kwargs": {}, "todo_suggestion": "", "status": PlanStatus.OK, "result": "found"}
    return PlanRecord(purpose=purpose, **{**known, **given})


def test_a_record_has_the_keys_that_every_reader_knows_and_two_more():
    assert list(a_record(todo_suggestion="go on", call_id="c").as_json().items()) == [
        ("purpose", "look"), ("tool_name", "search"), ("kwargs", {}), ("todo_suggestion", "go on"), ("next", "go on"),
        ("success", True), ("result", "found"), ("error", ""), ("status", "ok"), ("call_id", "c"),
    ]  # fmt: skip


@pytest.mark.parametrize("status", list(PlanStatus))
def test_a_record_comes_back_as_it_was_stored(status):
    record = a_record(status=status, result={"a": [None, 1]}, error="e", call_id="c", kwargs={"q": "x"})

    assert record_from(json.loads(json.dumps(record.as_json()))) == record


def test_only_what_is_ok_is_a_success_and_what_waits_has_not_failed():
    assert [status.value for status in PlanStatus if a_record(status=status).success] == ["ok"]
    assert [status.value for status in PlanStatus if not status.failed] == ["ok", "waiting"]


def test_the_last_round_is_the_previous_round_and_no_other():
    """A50, beaten: merged into what was there, the last round would be all rounds."""
    rounds = [PlanRound(index=at, records=(a_record(f"round {at}"),)) for at in (2, 0, 1)]

    assert [one.purpose for one in last_round_records(rounds, 3)] == ["round 2"]
    assert [one.purpose for one in last_round_records(rounds, 1)] == ["round 0"]
    assert last_round_records(rounds, 0) == ()
    assert [one.purpose for one in done_plans(rounds)] == ["round 0", "round 1", "round 2"]


def test_an_identical_record_is_a_record_of_its_own():
    """A51, beaten, and A59: lists that merge by equality make two calls look like one."""
    rounds = [PlanRound(index=at, records=(a_record(), a_record())) for at in range(2)]

    assert len(done_plans(rounds)) == 4
    assert len(last_round_records(rounds, 2)) == 2
    assert len(action_results(done_plans(rounds))) == 4
    assert len(tool_logs(done_plans(rounds))) == 4


def test_a_round_without_records_is_the_last_round_all_the_same():
    """A11"""
    rounds = [PlanRound(index=0, records=(a_record(),)), PlanRound(index=1, records=())]

    assert last_round_records(rounds, 2) == ()


def test_results_are_keyed_by_purpose_and_failures_have_their_error():
    """A35"""
    failed = a_record("buy", status=PlanStatus.TIMEOUT, result="too slow", error="too slow")

    assert action_results([a_record("look", result=None), failed]) == {
        "look": None,
        "buy": {"error": "too slow", "result": "too slow"},
    }


@pytest.mark.parametrize(
    ("purposes", "names"),
    [
        (["p", "p", "p"], ["p", "p (2)", "p (3)"]),
        (["", "a", "  "], ["tool_call_1", "a", "tool_call_3"]),
        (["p", "p", "p (2)"], ["p", "p (2)", "p (2) (2)"]),
        (["p (2)", "p", "p"], ["p (2)", "p", "p (3)"]),
        (["tool_call_2", ""], ["tool_call_2", "tool_call_2 (2)"]),
    ],
    ids=[f"A35 {n}" for n in range(1, 6)],
)
def test_a_purpose_that_is_taken_gets_a_number(purposes, names):
    records = [a_record(purpose, result=place) for place, purpose in enumerate(purposes)]

    assert action_results(records) == {name: place for place, name in enumerate(names)}
    assert list(action_results(records)) == names


@given(st.lists(st.sampled_from(["", "p", "p (2)", "p (2) (2)", "p (3)", "tool_call_2", "tool_call_2 (2)"])))
def test_no_result_ever_takes_the_place_of_another(purposes):
    """A35, beaten"""
    records = [a_record(purpose, result=place) for place, purpose in enumerate(purposes)]

    assert list(action_results(records).values()) == list(range(len(purposes)))


def test_no_records_make_no_results_and_no_logs():
    """A36"""
    assert (action_results([]), tool_logs([])) == ({}, [])


def test_the_logs_hold_the_raw_records():
    """A38"""
    records = [a_record("one"), a_record("two", status=PlanStatus.DENIED, error="no")]

    assert tool_logs(records) == [record.as_json() for record in records]
