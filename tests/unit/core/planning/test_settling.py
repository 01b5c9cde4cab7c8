"""From the calls of a round to its records."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from chordage.orchestrator.core.planning.plan import Command
from chordage.orchestrator.core.planning.records import PlanStatus, not_offered, not_run, settled, value_in
from chordage.orchestrator.core.records import Answer
from chordage.orchestrator.core.status import CallStatus
from support.builders import a_call

COMMAND = Command(purpose="look", tool_name="search", kwargs={"q": "x"}, todo_suggestion="read")


def of_one(**given: Any):
    (record,) = settled([COMMAND], [a_call(**given)])
    return record


def failed(code: str, content: str = "it broke"):
    return of_one(status=CallStatus.FAILED, code=code, content=content)


def test_record_has_the_purpose_and_the_outcome():
    record = of_one(id="c7", content="found", arguments={"q": "x"})

    assert (record.purpose, record.tool_name, record.todo_suggestion) == ("look", "search", "read")
    assert (record.success, record.result, record.error, record.call_id) == (True, "found", "", "c7")


def test_records_keep_the_order_of_the_commands():
    """A18"""
    commands = [Command(purpose=str(place), tool_name="t", kwargs={}) for place in range(3)]
    calls = [a_call(id=f"c{place}", place=place, content=str(place)) for place in range(3)]

    for finished in permutations(calls):
        assert [(one.purpose, one.call_id) for one in settled(commands, finished)] == [
            ("0", "c0"), ("1", "c1"), ("2", "c2"),
        ]  # fmt: skip


def test_null_is_a_result():
    """A22"""
    record = of_one(content="null")

    assert (record.success, record.result, record.error) == (True, None, "")


def test_tool_that_raised_has_its_message_as_result_and_as_error():
    """A23"""
    record = failed("raised", "ToolError: ValueError: no such day")

    assert (record.status, record.success) == (PlanStatus.ERROR, False)
    assert record.result == record.error == "ToolError: ValueError: no such day"


def test_a_tool_that_does_not_exist_is_a_failed_record():
    """A24"""
    assert (failed("unknown_tool").status, failed("unknown_tool").success) == (PlanStatus.NOT_FOUND, False)


def test_arguments_that_do_not_fit_are_a_failed_record():
    """A25"""
    assert (failed("invalid_arguments").status, failed("invalid_arguments").success) == (PlanStatus.BAD_INPUT, False)


@pytest.mark.parametrize("content", ["Error: is what the manual calls it", "  Error: x", "Can not find tool named 'x'"])
def test_a_result_that_reads_like_an_error_is_a_result(content):
    """A26, beaten: judged by its first word, a page about errors would be a failure."""
    record = of_one(content=content)

    assert (record.success, record.result, record.error) == (True, content, "")


def test_an_object_with_the_key_error_is_the_result_of_a_tool_that_succeeded():
    """A27"""
    assert (of_one(content='{"error": "e"}').success, of_one(content='{"error": "e"}').result) == (True, {"error": "e"})


def test_an_error_of_a_remote_tool_is_a_failure_whatever_it_looks_like():
    """A28, beaten: its server says that it failed, and what it returned as an object does not hide that."""
    record = failed("raised", '{"error": "quota"}')

    assert (record.success, record.status, record.error) == (False, PlanStatus.ERROR, '{"error": "quota"}')


CODES = [
    (CallStatus.FAILED, "out_of_scope", PlanStatus.NOT_OFFERED),
    (CallStatus.FAILED, "timeout", PlanStatus.TIMEOUT),
    (CallStatus.FAILED, "blocked", PlanStatus.DENIED),
    (CallStatus.FAILED, "outcome_unknown", PlanStatus.UNKNOWN),
    (CallStatus.FAILED, "anything_else", PlanStatus.ERROR),
    (CallStatus.FAILED, None, PlanStatus.ERROR),
    (CallStatus.CANCELLED, "denied", PlanStatus.DENIED),
    (CallStatus.CANCELLED, "not_run", PlanStatus.CANCELLED),
    (CallStatus.CANCELLED, None, PlanStatus.CANCELLED),
    (CallStatus.NEW, None, PlanStatus.WAITING),
    (CallStatus.RUNNING, None, PlanStatus.WAITING),
    (CallStatus.SUSPENDED, None, PlanStatus.WAITING),
    (CallStatus.RESUMING, None, PlanStatus.WAITING),
]


@pytest.mark.parametrize(("status", "code", "expected"), CODES)
def test_the_status_of_a_call_decides(status, code, expected):
    record = of_one(status=status, code=code, content=None)

    assert (record.status, record.success) == (expected, False)
    assert record.error


def test_waiting_call_has_no_result_yet_and_is_marked():
    record = of_one(status=CallStatus.SUSPENDED, content=None)

    assert (record.result, record.error) == (None, "This call has not been executed: it awaits a decision.")


def test_a_command_without_a_call_did_not_run():
    records = settled([COMMAND, COMMAND], [a_call(place=1)])

    assert [one.status for one in records] == [PlanStatus.CANCELLED, PlanStatus.OK]
    assert (records[0].error, records[0].call_id) == ("This call did not run and has no result.", "")


def test_arguments_are_those_the_tool_got():
    answer = Answer(
        id="c", run_id="r", step=2, place=0, ask_id="a", status=CallStatus.SUCCEEDED, code=None, content="found"
    )

    assert of_one(arguments={"q": "amended"}).kwargs == {"q": "amended"}
    assert settled([COMMAND], [answer])[0].kwargs == {"q": "x"}


@pytest.mark.parametrize(
    ("content", "value"),
    [
        ('{"a": [1, null]}', {"a": [1, None]}), ("[]", []), ("null", None), ("", ""), ("0042", "0042"),
        ("true", "true"), ("{not json}", "{not json}"), ("nullify", "nullify"), ('{"a": NaN}', '{"a": NaN}'),
        ('{"a": "\\u0000"}', {"a": "\ufffd"}), ("[" * 5000, "[" * 5000), ("[" * 200 + "]" * 200, "[" * 200 + "]" * 200),
        ('{"cut": "sh\n[These are the first 11 characters]', '{"cut": "sh\n[These are the first 11 characters]'),
    ],
    ids=lambda one: repr(one)[:30],
)  # fmt: skip
def test_what_a_tool_returned_as_an_object_is_one_again(content, value):
    assert value_in(content) == value


def test_command_that_was_not_offered_lists_the_offered_ones():
    """A53"""
    record = not_offered(COMMAND, {"read", "browse"})

    assert (record.status, record.success, record.call_id) == (PlanStatus.NOT_OFFERED, False, "")
    assert record.error == "The tool 'search' was not offered and was not run. Tools you may use: browse, read."
    assert not_offered(COMMAND, ()).error.endswith("Tools you may use: none.")


def test_command_that_did_not_run_gives_the_reason():
    assert (not_run(COMMAND, "too late").error, not_run(COMMAND).status) == ("too late", PlanStatus.CANCELLED)
