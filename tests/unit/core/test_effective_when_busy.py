"""What a message does that finds its thread busy: whose word counts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from chordage.orchestrator.core import arrivals
from chordage.orchestrator.core.agent import AgentSpec, WhenBusy, WhileWaiting
from chordage.orchestrator.core.approvals import Action, DecisionRequest
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.status import RunStatus

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ADA = AgentSpec(name="ada", model="fake")


RUN = SimpleNamespace(status=RunStatus.WAITING, reason=Reason.SUSPENDED, group=Group.CHAT)


def request(**more: object) -> TurnRequest:
    message = Message(origin=Origin.INVOKE, channel=None, sender=Sender.SERVICE, thread_id="t", text="hi")
    return TurnRequest(message=message, **more)


@pytest.mark.parametrize("said", [None, *WhenBusy])
@pytest.mark.parametrize("usual", list(WhenBusy))
def test_message_decides_and_else_its_agent(said, usual):
    when_busy = arrivals.effective_when_busy(request(when_busy=said), replace(ADA, when_busy=usual), NOW)

    assert when_busy is (said or usual)


@pytest.mark.parametrize("said", [None, *WhileWaiting])
def test_what_is_for_later_ends_no_run_that_waits(said):
    later = request(while_waiting=said, not_before=NOW + timedelta(seconds=1))
    at_once = replace(later, not_before=NOW)

    assert arrivals.end_of(RUN, later, ADA, WhenBusy.ENQUEUE, NOW) is None
    assert (arrivals.end_of(RUN, at_once, ADA, WhenBusy.ENQUEUE, NOW) is None) == (said is WhileWaiting.HOLD)


@pytest.mark.parametrize("when_busy", list(WhenBusy))
def test_what_is_for_later_touches_nothing_now(when_busy):
    later = request(when_busy=when_busy, not_before=NOW + timedelta(seconds=1))
    past = request(when_busy=when_busy, not_before=NOW)

    assert arrivals.effective_when_busy(past, ADA, NOW) is when_busy
    assert arrivals.effective_when_busy(later, ADA, NOW) is (
        when_busy if when_busy is WhenBusy.REJECT else WhenBusy.ENQUEUE
    )


@pytest.mark.parametrize("when_busy", list(WhenBusy))
def test_decision_about_a_run_ends_it_only_if_set_explicitly(when_busy):
    decides = request(decisions=(DecisionRequest(target="x", action=Action.RESUME),))
    by_habit = arrivals.effective_when_busy(decides, replace(ADA, when_busy=when_busy), NOW)
    by_word = arrivals.effective_when_busy(replace(decides, when_busy=when_busy), ADA, NOW)

    assert by_habit is (WhenBusy.ENQUEUE if when_busy in arrivals.ENDS_RUNS else when_busy)
    assert by_word is when_busy


HOLD, SUPERSEDE = WhileWaiting.HOLD, WhileWaiting.SUPERSEDE
INTERRUPT = WhenBusy.INTERRUPT


@pytest.mark.parametrize(
    ("said", "usual", "group", "supersedes"),
    [
        ({}, {}, Group.CHAT, True),
        ({}, {}, Group.TASK, False),
        ({"while_waiting": HOLD}, {}, Group.CHAT, False),
        ({"while_waiting": HOLD, "when_busy": INTERRUPT}, {}, Group.CHAT, False),
        ({"when_busy": INTERRUPT}, {"while_waiting": HOLD}, Group.CHAT, True),
        ({"when_busy": INTERRUPT}, {}, Group.TASK, True),
        ({}, {"while_waiting": HOLD, "when_busy": INTERRUPT}, Group.CHAT, False),
        ({}, {"when_busy": INTERRUPT}, Group.TASK, True),
        ({"when_busy": WhenBusy.ENQUEUE}, {"when_busy": INTERRUPT}, Group.TASK, False),
        ({"when_busy": WhenBusy.STEER}, {}, Group.CHAT, True),
        ({"while_waiting": SUPERSEDE}, {"while_waiting": HOLD}, Group.TASK, True),
    ],
)
def test_whether_a_run_that_waits_is_ended(said, usual, group, supersedes):
    assert arrivals.supersedes(request(group=group, **said), replace(ADA, **usual), group) is supersedes


@pytest.mark.parametrize(("said", "supersedes"), [({}, False), ({"when_busy": INTERRUPT}, True)])
def test_default_never_ends_a_waiting_run_of_a_higher_class(said, supersedes):
    habit = replace(ADA, when_busy=INTERRUPT)
    assert arrivals.supersedes(request(group=Group.TASK, **said), habit, Group.CHAT) is supersedes
