"""What a task does with what follows from its stage."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from chordage.orchestrator import stages
from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Advance, Dispatch
from chordage.orchestrator.core.records import Subject
from chordage.tasks.follow import follow


def test_what_is_due_beside_a_run_that_fails_is_sent(monkeypatch):
    def fails(_rt, _run_id, _seen):
        raise Unavailable("away")

    monkeypatch.setattr(stages, "advance", fails)
    rt, sent = SimpleNamespace(in_flight=SimpleNamespace(stopping=False)), []
    advance = Advance(run_id="r", group=Group.CHAT, of=Subject("t", "ada"))

    with pytest.raises(Unavailable):
        follow(rt, [advance, Dispatch(group=Group.CHAT)], sent.extend)

    assert sent == [Dispatch(group=Group.CHAT)]
