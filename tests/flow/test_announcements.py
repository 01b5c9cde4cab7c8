"""Everyone who has to know of a commit is informed in one place, behind it.

`ANNOUNCED` says for each kind of announcement how it is caused and what shows that it was made. Without that one place
every one of them is missing, and a kind that is not listed here fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import get_args

import pytest

from chordage.orchestrator import stages
from chordage.orchestrator.core.approvals import Question, Why
from chordage.orchestrator.core.intents import Deliver
from chordage.orchestrator.core.phases import Hook
from chordage.orchestrator.core.status import Disposition
from chordage.orchestrator.core.stepping import Control
from chordage.orchestrator.plugins.base import Plugin
from chordage.orchestrator.plugins.plugin_set import PluginSet
from chordage.orchestrator.run import endings, unit
from chordage.orchestrator.run.unit import Announcement, LiveEvent, Unit
from support.fakes import rounds_of, spoken
from support.world import World


class Listener(Plugin):
    id = "listener"

    def __init__(self) -> None:
        self.ends: list[str] = []

    def run_end(self, context: object) -> None:
        self.ends.append(context.run_id)  # type: ignore[attr-defined]


def a_turn(world: World) -> None:
    extend, world.extended = world.locks.extend, []
    world.locks.extend = lambda thread, owner: world.extended.append(owner) or extend(thread, owner)
    world.models.script = rounds_of(1, 2)
    world.submit()
    world.run_dry()


def a_suspended_call(world: World) -> None:
    world.models.script = rounds_of(1)
    world.tools.asks = lambda _order: Question(why=Why.GATE, prompt="may it?")
    world.submit()
    world.run_dry()


def a_stepped_turn(world: World) -> None:
    world.models.script = lambda _: spoken("held")
    world.submit(control=Control.STEP)
    world.run_dry()


def a_steered_turn(world: World) -> None:
    world.models.script = rounds_of(1)
    world.submit()
    while not world.rows("calls"):
        world.deliver(world.pending.pop(0))
    world.submit("and this", when_busy="steer")
    world.run_dry()


def a_dropped_turn(world: World) -> None:
    turn = world.submit()
    with Unit(world.runtime) as of_drop:
        endings.drop_queued(of_drop, turn, Disposition.CANCELLED, None)


def kinds(world: World) -> set[str]:
    return {kind for _, kind, _ in world.events.seen}


# How it is caused, and what shows that it was made.
ANNOUNCED: dict[type, tuple[Callable[[World], None], Callable[[World], bool]]] = {
    unit.RunStarted: (a_turn, lambda world: "run.started" in kinds(world)),
    unit.RunContinues: (a_turn, lambda world: bool(world.extended)),
    unit.RunEnded: (a_turn, lambda world: world.locks.threads == {} and len(world.events.done) == 1),
    unit.RunSuspended: (a_suspended_call, lambda world: world.locks.threads == {} and "run.waiting" in kinds(world)),
    unit.RunHeld: (a_stepped_turn, lambda world: world.locks.threads == {} and "run.held" in kinds(world)),
    unit.TurnSteered: (a_steered_turn, lambda world: len(world.events.done) == 2),
    unit.TurnDropped: (a_dropped_turn, lambda world: len(world.events.done) == 1),
    unit.LiveEvent: (a_turn, lambda world: {"model.replied", "tool.settled"} <= kinds(world)),
}


def test_every_kind_of_announcement_is_tried_here() -> None:
    assert set(ANNOUNCED) == set(get_args(Announcement))


@pytest.mark.parametrize("kind", ANNOUNCED, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("is_there", [True, False], ids=["made", "without_the_one_place"])
def test_announcements_are_made_in_one_place(world: World, kind: type, is_there: bool, monkeypatch) -> None:
    cause, was_made = ANNOUNCED[kind]
    if not is_there:
        monkeypatch.setattr(unit, "_make", lambda _rt, _announcement: None)

    cause(world)

    assert was_made(world) is is_there


@pytest.mark.parametrize("is_there", [True, False], ids=["made", "without_the_one_place"])
def test_plugins_are_informed_of_an_end_there_too(world: World, is_there: bool, monkeypatch) -> None:
    listener = Listener()
    plugins = PluginSet([listener])
    world.runtime = replace(world.runtime, plugin_sets=lambda _agent: plugins)
    if not is_there:
        monkeypatch.setattr(unit, "_make", lambda _rt, _announcement: None)

    a_turn(world)

    assert plugins.listens(Hook.RUN_END)
    assert bool(listener.ends) is is_there


def test_a_rollback_drops_what_was_noted(world: World) -> None:
    of_failure = Unit(world.runtime)
    with pytest.raises(RuntimeError), of_failure:
        of_failure.announce(LiveEvent(run_id="r", kind="never"))
        raise RuntimeError

    assert world.events.seen == []


def test_a_savepoint_that_is_undone_takes_its_notes_along(world: World) -> None:
    with Unit(world.runtime) as whole:
        whole.announce(LiveEvent(run_id="r", kind="kept"))
        with pytest.raises(RuntimeError), whole.savepoint():
            whole.announce(LiveEvent(run_id="r", kind="undone"))
            raise RuntimeError

    assert kinds(world) == {"kept"}


def test_a_reply_that_came_too_late_announces_nothing(world: World) -> None:
    """Its turn was cancelled while the model was asked."""
    turn = world.submit()
    world.models.before_reply = lambda _: stages.cancel_turn(world.runtime, turn)

    world.run_dry()

    assert world.row("turns", id=turn)["disposition"] == "cancelled"
    assert not kinds(world) & {"model.replied", "plan.made"}
    assert world.events.done == [turn]


def test_an_announcement_that_fails_costs_neither_the_others_nor_what_follows(world: World) -> None:
    emit = world.events.emit

    def broken(run_id: str, kind: str, **data: object) -> None:
        if kind == "broken":
            raise RuntimeError(kind)
        emit(run_id, kind, **data)

    world.events.emit = broken
    with Unit(world.runtime) as whole:
        whole.announce(LiveEvent(run_id="r", kind="broken"))
        whole.announce(LiveEvent(run_id="r", kind="next"))
        whole.follow(Deliver())

    assert kinds(world) == {"next"}
    assert whole.intents == [Deliver()]


def test_a_lease_is_granted_by_the_clock_after_a_wait_for_a_lock(world: World) -> None:
    with Unit(world.runtime) as whole:
        began = whole.now
        world.clock.pass_by(7)

        assert whole.now == began
        assert whole.lease() == world.runtime.leases.until(began + timedelta(seconds=7))
