"""What is said of a question that is closed: the truth of its rows, and nothing of its content."""

from __future__ import annotations

from datetime import timedelta

import pytest

from chordage.orchestrator.core.approvals import EXPIRY, RESULT_SOURCE, Action, ClosedQuestion, OnExpiry, Why
from chordage.orchestrator.core.approvals import UNDECIDED as NO_DECISION
from chordage.orchestrator.core.approvals import SuspensionStatus as Status
from chordage.orchestrator.core.reasons import SUPERSEDED, Reason
from chordage.orchestrator.core.status import CallStatus
from support.builders import NOON

AT = f"{NOON:%Y-%m-%d %H:%M} UTC"
LATER = NOON + timedelta(hours=1)
BY_ANN = {"action": Action.RESUME, "source": "http", "decided_by": "ann", "decided_at": NOON, "applied_at": NOON}
BY_NONE = {**BY_ANN, "source": EXPIRY, "decided_by": EXPIRY}
CANCELLED = {"run_reason": Reason.CANCELLED, "run_ended_at": NOON, "status": Status.SUPERSEDED}
CASES = {
    "approved": (BY_ANN, f"was approved at {AT} by ann (http)"),
    "denied": ({**BY_ANN, "action": Action.CANCEL}, f"was denied at {AT} by ann (http)"),
    "of a caller": ({**BY_ANN, "why": Why.CLIENT}, f"was answered at {AT} by ann (http)"),
    "of an unknown outcome": ({**BY_ANN, "why": Why.UNKNOWN}, f"was answered at {AT} by ann (http)"),
    "the command": ({**BY_ANN, "source": "cli", "decided_by": "cli"}, f"was approved at {AT} by cli"),
    "a sub-agent": ({**BY_ANN, "why": Why.CHILD}, f"was answered by its sub-agent at {AT}"),
    "a result": (
        {**BY_ANN, "why": Why.UNKNOWN, "source": RESULT_SOURCE, "decided_by": RESULT_SOURCE},
        f"was closed at {AT} by the result of the call, which arrived after all",
    ),
    "expired": (
        {**BY_NONE, "action": Action.CANCEL, "expires_at": NOON, "decided_at": LATER},
        f"expired at {AT} without a decision, and the call was denied then",
    ),
    "a default": (
        {**BY_NONE, "expires_at": NOON}, f"expired at {AT} without a decision, and its default answer was applied then",
    ),
    "expired with its run": (
        {**CANCELLED, "run_detail": NO_DECISION, "on_expiry": OnExpiry.CANCEL_RUN, "expires_at": NOON},
        f"expired at {AT} without a decision, and its run was cancelled then",
    ),
    "cancelled before it expired": (
        {**CANCELLED, "run_detail": NO_DECISION, "on_expiry": OnExpiry.CANCEL_RUN, "expires_at": LATER},
        f"was closed without a decision at {AT}, when its run was cancelled",
    ),
    "cancelled": (CANCELLED, f"was closed without a decision at {AT}, when its run was cancelled"),
    "failed": (
        {**CANCELLED, "run_reason": Reason.ERROR}, f"was closed without a decision at {AT}, when its run failed",
    ),
    "a later message": (
        {**CANCELLED, "run_code": SUPERSEDED},
        f"was closed without a decision at {AT}, when its run was ended by a later message",
    ),
    "not applied": (
        {**BY_ANN, **CANCELLED, "applied_at": None},
        f"was approved at {AT} by ann (http), and its run ended before that was applied",
    ),
    "another way": ({}, "was closed without a decision, since its call was settled in another way"),
}  # fmt: skip


@pytest.mark.parametrize(("facts", "fate"), CASES.values(), ids=CASES)
def test_the_words_are_those_of_its_rows(facts, fate):
    blank = {
        "id": "s", "run_id": "r", "tool": "pay", "why": Why.TOOL, "status": Status.SETTLED, "expires_at": None,
        "on_expiry": OnExpiry.DENY, "call_status": CallStatus.SUCCEEDED, "run_reason": None, "run_code": None,
        "run_detail": None, "run_ended_at": None,
    }  # fmt: skip

    assert ClosedQuestion(**{**blank, **facts}).fate == fate
