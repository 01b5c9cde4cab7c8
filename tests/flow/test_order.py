"""Who may start, and when: one run a thread, first come first served, within the budget of the group."""

from __future__ import annotations

import pytest
from sqlalchemy import bindparam, select, text, update

from chordage.orchestrator import stages
from chordage.orchestrator.core.agent import WhenBusy
from chordage.orchestrator.core.errors import Conflict
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import CallModel, Dispatch, Hint
from chordage.orchestrator.gateways.absent import NoLocks
from chordage.orchestrator.store import schema, starts, turns
from chordage.orchestrator.store.fairness import StartRule
from chordage.orchestrator.store.statements import PreparedStatement
from support.fakes import rounds_of, spoken
from support.invariants import check_all, check_always
from support.world import World


def test_turns_of_one_thread_run_one_by_one_in_the_order_they_came(world: World) -> None:
    world.models.script = lambda prompt: spoken("ok")
    for number in range(10):
        world.submit(f"m{number}")

    while world.pending:
        world.deliver(world.pending.pop())  # newest wake-up first
        check_always(world.store, {"chat": 64})

    told = [entry["body"]["text"] for entry in world.rows("journal", kind="UserMessage")]
    assert told == [f"m{number}" for number in range(10)]
    check_all(world.store)


def test_a_backlog_on_one_thread_delays_no_other(world: World) -> None:
    for _ in range(20):
        world.submit(thread="busy")
    other = world.submit(thread="free")

    started = [stages.dispatch(world.runtime, Group.CHAT) for _ in range(2)]

    assert all(started)
    assert world.row("turns", id=other)["status"] == "active"


def test_no_more_runs_than_the_budget_and_others_start_as_they_end(world: World) -> None:
    world.budgets[Group.CHAT] = 2
    for number in range(6):
        world.submit(thread=f"t{number}")

    while world.pending:
        world.deliver(world.pending.pop(0))
        check_always(world.store, {"chat": 2})

    assert world.unfinished() == []


def test_a_budget_in_the_database_wins_over_the_setting(world: World) -> None:
    with world.store.write() as tx:
        tx.execute(text("UPDATE groups SET budget = 0 WHERE name = 'chat'"))
    world.submit()
    world.run_dry()

    assert world.rows("runs") == []


def test_two_dispatchers_on_one_thread_start_one_run_without_the_lock(world: World, monkeypatch) -> None:
    """The index alone: there is no lock, and the statement that starts a turn does not look whether the thread is
    free.
    """
    object.__setattr__(world.runtime, "locks", NoLocks())
    unguarded = select(*starts._RUN.values()).where(schema.turns.c.id == bindparam("turn_id"))
    monkeypatch.setitem(starts._OPEN_RUN, StartRule.HAS_ROOM, PreparedStatement(starts._insert_from(unguarded)))
    hints = [Hint(world.submit(), "t1") for _ in range(2)]

    started = [bool(stages.dispatch(world.runtime, Group.CHAT, hint, only=True)) for hint in hints]

    assert [run["turn_id"] for run in world.rows("runs")] == [hints[0].turn_id]
    assert world.row("turns", id=hints[1].turn_id)["status"] == "queued"
    assert started == [True, False]


def test_two_dispatchers_on_one_thread_start_one_run_without_the_index(world: World) -> None:
    """The lock alone: the index is gone, and so is the guard in the statement that starts a turn."""
    with world.store.write() as tx:
        tx.execute(text("DROP INDEX uq_runs_open_thread"))
    _force_two_ready_turns(world)
    first = stages.dispatch(world.runtime, Group.CHAT)
    with world.store.write() as tx:
        tx.execute(text("UPDATE runs SET thread_id = 'hidden from the guard'"))

    second = stages.dispatch(world.runtime, Group.CHAT)

    assert (bool(first), second) == (True, [])


