"""Why a run ended, and what that means for its message."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.reasons import (
    DISPOSITION_OF,
    NATURAL_END,
    SUPERSEDED,
    Ending,
    Reason,
    cancelled,
    disposition_of,
    failed,
    stopped,
)
from chordage.orchestrator.core.status import Disposition


@pytest.mark.parametrize(
    ("reason", "disposition"),
    [
        (Reason.NATURAL_END, Disposition.ANSWERED),
        (Reason.BEHAVIOR_REQUESTED, Disposition.ANSWERED),
        (Reason.STOPPED, Disposition.ANSWERED),
        (Reason.CANCELLED, Disposition.CANCELLED),
        (Reason.ERROR, Disposition.FAILED),
    ],
)
def test_every_end_of_a_run_is_one_end_of_its_message(reason, disposition):
    assert disposition_of(Ending(reason=reason)) is disposition


def test_a_run_that_a_later_message_ended_was_superseded():
    assert disposition_of(Ending(reason=Reason.CANCELLED, code=SUPERSEDED)) is Disposition.SUPERSEDED


def test_the_reasons_to_wait_end_nothing():
    assert set(Reason) - set(DISPOSITION_OF) == {Reason.SUSPENDED, Reason.HELD}


def test_code_and_detail_are_two_fields():
    ending = stopped("max_rounds", "the limit of 3: reached")

    assert (ending.reason, ending.code, ending.detail) == (Reason.STOPPED, "max_rounds", "the limit of 3: reached")


def test_endings_by_name():
    assert (NATURAL_END.reason, NATURAL_END.code) == (Reason.NATURAL_END, None)
    assert failed("poison", "why") == Ending(reason=Reason.ERROR, code="poison", detail="why")
    assert cancelled() == Ending(reason=Reason.CANCELLED)
    assert cancelled("enough").detail == "enough"
    assert stopped("refusal").detail is None
