"""To end a run from outside, lock it and use what is then read: nothing of it stays open or continues.

In each case one transaction has read the run, and another transaction moves it on before the end is written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from sqlalchemy import event

from chordage.orchestrator import stages
from chordage.orchestrator.core.agent import WhenBusy
from chordage.orchestrator.core.intents import CallModel
from chordage.orchestrator.core.phases import Hook
from chordage.orchestrator.core.stepping import Control
from chordage.orchestrator.run import arrivals
from chordage.orchestrator.stages.step import verbs
from chordage.orchestrator.store import runs, turns
from support import hooks
from support.busy_thread import answer_with_user_texts, steer
from support.fakes import rounds_of
from support.family import Lines, ask, settle_in
from support.held_commit import HeldCommit
from support.invariants import check_all, check_always
from support.lock_waits import has_lock_waits
from support.questions import GATE
from support.waiting import until
from support.world import World

BUDGETS = {"chat": 64, "task": 8, "chore": 2, "will": 1}
on_postgres = pytest.mark.parametrize("backend", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)


def puts_a_question(world: World) -> None:
    world.models.script = rounds_of(1)
    hooks.install(
        world, hooks.plugin_for(Hook.BEFORE_TOOL_EXECUTE, lambda context: [] if context.call.resumed else [GATE])
    )


def asks_a_sub_agent(world: World) -> None:
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob")]]})


leaves_open = pytest.mark.parametrize("leave_open", [puts_a_question, asks_a_sub_agent])


def next_call(world: World) -> CallModel:
    until(lambda: any(isinstance(intent, CallModel) for intent in world.pending), "the start has returned")
    call = next(intent for intent in world.pending if isinstance(intent, CallModel))
    world.pending.remove(call)
    return call


class Meanwhile:
    """Another worker, that goes as far as it can without a lock that another holds."""

    def __init__(self, world: World, pool: ThreadPoolExecutor, act: Callable[[], object]) -> None:
        self._world, self._pool, self._act = world, pool, act
        self.work: Future[object] | None = None

    def __call__(self) -> None:
        if self.work is None:
            work = self.work = self._pool.submit(self._act)
            until(lambda: work.done() or has_lock_waits(self._world.store), "it is done or waits")


@on_postgres
@leaves_open
@pytest.mark.parametrize("when_busy", [WhenBusy.INTERRUPT, WhenBusy.ROLLBACK])
def test_a_message_ends_a_run_that_started_while_it_was_stored(world, leave_open, when_busy, monkeypatch) -> None:
    """It waits for the turn ahead of it, which is just starting; so it has seen no run when it is stored."""
    leave_open(world)
    world.submit("do it")
    held = HeldCommit(world)
    start = world.pending.pop(0)

    with ThreadPoolExecutor(2) as pool:

        def begin() -> None:
            held.of_this_thread()
            world.deliver(start)

        starting = pool.submit(begin)
        assert held.reached.wait(120)
        meanwhile = Meanwhile(world, pool, lambda: world.deliver(next_call(world)))

        def then_it_moves_on(tx, run):
            meanwhile()
            return False

        monkeypatch.setattr(arrivals.subagents, "are_at_work", then_it_moves_on)
        world.submit("no, this", when_busy=when_busy)
        starting.result()
        assert meanwhile.work is not None
        meanwhile.work.result()

    check_always(world.store, BUDGETS)
    assert world.inbox() == []
    world.recover()
    assert [turn["disposition"] for turn in world.rows("turns", parent_run=None)] == ["cancelled", "answered"]
    check_all(world.store)


@on_postgres
def test_message_for_such_a_run_held_by_another_releases_its_locks_and_waits(world, monkeypatch) -> None:
    """It holds turns by then, and runs are locked before turns."""
    world.models.script = answer_with_user_texts
    world.submit("do it")
    held = HeldCommit(world)
    start = world.pending.pop(0)
    met, admit, looks = arrivals._apply_to_open_run, turns.admit, []

    with ThreadPoolExecutor(2) as pool:

        def begin() -> None:
            held.of_this_thread()
            world.deliver(start)

        def write_the_run(is_written: threading.Event) -> None:
            with world.store.write() as tx:
                runs.lock(tx, world.row("runs")["id"])
                is_written.set()
                until(lambda: has_lock_waits(world.store), "the message comes again, and waits")

        def admitted(tx, fields):
            looks.append(admit(tx, fields))
            return looks[-1]

        def meet(*given):
            if len(looks) == 1:
                is_written = threading.Event()
                beside.append(pool.submit(write_the_run, is_written))
                assert is_written.wait(120)
            return met(*given)

        beside: list[Future[None]] = [pool.submit(begin)]
        assert held.reached.wait(120)
        monkeypatch.setattr(turns, "admit", admitted)
        monkeypatch.setattr(arrivals, "_apply_to_open_run", meet)
        world.submit("no, this", when_busy=WhenBusy.INTERRUPT)
        for one in beside:
            one.result()
    world.run_dry()

    assert looks == [True, False], "at the second try it finds the run before it stores anything"
    assert [turn["disposition"] for turn in world.rows("turns")] == ["cancelled", "answered"]
    check_all(world.store)


@leaves_open
def test_the_verb_cancel_ends_a_run_that_has_moved_on(world, leave_open, monkeypatch) -> None:
    leave_open(world)
    turn = world.submit("do it", control=Control.STEP)
    world.run_dry()
    world.step(turn, "run")
    world.deliver(world.pending.pop(0))
    decided = verbs._decide

    def then_it_moves_on(rt, request, seen):
        write = decided(rt, request, seen)
        while world.pending and not world.rows("suspensions"):
            world.deliver(world.pending.pop(0))
        return write

    monkeypatch.setattr(verbs, "_decide", then_it_moves_on)
    world.step(turn, "cancel")

    assert world.rows("suspensions"), "it has moved on"
    check_always(world.store, BUDGETS)
    world.run_dry()
    assert world.row("turns", id=turn)["disposition"] == "cancelled"
    check_all(world.store)


@on_postgres
def test_a_message_that_is_cancelled_while_a_run_would_take_it_in_is_not_taken_in(world) -> None:
    """Its run is just starting: a cancel of the message finds no run to lock."""
    world.models.script = answer_with_user_texts
    world.submit("do it")
    message = steer(world, "and this")
    start, *_ = world.pending
    world.pending.clear()
    held = HeldCommit(world)
    here: list[int] = []

    def when_the_run_would_be_locked(connection, cursor, statement, parameters, context, executemany) -> None:
        if here and threading.get_ident() == here[0] and "FROM runs" in statement and "FOR UPDATE" in statement:
            here.clear()
            world.deliver(start)  # it starts, and the cancel has seen no run
            held.of_this_thread()

    event.listen(world.store.engine, "after_cursor_execute", when_the_run_would_be_locked)

    def cancel() -> None:
        here.append(threading.get_ident())
        world.pending += stages.cancel_turn(world.runtime, message)[1]

    with ThreadPoolExecutor(1) as pool:
        cancelling = pool.submit(cancel)
        assert held.reached.wait(120)
        world.deliver(next_call(world))
        cancelling.result()
    world.run_dry()

    assert [turn["disposition"] for turn in world.rows("turns")] == ["answered", "cancelled"]
    check_all(world.store)
