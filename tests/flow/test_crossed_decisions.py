"""Two messages, each with a decision for the other's thread, at the same moment."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import event

from chordage.orchestrator import stages
from chordage.orchestrator.core.agent import WhileWaiting
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from support.fakes import rounds_of
from support.invariants import check_all
from support.lock_waits import has_lock_waits
from support.one_turn import change_agent
from support.questions import approval, asks_once
from support.waiting import until


@pytest.mark.parametrize("backend", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_messages_that_decide_for_each_others_threads_do_not_block_each_other(world):
    change_agent(world, while_waiting=WhileWaiting.HOLD)
    world.models.script = rounds_of(1)
    world.tools.asks = asks_once(0)
    for thread in ("t1", "t2"):
        world.submit("first", thread=thread)
    world.run_dry()
    asked = {row["thread_id"]: row for row in world.inbox()}
    crossed = [_message("t1", asked["t2"]), _message("t2", asked["t1"])]
    meet = _Meeting(world)

    event.listen(world.store.engine, "after_cursor_execute", meet.after_a_lock)
    with ThreadPoolExecutor(2) as both:
        admitted = list(both.map(lambda request: stages.admit(world.runtime, request), crossed))
    world.pending += [intent for _, intents in admitted for intent in intents]
    world.recover()

    assert [turn["disposition"] for turn in world.rows("turns")] == ["answered"] * 4
    check_all(world.store)


def _message(thread, question) -> TurnRequest:
    message = Message(origin=Origin.INVOKE, channel=None, sender=Sender.SERVICE, thread_id=thread, text="and this")
    return TurnRequest(message=message, decisions=(approval(question),))


class _Meeting:
    """A thread with its first run locked continues when the other has too, or waits for the same lock."""

    def __init__(self, world) -> None:
        self._world = world
        self._here: set[int] = set()

    def after_a_lock(self, connection, cursor, statement, parameters, context, executemany) -> None:
        me = threading.get_ident()
        if "FROM runs" not in statement or "FOR UPDATE" not in statement or me in self._here:
            return
        self._here.add(me)
        until(lambda: len(self._here) >= 2 or has_lock_waits(self._world.store), "they meet")
