"""Records that a consumer made: repaired where that is safe, and never more sure than what was said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core.planning.plan import Command
from chordage.orchestrator.core.planning.records import PlanStatus, supplied

COMMAND = Command(purpose="look", tool_name="search", kwargs={"q": "x"}, todo_suggestion="read")
KEYS = ["success", "error", "result", "kwargs", "status", "purpose", "next"]


def of_one(raw):
    (record,) = supplied([raw], [COMMAND])
    return record


@pytest.mark.parametrize("raw", [None, {}, "x", 3])
def test_what_is_no_list_is_no_records(raw):
    """A11"""
    assert supplied(raw, [COMMAND]) == ()


def test_a_bare_value_is_a_result():
    records = of_one({"result": 1, "nonsense": 2}), of_one("found"), of_one(None)

    assert [(one.result, one.success, one.error) for one in records] == [
        (1, True, ""), ("found", True, ""), (None, True, ""),
    ]  # fmt: skip


def test_the_command_fills_what_is_missing():
    record = of_one({"result": "found", "purpose": 3, "kwargs": "x"})

    assert (record.purpose, record.tool_name, record.kwargs, record.todo_suggestion) == (
        "look",
        "search",
        {"q": "x"},
        "read",
    )


def test_keys_that_no_record_has_are_dropped():
    """A30"""
    assert set(of_one({"result": 1, "mood": "good"}).as_json()) == {
        "purpose", "tool_name", "kwargs", "todo_suggestion", "next", "success", "result", "error", "status", "call_id",
    }  # fmt: skip


def test_more_records_than_commands_get_names_by_their_place():
    """A31"""
    records = supplied([1, 2, 3], [COMMAND])

    assert [(one.purpose, one.tool_name) for one in records] == [
        ("look", "search"), ("tool_call_2", ""), ("tool_call_3", ""),
    ]  # fmt: skip


def test_fewer_records_than_commands_are_not_made_up():
    """A32"""
    assert len(supplied([1], [COMMAND, COMMAND])) == 1


def test_a_success_may_have_an_error_text():
    """A33"""
    record = of_one({"success": True, "result": "found", "error": "slow"})

    assert (record.success, record.error) == (True, "slow")


def test_failure_without_a_message_gets_one():
    """A34"""
    assert of_one({"success": False}).error == "Tool execution failed."
    assert of_one({"success": False, "result": "no"}).error == "no"


@pytest.mark.parametrize(
    ("text", "success"),
    [
        ("Error: x", False),
        ("  Error: x", False),
        ("error: x", True),
        ("Can not find tool named 'x'", False),
        ("x", True),
    ],
)
def test_only_without_status_and_success_does_the_text_decide(text, success):
    """A26"""
    assert of_one(text).success is success
    assert of_one({"result": text, "success": True}).success
    assert not of_one({"result": "fine", "success": False}).success


def test_a_status_decides_before_success_does():
    record = of_one({"status": "denied", "success": True, "result": "x"})

    assert (record.status, record.success, record.error) == (PlanStatus.DENIED, False, "x")


@pytest.mark.parametrize("status", ["waiting", "fine", 3, None, ["ok"]])
def test_invalid_status_is_ignored(status):
    assert of_one({"status": status, "error": "broken"}).status is PlanStatus.ERROR


def test_an_error_that_is_no_text_becomes_one_and_null_is_none():
    assert (of_one({"error": {"code": 5}}).error, of_one({"error": {"code": 5}}).success) == ("{'code': 5}", False)
    assert of_one({"error": None}).success


raw_records = st.recursive(
    st.none() | st.text() | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=10,
)


@given(raw_records)
def test_every_failure_has_a_message(raw):
    """A55: any value passes through as a result."""
    for record in supplied(raw, [COMMAND]):
        assert record.success or record.error
