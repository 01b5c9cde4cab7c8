"""What a task does with what follows from its stage."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from chordage.orchestrator import stages
from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Advance, Dispatch
from chordage.orchestrator.core.records import Subject
from chordage.tasks import follow as following
from chordage.tasks.follow import follow


def test_what_is_due_beside_a_run_that_fails_is_sent(monkeypatch):
    def fails(_rt, _run_id, _seen, _past):
        raise Unavailable("away")

    monkeypatch.setattr(stages, "advance", fails)
    rt, sent = SimpleNamespace(in_flight=SimpleNamespace(stopping=False)), []
    advance = Advance(run_id="r", group=Group.CHAT, of=Subject("t", "ada"))

    with pytest.raises(Unavailable):
        follow(rt, [advance, Dispatch(group=Group.CHAT)], sent.extend)

    assert sent == [Dispatch(group=Group.CHAT)]


def test_runs_that_are_handed_on_are_carried_on_for_a_while_and_then_sent(monkeypatch):
    """Each ends with the start of the next: a backlog would keep one message for ever."""
    now, carried, sent = iter(range(100)), [], []
    monkeypatch.setattr(following.time, "monotonic", lambda: float(next(now)))
    next_of = {f"r{n}": Advance(run_id=f"r{n + 1}", group=Group.CHAT, seen=SimpleNamespace(step=1)) for n in range(9)}

    def ends(_rt, run_id, _seen, _past):
        carried.append(run_id)
        return [next_of[run_id]]

    monkeypatch.setattr(stages, "advance", ends)
    rt = SimpleNamespace(in_flight=SimpleNamespace(stopping=False))
    follow(rt, [Advance(run_id="r0", group=Group.CHAT)], sent.extend)

    assert carried == ["r0", "r1", "r2"]
    assert sent == [next_of["r2"]]
    assert following.HANDED_ON_FOR == 3
