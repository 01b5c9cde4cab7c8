"""An agent whose files are broken: its work waits, and that of other agents does not."""

from __future__ import annotations

import pytest

from chordage.orchestrator import stages
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.errors import BrokenAgent
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Dispatch
from support.fakes import rounds_of, spoken
from support.invariants import check_all


@pytest.fixture(autouse=True)
def two_agents(world):
    world.agents.agents["bob"] = AgentSpec(name="bob", model="fake")
    world.models.script = lambda prompt: spoken("ok")


def carry_on(world, sweeps: int = 0) -> None:
    """What a broken agent stops is not carried out; the wake-up is lost with it."""
    for _ in range(sweeps + 1):
        deliver_all(world)
        world.sweep(seconds=70)
    world.pending.clear()


def deliver_all(world) -> None:
    while world.pending:
        try:
            world.deliver(world.pending.pop(0))
        except BrokenAgent:
            world.forget_the_dead()


def status(world, turn: str) -> str:
    return str(world.row("turns", id=turn)["status"])


def test_its_turns_stay_queued_and_those_of_others_start_even_with_one_slot(world):
    world.budgets[Group.CHAT] = 1
    waiting = [world.submit(thread=None) for _ in range(30)]
    others = [world.submit(thread=None, agent="bob") for _ in range(3)]
    world.agents.broken = {"ada"}
    world.pending = [Dispatch(group=Group.CHAT)]

    carry_on(world, sweeps=3)

    assert {status(world, turn) for turn in waiting} == {"queued"}
    assert {status(world, turn) for turn in others} == {"done"}
    world.agents.broken = set()
    carry_on(world, sweeps=40)
    assert world.unfinished() == []
    check_all(world.store)


def test_the_order_of_a_thread_is_kept_while_its_agent_is_broken(world):
    turns = [world.submit(f"m{n}", thread="t1") for n in range(3)]
    world.agents.broken = {"ada"}
    carry_on(world, sweeps=3)
    assert {status(world, turn) for turn in turns} == {"queued"}

    world.agents.broken = set()
    carry_on(world, sweeps=6)

    told = [row["body"]["text"] for row in world.rows("journal", kind="UserMessage")]
    assert told == ["m0", "m1", "m2"]
    check_all(world.store)


@pytest.mark.parametrize("delivered", [1, 3])
def test_run_under_way_waits_without_limit_and_then_continues(world, delivered):
    world.models.script = rounds_of(2, rounds=2)
    turn = world.submit()
    for _ in range(delivered):
        world.deliver(world.pending.pop(0))
    world.agents.broken = {"ada"}
    carry_on(world, sweeps=12)
    assert world.row("runs")["status"] == "running"

    world.agents.broken = set()
    carry_on(world, sweeps=6)

    assert world.row("turns", id=turn)["disposition"] == "answered"
    check_all(world.store)


@pytest.mark.parametrize("where", ["model", "tools", "round"])
def test_its_runs_under_way_leave_their_places_to_others(world, where):
    """Those of others start at once, and not with the sweep."""
    world.budgets[Group.CHAT] = 2
    world.models.script = rounds_of(1)
    for _ in range(2):
        world.submit(thread=None)
    for _ in range({"model": 2, "tools": 4, "round": 8}[where]):
        world.deliver(world.pending.pop(0))
    others = [world.submit(thread=None, agent="bob") for _ in range(3)]
    for wake_up in world.pending[-3:]:
        world.pending.remove(wake_up)
        world.deliver(wake_up)
    assert {status(world, turn) for turn in others} == {"queued"}
    world.agents.broken = {"ada"}

    deliver_all(world)

    assert {status(world, turn) for turn in others} == {"done"}
    assert [(row["status"], row["stalled"]) for row in world.rows("runs", agent="ada")] == [("running", 1)] * 2
    world.agents.broken = set()
    carry_on(world, sweeps=6)
    assert world.unfinished() == []
    assert {row["stalled"] for row in world.rows("runs")} == {0}
    check_all(world.store)


def test_a_run_that_left_its_place_can_be_cancelled(world):
    turn = world.submit()
    world.deliver(world.pending.pop(0))
    world.agents.broken = {"ada"}
    deliver_all(world)
    stages.cancel_turn(world.runtime, turn)

    assert (world.row("runs")["status"], world.row("runs")["stalled"]) == ("done", 0)


@pytest.mark.parametrize("tool", ["pure", "unsafe"])
def test_a_call_waits_and_is_carried_out_once(world, tool):
    from support.fakes import asking

    replies = iter([asking((tool, {"n": 1})), spoken("ok")])
    world.models.script = lambda prompt: next(replies)
    turn = world.submit()
    while not world.rows("calls"):
        world.deliver(world.pending.pop(0))
    world.agents.broken = {"ada"}
    carry_on(world, sweeps=5)
    assert (world.row("calls")["status"], world.tools.ran.total()) == ("new", 0)

    world.agents.broken = set()
    carry_on(world, sweeps=6)

    assert world.tools.ran.total() == 1
    assert world.row("turns", id=turn)["disposition"] == "answered"
    check_all(world.store)