def _force_two_ready_turns(world: World) -> None:
    for _ in range(2):
        world.submit()
    with world.store.write() as tx:
        tx.execute(text("UPDATE turns SET ready = 1"))


def test_a_lock_left_behind_by_a_run_that_is_done_is_taken_over(world: World) -> None:
    world.models.script = lambda prompt: spoken("ok")
    world.submit()
    world.run_dry()
    world.locks.threads["t1"] = f"{world.row('runs')['id']}:1"

    turn = world.submit()
    world.run_dry()

    assert world.row("turns", id=turn)["disposition"] == "answered"


def test_continuing_run_takes_its_thread_lock_again_after_redis_lost_it(world: World) -> None:
    world.models.script = rounds_of(1, rounds=3)
    world.submit()
    held = []

    while world.pending:
        intent = world.pending.pop(0)
        if isinstance(intent, CallModel):
            world.locks.wipe()
        world.deliver(intent)
        if isinstance(intent, CallModel):
            held.append(bool(world.locks.threads))

    assert held == [False, True, True, False]  # its first lock is as fresh as the run, and at its end there is none


def test_thread_is_free_when_waiters_are_notified(world: World, monkeypatch) -> None:
    """Who then sends the next message at once meets no lock."""
    held_when_told = []
    monkeypatch.setattr(world.events, "turn_done", lambda turn: held_when_told.append(bool(world.locks.threads)))
    world.models.script = lambda prompt: spoken("ok")
    world.submit()
    world.run_dry()

    assert held_when_told == [False]


def test_a_turn_waits_until_it_is_due_and_expires_at_its_deadline(world: World) -> None:
    from datetime import timedelta

    now = world.clock.now
    late = world.submit(thread="a", not_before=now + timedelta(seconds=60))
    gone = world.submit(thread="b", not_before=now + timedelta(seconds=60), deadline=now + timedelta(seconds=90))
    world.run_dry()
    assert world.rows("runs") == []

    world.sweep(seconds=100)
    world.models.script = lambda prompt: spoken("ok")
    world.run_dry()

    assert world.row("turns", id=late)["disposition"] == "answered"
    assert world.row("turns", id=gone)["disposition"] == "expired"


def test_of_two_that_wait_for_a_time_behind_a_run_the_one_that_is_due_first_goes_first(world: World) -> None:
    from datetime import timedelta

    world.models.script = lambda prompt: spoken("ok")
    world.submit()
    stages.dispatch(world.runtime, Group.CHAT)
    late = world.submit("in a week", not_before=world.clock.now + timedelta(days=7))
    soon = world.submit("in a minute", not_before=world.clock.now + timedelta(seconds=60))

    for _ in range(4):
        world.sweep(seconds=40)
        world.run_dry()

    assert world.row("turns", id=soon)["disposition"] == "answered"
    assert world.row("turns", id=late)["status"] == "queued"


def test_one_that_sleeps_hides_none_that_was_forgotten(world: World) -> None:
    from datetime import timedelta

    world.models.script = lambda prompt: spoken("ok")
    world.submit(not_before=world.clock.now + timedelta(days=7))
    forgotten = world.submit("now")
    with world.store.write() as tx:
        tx.execute(update(schema.turns).where(schema.turns.c.id == forgotten).values(ready=0))

    world.pending.clear()
    world.sweep(seconds=20)
    world.sweep(seconds=20)
    world.run_dry()

    assert world.row("turns", id=forgotten)["disposition"] == "answered"


def test_the_same_dedupe_key_finds_the_first_turn(world: World) -> None:
    first = world.submit(dedupe_key="k")
    again = world.submit(dedupe_key="k")

    assert first == again
    assert len(world.rows("turns")) == 1


def test_when_busy_reject_refuses_while_a_run_is_open_and_stores_nothing(world: World) -> None:
    world.submit()
    stages.dispatch(world.runtime, Group.CHAT)

    with pytest.raises(Conflict, match="busy with run"):
        world.submit(when_busy=WhenBusy.REJECT)

    assert len(world.rows("turns")) == 1


