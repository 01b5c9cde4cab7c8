"""The rows and bars of a run: what is drawn where, and what is cut."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest

from chordage.orchestrator.console.scale import BarKind, TimelineSpan, TimeScale
from chordage.orchestrator.console.timeline import RunFamily, timeline
from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.approvals import OnExpiry, ResumeMode, SuspensionStatus, Why
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.model import Fault, Usage
from chordage.orchestrator.core.status import CallStatus, RunStatus
from chordage.orchestrator.views.approvals import QuestionView
from chordage.orchestrator.views.calls import CallView
from chordage.orchestrator.views.processes import Takeover
from chordage.orchestrator.views.runs import AttemptView, InferenceStep, RunView, StepStatus, ToolRound, WaitStep
from support.builders import NOON

DAY = 86_400.0


def at(seconds):
    return NOON + timedelta(seconds=seconds)


def a_view(*steps, status=RunStatus.DONE, ended=10.0, started=0.0):
    return RunView(
        run_id="r", thread_id="t", turn_id="u", agent="ada", group=Group.CHAT, strategy="react", status=status,
        reason=None, code=None, detail=None, rounds=1, usage=Usage(), own_usage=Usage(),
        parent_run=None, parent_call=None, root_run=None,
        path=None, fork_of=None, started_at=at(started), ended_at=None if ended is None else at(ended), extra={},
        steps=steps,
    )  # fmt: skip


def a_reply(number, end, seconds=1.0, attempts=None, **more):
    attempts = attempts or (AttemptView(model="m", seconds=seconds, fault=None, detail=""),)
    at_end = None if end is None else at(end)
    fields = {"model": "m", "usage": Usage(), "seconds": seconds, "attempts": attempts, "at": at_end, **more}
    return InferenceStep(number=number, **fields)


def a_call(name, start, end, **more):
    fields = {
        "id": name, "ask_id": name, "generation": 1, "tool": name, "arguments": {}, "effect": Effect.PURE,
        "status": CallStatus.SUCCEEDED if end is not None else CallStatus.RUNNING, "code": None, "content": None,
        "progress": None, "worker": "w1", "started_at": None if start is None else at(start),
        "ended_at": None if end is None else at(end), "wake_ups": 1, "replayed_at": None, "placed": None,
        "answered_from": None, "question": None,
        "seconds": None if start is None or end is None else end - start, **more,
    }  # fmt: skip
    return CallView(**fields)


def a_question(asked, **more):
    fields = {
        "id": "q", "why": Why.GATE, "prompt": "?", "schema": None, "resume_mode": ResumeMode.REPLAY,
        "status": SuspensionStatus.OPEN, "created_at": at(asked), "expires_at": None, "on_expiry": OnExpiry.DENY,
        "overdue": False, "answer": None, **more,
    }  # fmt: skip
    return QuestionView(**fields)


def drawn(run, *, queued=0.0, now=10.0, takeovers=(), **more):
    family = RunFamily(run=run, queued_at=at(queued), takeovers={"r": tuple(takeovers)})
    return timeline(family, at(now), **more)


def bars_of(line, name):
    (row,) = [row for row in line.rows if row.name == name]
    return [(bar.kind, bar.left, round(bar.left + bar.width, 2)) for bar in row.bars]


def test_a_repeated_reply_has_no_bar_because_nobody_worked_or_waited():
    attempts = (AttemptView(model="m", seconds=0.0, fault=None, detail=""),)

    line = drawn(a_view(a_reply(1, 5, 0, attempts, is_repeated=True), a_reply(3, 10, 2, model="asked")))

    assert bars_of(line, "m") == []
    assert bars_of(line, "asked")


def test_parallel_calls_are_bars_side_by_side_over_time():
    line = drawn(a_view(a_reply(1, 2, 2), ToolRound(number=2, at=at(9), calls=(a_call("a", 2, 5), a_call("b", 2, 10)))))

    assert bars_of(line, "a") == [(BarKind.TOOL, 20, 50)]
    assert bars_of(line, "b") == [(BarKind.TOOL, 20, 100)]


def test_a_wait_for_a_worker_is_a_bar_of_its_own():
    line = drawn(a_view(a_reply(1, 4, 2), ToolRound(number=2, at=at(10), calls=(a_call("a", 6, 10),))))

    assert bars_of(line, "m") == [(BarKind.QUEUED, 0, 20), (BarKind.MODEL, 20, 40)]
    assert bars_of(line, "a") == [(BarKind.QUEUED, 40, 60), (BarKind.TOOL, 60, 100)]


def test_time_in_the_queue_is_the_first_row():
    line = drawn(a_view(a_reply(1, 4, 2), started=2), queued=0)

    assert line.rows[0].name == "queued"
    assert line.rows[0].seconds == 2


def test_failed_attempts_come_before_the_one_that_answered():
    attempts = (
        AttemptView(model="m", seconds=1, fault=Fault.TIMEOUT, detail=""),
        AttemptView(model="m", seconds=3, fault=None, detail=""),
    )

    line = drawn(a_view(a_reply(1, 10, 4, attempts)))

    assert [kind for kind, _left, _right in bars_of(line, "m")] == [BarKind.QUEUED, BarKind.RETRY, BarKind.MODEL]


def test_a_lost_worker_breaks_the_bar_of_its_call():
    lost = Takeover(call_id="a", step=2, worker="w0", lost_at=at(4), noticed_at=at(6))

    line = drawn(
        a_view(a_reply(1, 2, 2), ToolRound(number=2, at=at(10), calls=(a_call("a", 2, 10),))), takeovers=[lost]
    )

    assert bars_of(line, "a") == [(BarKind.TOOL, 20, 40), (BarKind.LOST, 40, 60), (BarKind.TOOL, 60, 100)]


def test_a_month_of_waiting_is_cut_to_a_notch():
    call = a_call("pay", None, None, status=CallStatus.SUSPENDED, question=a_question(3))
    steps = (a_reply(1, 2, 2), ToolRound(number=2, at=at(3), calls=(call,)),
             WaitStep(number=3, at=at(3), status=StepStatus.OPEN, calls=(call,), until=None))  # fmt: skip
    run = a_view(*steps, status=RunStatus.WAITING, ended=None)

    cut, whole = drawn(run, now=30 * DAY), drawn(run, now=30 * DAY, with_idle=True)

    assert [tick.text for tick in cut.ticks if tick.is_notch] == ["30 d"]
    assert bars_of(cut, "m")[-1][2] > 90, "two seconds of work fill the track"
    assert bars_of(whole, "m")[-1][2] < 1
    assert cut.has_notches
    assert whole.has_notches, "so that the page can offer to cut it again"


def test_every_bar_stays_on_its_track_and_is_wide_enough_to_be_seen():
    calls = tuple(a_call(f"c{number}", number / 1000, number / 1000 + 0.0001) for number in range(40))
    line = drawn(
        a_view(a_reply(1, 0.0005, 0.0005), ToolRound(number=2, at=at(5000), calls=calls), ended=5000), now=5000
    )

    for row in line.rows:
        for bar in row.bars:
            assert 0 <= bar.left <= 100
            assert bar.width > 0
            assert bar.left + bar.width <= 100.01


def test_the_scale_of_an_open_run_rarely_moves():
    def ticks(now):
        run = a_view(a_reply(1, 2, 2), a_reply(3, None, 0, status=StepStatus.OPEN, model=None), ended=None,
                     status=RunStatus.RUNNING)  # fmt: skip
        return drawn(run, now=now).ticks

    assert ticks(10.5) == ticks(14.9)


def test_ids_and_order_of_rows_stay_while_a_run_goes_on():
    first = a_view(a_reply(1, 2, 2), ended=None, status=RunStatus.RUNNING)
    later = a_view(a_reply(1, 2, 2), ToolRound(number=2, at=None, calls=(a_call("a", 2, None),)), ended=None,
                   status=RunStatus.RUNNING)  # fmt: skip

    before, after = drawn(first).rows, drawn(later).rows

    assert [(row.id, row.order) for row in before] == [(row.id, row.order) for row in after][: len(before)]
    assert [row.order for row in after] == sorted(row.order for row in after)


@pytest.mark.parametrize("work", [0.3, 2])
@pytest.mark.parametrize("gaps", [(41,), (21, 21), (3600, 8, 40_000, 9, 700, 30)])
def test_texts_of_the_axis_do_not_lie_on_each_other(gaps, work):
    """A letter takes six pixels, and the track of a phone has 330."""
    spans, since = [], 0.0
    for gap in (0, *gaps):
        since += gap
        spans.append(TimelineSpan(kind=BarKind.TOOL, start=at(since), end=at(since + work), text=""))
        since += work
    ticks = TimeScale(spans, at(0), at(since), at(since), is_open=False, with_idle=False).ticks()

    texts = sorted(
        (tick.at - width / 2 if tick.is_notch else tick.at, width)
        for tick in ticks
        if tick.text
        for width in [(len(tick.text) + (2 if tick.is_notch else 0)) * 6 / 330 * 100]
    )
    assert all(left + width <= right for (left, width), (right, _) in pairwise(texts))
    said = [tick.text for tick in ticks if tick.text and not tick.is_notch]
    assert len(set(said)) == len(said), "behind a notch, ticks of less than a second would all say the same"
    assert not {tick.text for tick in ticks if tick.is_notch and tick.text} & set(said)
    assert sum(tick.is_notch for tick in ticks) == len(gaps)
    assert any(tick.text for tick in ticks if tick.is_notch), "the length of a notch matters more than a tick"
