"""The process dies at every commit of a turn that has to be repaired: no repair is lost, and none is given twice."""

from __future__ import annotations

import pytest

from chordage.orchestrator import views
from chordage.orchestrator.core.intents import CallModel
from support.fakes import asking
from support.invariants import check_all
from support.one_turn import kinds
from support.outputs import BAD, GOOD, PROSE, demand, refusals, saying
from support.world import Died, World

pytestmark = pytest.mark.usefixtures("calls_anywhere")

COMMITS = 7  # admission, start, ask, outcome, refused, answered; and one more than there are


def play_and_die(world: World, at: int, *, before: bool, last: str, strategy: str = "react") -> views.TurnView:
    demand(world)
    replies = [asking(("pure", {"n": 1}))] if strategy == "react" else []
    world.models.script = saying(*replies, BAD, last)
    turn = world.submit(strategy=strategy)
    world.die_at, world.die_before = world.commits + at, before
    try:
        world.run_dry()
    except Died:
        world.pending.clear()
        world.forget_the_dead()
    world.die_at = None
    world.recover()
    return views.turn(world.store, turn)


@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("at", range(1, COMMITS + 1))
@pytest.mark.parametrize("last", [GOOD, PROSE], ids=["repaired", "refused twice"])
def test_death_at_any_commit_changes_nothing(world: World, at: int, before: bool, last: str) -> None:
    turn = play_and_die(world, at, before=before, last=last)

    assert (turn.output, turn.code) == (({"n": 7}, None) if last is GOOD else (None, "output_invalid"))
    assert len(refusals(world)) == 1
    assert kinds(world).count("AssistantTurnCommitted") == 3
    assert len(world.models.prompts) <= 4, "more model calls than the one that was cut"
    check_all(world.store)


@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("at", range(1, 6))
def test_death_at_any_commit_changes_nothing_in_direct(world: World, at: int, before: bool) -> None:
    turn = play_and_die(world, at, before=before, last=GOOD, strategy="direct")

    assert (turn.output, len(refusals(world))) == ({"n": 7}, 1)
    assert len(world.models.prompts) <= 3
    check_all(world.store)


def test_a_refused_answer_that_comes_twice_is_repaired_once(world: World) -> None:
    """Two workers make the same call: one reply is recorded, with its note; the other changes nothing."""
    demand(world)
    world.models.script = saying(BAD, GOOD)
    turn = world.submit()
    world.deliver(world.pending.pop(0))
    (call,) = [intent for intent in world.pending if isinstance(intent, CallModel)]
    once = iter([True])

    def overtaken(prompt):
        if next(once, False):
            world.locks.wipe()
            world.deliver(call)

    world.models.before_reply = overtaken
    world.run_dry()

    assert views.turn(world.store, turn).output == {"n": 7}
    assert len(refusals(world)) == 1
    assert kinds(world).count("AssistantTurnCommitted") == 2
    check_all(world.store)


def test_an_output_costs_nothing_and_a_repair_one_commit(world: World) -> None:
    plain = _cost(world, "t1", GOOD)
    demand(world)

    assert _cost(world, "t2", GOOD) == plain
    assert _cost(world, "t3", BAD, GOOD)[0] == plain[0] + 1


def _cost(world: World, thread: str, *replies: str) -> tuple[int, int]:
    """Commits and statements of a turn."""
    commits, statements = world.commits, world.statements
    world.models.script = saying(*replies)
    world.submit(thread=thread)
    world.run_dry()
    return world.commits - commits, world.statements - statements
