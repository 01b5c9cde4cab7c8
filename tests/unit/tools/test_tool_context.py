"""The context and the request to suspend, as a user's own tests would use them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from chordage import Context, OnExpiry, ResumeMode, Suspend


@pytest.mark.parametrize(
    ("said", "note"),
    [
        ((0.4,), "40%"),
        ((0.4, "reading"), "40% reading"),
        (("reading", "page 3"), "reading page 3"),
        ((7,), "100%"),
        ((-1.0,), "0%"),
        (("x" * 900,), "x" * 500),
    ],
)
def test_progress_is_one_short_line(said, note):
    heard = []
    Context(on_progress=heard.append).progress(*said)
    assert heard == [note]


def test_custom_context_has_all_a_tool_needs():
    context = Context(call_id="mine")
    context.progress("nobody hears it")
    assert (context.call_id, context.attempt, context.cancelled) == ("mine", 1, False)


def test_cancelled_context_is_marked_and_reports_no_more():
    heard = []
    context = Context(on_progress=heard.append)
    context.cancel()
    context.progress("late")
    assert context.cancelled
    assert heard == []


def test_suspend_carries_everything_the_engine_needs():
    with pytest.raises(Suspend) as asked:
        Context().suspend(
            "May I?",
            schema={"type": "boolean"},
            resume_mode="use_decision_as_tool_result",
            expires_in=timedelta(minutes=2),
            on_expiry="default",
            default=False,
        )
    request = asked.value.question
    assert (request.prompt, request.schema, request.default) == ("May I?", {"type": "boolean"}, False)
    assert (request.resume_mode, request.on_expiry) == (ResumeMode.USE_AS_RESULT, OnExpiry.DEFAULT)
    assert request.expires_in == 120.0


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"prompt": " "}, "the prompt is blank; say what has to be decided"),
        ({"resume_mode": "again"}, "resume_mode must be one of replay_tool_call, .*; got 'again'"),
        ({"on_expiry": "forget"}, "on_expiry must be one of deny, cancel_run, escalate, default; got 'forget'"),
        ({"expires_in": 0}, "expires_in must be more than 0 seconds and at most 31622400, or left out; got 0"),
        ({"expires_in": timedelta(0)}, "expires_in must be more than 0 seconds"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(wrong, why):
    with pytest.raises(ValueError, match=why):
        Suspend(**{"prompt": "May I?", **wrong})