def test_a_group_may_only_be_lowered_and_its_budget_counts_there(world: World) -> None:
    world.budgets[Group.WILL] = 0
    world.submit(group=Group.WILL)

    assert [intent for intent in world.pending if isinstance(intent, Dispatch) and intent.group is Group.WILL]
    world.run_dry()
    assert world.rows("runs") == []


def test_lost_calls_of_a_capped_agent_are_sent_again_as_one_batch(world: World) -> None:
    from chordage.orchestrator.core.agent import AgentSpec
    from chordage.orchestrator.core.intents import CallTool
    from support.fakes import rounds_of

    world.agents.agents["ada"] = AgentSpec(name="ada", model="fake", concurrency=1)
    world.models.script = rounds_of(5)
    turn = world.submit()
    world.deliver(world.pending.pop(0))
    world.deliver(world.pending.pop(0))
    world.pending.clear()

    woken = [intent for intent in world.sweep(seconds=40) if isinstance(intent, CallTool)]

    assert [len(intent.call_ids) for intent in woken] == [5]
    world.run_dry()
    assert world.row("turns", id=turn)["disposition"] == "answered"


def test_ready_turn_overtaken_on_its_thread_blocks_no_other(world: World) -> None:
    world.budgets[Group.CHORE] = 1
    world.models.script = lambda prompt: spoken("ok")
    world.submit(thread="a", group=Group.CHORE)
    world.submit(thread="a", group=Group.CHAT)
    other = world.submit(thread="b", group=Group.CHORE)
    stages.dispatch(world.runtime, Group.CHAT)

    assert stages.dispatch(world.runtime, Group.CHORE)
    assert world.row("turns", id=other)["status"] == "active"


def test_a_turn_starts_although_the_clock_of_the_worker_is_behind(world: World) -> None:
    world.submit()
    world.clock.pass_by(-5)

    assert stages.dispatch(world.runtime, Group.CHAT)


def test_queued_turns_without_a_worker_are_announced_less_and_less_often(world: World) -> None:
    for number in range(10):
        world.submit(thread=f"t{number}")
    world.pending.clear()

    sent = sum(len(world.sweep(seconds=5)) for _ in range(200))

    assert 10 <= sent <= 10 * (1000 / 60 + 2)


def test_a_wake_up_that_died_with_its_worker_is_sent_again_within_seconds_where_none_waits(world: World) -> None:
    turn = world.submit()
    thread = str(world.row("turns", id=turn)["thread_id"])
    world.pending.clear()  # a worker took it, and was killed

    sent = []
    for _ in range(12):
        sent.append(len(world.sweep(seconds=2)))
        world.pending.clear()  # each time

    assert sent == [1, 0, 0] * 4  # at the first sweep at which five seconds have passed
    assert world.sweep(seconds=2) == [Dispatch(group=Group.CHAT, hint=Hint(turn, thread))]


def test_a_wake_up_that_may_wait_behind_others_is_not_sent_again_for_a_minute(world: World) -> None:
    world.submit(thread="lost")
    world.pending.clear()
    world.submit(thread="other")
    world.clock.pass_by(2)
    (first,) = [i for i in stages.rescue(world.runtime) if i.hint.thread_id == "lost"]

    sent = [i for _ in range(29) for i in world.sweep(seconds=2) if i.hint.thread_id == "lost"]

    assert sent == []
    assert first in world.sweep(seconds=2)


def test_the_same_dedupe_key_at_the_same_moment_is_a_duplicate_too(world: World) -> None:
    first = world.submit(dedupe_key="k")
    seen = turns.by_dedupe_key
    blind = iter([None])
    turns.by_dedupe_key = lambda *asked: next(blind, seen(*asked))
    try:
        again = world.submit(dedupe_key="k")
    finally:
        turns.by_dedupe_key = seen

    assert again == first
    assert len(world.rows("turns")) == 1
