"""The tables of reasons: they have an answer for any facts, and say it in whole sentences."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core.approvals import Why
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.leases import LeaseRules
from chordage.orchestrator.core.pulse import PulseRow
from chordage.orchestrator.core.why import calls, deliveries, runs, schedules, turns
from chordage.orchestrator.core.why.reasons import (
    Finding,
    OwnerKind,
    Remedy,
    RowKind,
    WaitCause,
    WaitClock,
    WaitOwner,
    first_match,
    one_line,
)
from chordage.workers.cli import COMMANDS
from support.repository import ROOT

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CLOCK = WaitClock(now=NOW, leases=LeaseRules())
PAGE = ROOT / "docs" / "reference" / "why.md"

times = st.integers(-99, 99).map(lambda seconds: NOW + timedelta(seconds=seconds))
words = st.sampled_from(["a", "b"])
OF_TYPE = {
    datetime: times, datetime | None: st.none() | times, str: words, str | None: st.none() | words,
    int | None: st.none() | st.integers(1, 9),
}  # fmt: skip


def facts(kind: type[Any], **more: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind)
    return st.builds(kind, **{name: OF_TYPE[hint] for name, hint in hints.items() if hint in OF_TYPE} | more)


small = st.integers(0, 3)
questions = facts(calls.OpenSuspension)
open_calls = facts(calls.OpenCall, question=st.none() | questions)
groups = facts(turns.GroupState, budget=small, running=small, holders=st.just(("r1", "r2")))
CASES = {
    "turn": (turns.of_queued_turn, facts(turns.QueuedTurn, ready=st.integers(0, 2), group=groups, ahead=small)),
    "run": (
        runs.of_run,
        facts(runs.OpenRun, in_flight=st.lists(open_calls, max_size=2), questions=st.lists(questions, max_size=2)),
    ),
    "call": (calls.of_call, open_calls),
    "suspension": (calls.of_suspension, questions),
    "delivery": (deliveries.of_delivery, facts(deliveries.UnsentReply, attempts=small)),
    "pulse": (schedules.of_work, facts(schedules.LiveWork, row=facts(PulseRow))),
    "channel": (schedules.of_channel, facts(schedules.ChannelLook)),
}


@pytest.mark.parametrize("kind", CASES)
@given(data=st.data())
def test_any_facts_have_a_reason(kind: str, data: st.DataObject) -> None:
    rule, some_facts = CASES[kind]

    reason = rule(data.draw(some_facts), CLOCK).reason

    assert reason.kind is RowKind(kind)
    assert reason.text.strip() == reason.text
    assert reason.text[-1] in ".…"
    assert "None" not in reason.text
    command = reason.remedy.command.split()
    assert command[0] == "chordage"
    assert command[1] in COMMANDS
    assert reason.remedy.http is None or re.match(r"(GET|POST|PATCH) /[a-z]", reason.remedy.http)
    assert str(reason.owner)


def test_the_first_match_counts() -> None:
    def says(text: str) -> Finding:
        return calls.of_suspension(a_question(tool=text), CLOCK)

    tests = (lambda *_: None, lambda *_: says("second"), lambda *_: says("third"))

    assert "second" in first_match(tests, object(), CLOCK).reason.text


def test_a_table_that_matches_nothing_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="matches everything"):
        first_match((lambda *_: None,), object(), CLOCK)


def a_question(**more: Any) -> calls.OpenSuspension:
    usual = {
        "id": "s", "call_id": "c", "run_id": "r", "turn_id": "u", "agent": "ada", "tool": "deploy", "why": Why.TOOL,
        "status": calls.SuspensionStatus.OPEN, "created_at": NOW, "expires_at": None,
        "on_expiry": calls.OnExpiry.DENY, "is_overdue": False,
    }  # fmt: skip
    return calls.OpenSuspension(**{**usual, **more})


def test_question_whose_answer_has_a_schema_is_approved_with_a_payload() -> None:
    commands = [
        calls.of_suspension(a_question(needs_payload=needs), CLOCK).reason.remedy.command for needs in (False, True)
    ]

    assert commands == ["chordage approve s", "chordage approve s --payload JSON"]


def test_owners_are_named_in_words() -> None:
    named = [str(WaitOwner(kind=kind, id="x")) for kind in (OwnerKind.TURN, OwnerKind.PROCESS)]
    nameless = [str(WaitOwner(kind=kind)) for kind in (OwnerKind.PERSON, OwnerKind.CONSUMER, OwnerKind.CLOCK)]

    assert named == ["turn x", "process x"]
    assert nameless == ["a person", "its consumer", "the clock"]


def test_quoted_error_is_one_line_of_bounded_length() -> None:
    assert one_line("it\n said  no.") == "it said no."
    assert len(one_line("x" * 999)) == 202


def test_every_cause_is_on_the_page_and_no_other() -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \| (.+?) \| (.+?) \| (.+?) \|$", PAGE.read_text(), re.MULTILINE)

    assert [cause for cause, *_ in rows] == [cause.value for cause in WaitCause]


def test_a_remedy_may_have_no_counterpart_over_http() -> None:
    assert Remedy(command="chordage poll").http is None


def test_group_that_hides_other_tenants_names_neither_runs_nor_tenants() -> None:
    state = turns.GroupState(
        group=Group.CHAT, budget=1, running=1, holders=("r1",), next_tenant="b", all_fit=False, names_others=False
    )
    turn = turns.QueuedTurn(
        id="u", thread_id="t", agent="ada", tenant="a", ready=1, steers=False, queued_at=NOW, due_at=NOW,
        not_before=None, deadline=None, sent_at=NOW, lost_at=NOW, is_unwanted=False, line=turns.LineState(),
        group=state,
    )  # fmt: skip

    found = turns.of_queued_turn(turn, CLOCK)

    assert found.next is None
    assert "r1" not in found.reason.text
