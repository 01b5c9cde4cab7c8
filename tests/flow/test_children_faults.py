"""Trees of runs whose processes die, whose wake-ups are lost, doubled or late, and that are cancelled at any moment."""

from __future__ import annotations

import pytest

from chordage.orchestrator import stages
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import CancelTurn
from support.family import Lines, ask, by_agent, change, settle_in
from support.invariants import check_all, check_always
from support.play import NAMED
from support.questions import approve, asks_until_resumed
from support.world import Died, World

PURE = ("pure", {"n": 0})
DEEP = {"ada": [[ask("bob"), PURE]], "bob": [[ask("cleo")]], "cleo": [[PURE]]}
ANSWER = "ada[bob[cleo[pure0]] pure0]"


def a_tree(world: World, *, asks: bool = True) -> str:
    """Three deep; at the bottom a call needs a decision."""
    settle_in(world)
    world.models.script = Lines(DEEP)
    if asks:
        world.tools.asks = asks_until_resumed(world, 0)
    return world.submit()


def answer_of(world: World, turn: str) -> str:
    run = world.row("turns", id=turn)["run_id"]
    return world.rows("journal", run_id=run, kind="AssistantTurnCommitted")[-1]["body"]["text"]


def run_to_the_end(world: World) -> None:
    while world.pending or world.inbox():
        world.run_dry()
        for question in world.inbox():
            approve(world, question)


def commits_of_a_tree(world: World) -> int:
    a_tree(world)
    before = world.commits
    run_to_the_end(world)
    return world.commits - before


def test_a_tree_costs_so_many_commits_and_the_deaths_below_cover_them_all(world):
    assert commits_of_a_tree(world) == COMMITS


COMMITS = 28


@pytest.mark.usefixtures("calls_anywhere")
@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("at", range(1, COMMITS + 1))
def test_a_tree_survives_death_at_any_commit(world, at, before):
    turn = a_tree(world)
    world.die_at, world.die_before = world.commits + at, before
    try:
        run_to_the_end(world)
    except Died:
        world.pending.clear()
        world.forget_the_dead()
    world.die_at = None
    world.recover()

    assert answer_of(world, turn) == ANSWER
    assert len(world.rows("runs")) == 3, "no child was started twice"
    check_all(world.store)


@pytest.mark.usefixtures("calls_anywhere")
@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("at", range(1, 9))
def test_a_tree_that_is_cancelled_is_cancelled_whole_though_the_process_dies_at_any_commit(world, at, before):
    turn = a_tree(world)
    world.run_dry()
    world.die_at, world.die_before = world.commits + at, before
    try:
        world.pending += stages.cancel_turn(world.runtime, turn)[1]
        world.run_dry()
    except Died:
        world.pending.clear()
        world.forget_the_dead()
    world.die_at = None
    world.revive()
    world.pending += stages.cancel_turn(world.runtime, turn)[1]
    for _ in range(6):
        world.run_dry()
        world.sweep(40)

    assert {row["disposition"] for row in world.rows("turns")} == {"cancelled"}
    check_all(world.store)


@pytest.mark.usefixtures("calls_anywhere")
@pytest.mark.parametrize("delivered", range(14))
def test_a_tree_can_be_cancelled_at_any_moment(world, delivered):
    turn = a_tree(world)
    for _ in range(delivered):
        if world.pending:
            world.deliver(world.pending.pop(0))
    stages.cancel_turn(world.runtime, turn)  # its wake-ups are lost
    for _ in range(6):
        world.run_dry()
        world.sweep(40)

    assert {row["disposition"] for row in world.rows("turns")} == {"cancelled"}
    assert world.rows("suspensions", status="open") == []
    check_all(world.store)


@pytest.mark.usefixtures("calls_anywhere")
@pytest.mark.parametrize("delivered", range(2, 14))
def test_child_can_be_cancelled_at_any_moment_and_its_parent_continues(world, delivered):
    turn = a_tree(world)
    for _ in range(delivered):
        if world.pending:
            world.deliver(world.pending.pop(0))
    for child in by_agent(world).values():
        if child["agent"] == "bob":
            stages.cancel_turn(world.runtime, child["id"])  # its wake-ups are lost
    world.recover()

    assert world.row("turns", id=turn)["disposition"] == "answered"
    check_all(world.store)


def test_cancelling_goes_down_level_by_level_and_twice_is_once(world):
    turn = a_tree(world)
    world.run_dry()
    first = stages.cancel_turn(world.runtime, turn)[1]
    cancels = [intent for intent in first if isinstance(intent, CancelTurn)]
    assert [intent.turn_id for intent in cancels] == [by_agent(world)["bob"]["id"]]
    world.deliver(cancels[0])
    world.deliver(cancels[0])

    assert [intent.turn_id for intent in world.pending] == [by_agent(world)["cleo"]["id"]]
    world.run_dry()
    check_all(world.store)


@pytest.mark.usefixtures("calls_anywhere")
@pytest.mark.parametrize("seed", range(25))
def test_a_tree_comes_to_its_end_whatever_becomes_of_its_wake_ups(world, seed):
    import random

    dice = random.Random(seed)  # noqa: S311 - a schedule
    turn = a_tree(world)
    for _ in range(60):
        if not world.pending:
            break
        place = dice.randrange(len(world.pending))
        match dice.randrange(4):
            case 0:
                world.pending.pop(place)
            case 1:
                world.deliver(world.pending[place], doubt=True)
            case _:
                world.deliver(world.pending.pop(place))
        check_always(world.store, NAMED)
    world.recover()

    assert answer_of(world, turn) == ANSWER
    assert len(world.rows("runs")) == 3
    check_all(world.store)


def running(world: World) -> int:
    return len(world.rows("runs", status="running"))


def test_a_hundred_children_within_a_budget_of_two(world):
    world.budgets[Group.CHAT] = 2
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob") for _ in range(100)]]})
    turn = world.submit()
    most = 0
    while world.pending:
        world.deliver(world.pending.pop(0))
        most = max(most, running(world))

    assert most == 2
    assert len(world.rows("runs")) == 101
    assert world.row("turns", id=turn)["disposition"] == "answered"
    assert [call["content"] for call in world.rows("calls")] == ["bob[]"] * 100
    check_all(world.store)


@pytest.mark.parametrize("budget", [1, 2])
def test_parents_in_every_slot_are_no_deadlock(world, budget):
    world.budgets[Group.CHAT] = budget
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob")] * 3], "bob": [[ask("cleo")] * 2], "cleo": [[PURE]]})
    turns = [world.submit(thread=f"t{n}") for n in range(5)]
    most = 0
    while world.pending:
        world.deliver(world.pending.pop(0))
        most = max(most, running(world))

    assert most == budget
    assert {world.row("turns", id=turn)["disposition"] for turn in turns} == {"answered"}
    assert len(world.rows("runs")) == 5 * (1 + 3 + 3 * 2)
    check_all(world.store)


def test_a_run_without_children_pays_no_statement_for_them(world):
    settle_in(world)
    change(world, "ada", agents=())
    world.models.script = Lines({"ada": [[PURE]]})
    world.submit()
    world.run_dry()
    without = world.statements
    settle_in(world)
    world.models.script = Lines({"ada": [[PURE]]})
    world.submit(thread="t2")
    world.run_dry()

    assert world.statements - without == without
