"""With one slot for everybody: a chat comes before the next model call of any other run, on every path to it."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.agent import PlanSpec, WhenBusy
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import Origin, Sender
from chordage.orchestrator.core.model import Prompt, Reply, StopReason, UserSays
from support.busy_thread import in_the_model_call
from support.fakes import asking, rounds_of, spoken
from support.invariants import check_all
from support.one_slot import OneSlot
from support.one_turn import change_agent
from support.outputs import BAD, GOOD, demand, saying
from support.planning import plan_of, planner
from support.summing import FITS, summing
from support.world import World

CHORE = {"origin": Origin.CHORE, "sender": Sender.SELF, "thread": "chore:c"}
PAUSED = Reply(text="thinking", asks=(), stop=StopReason.PAUSE_TURN, model="fake")


def is_chat(prompt: Prompt) -> bool:
    return isinstance(prompt.said[-1], UserSays) and prompt.said[-1].text == "chat"


def pauses(world: World) -> None:
    world.models.script = saying(PAUSED, PAUSED, "done")


def asks_for_what_is_not_there(world: World) -> None:
    world.models.script = saying(asking(("nobody", {})), "done")


def has_rounds(world: World) -> None:
    world.models.script = rounds_of(2, rounds=2)


def plans(world: World) -> None:
    change_agent(world, strategy="plan_execute", plan=PlanSpec())
    world.models.script = planner(plan_of("pure"))


def plans_nothing(world: World) -> None:
    change_agent(world, strategy="plan_execute", plan=PlanSpec())
    world.models.script = planner()


def is_to_repair(world: World) -> None:
    demand(world)
    world.models.script = saying(BAD, GOOD)


def is_steered(world: World) -> None:
    world.models.script = lambda prompt: spoken("done")
    in_the_model_call(world, lambda: world.submit("more", when_busy=WhenBusy.STEER, **CHORE))


def sums_up(world: World) -> None:
    summing(world, lambda prompt: spoken("aye"), threshold=FITS)
    world.submit("before", **CHORE)
    world.run_dry()


PATHS = [pauses, asks_for_what_is_not_there, has_rounds, plans, plans_nothing, is_to_repair, is_steered, sums_up]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_a_chat_comes_between_any_two_model_calls_of_a_chore(world: World, path) -> None:
    path(world)
    before, first = world.models.before_reply, len(world.models.prompts)
    chores = world.models.script
    world.models.script = lambda prompt: spoken(GOOD) if is_chat(prompt) else chores(prompt)

    def a_chat_comes(prompt: Prompt) -> None:
        if before:
            before(prompt)
        if not is_chat(prompt):
            world.submit("chat", thread=f"t{len(world.models.prompts)}", strategy="react")

    world.models.before_reply = a_chat_comes
    world.submit("work", **CHORE)
    OneSlot(world).run_dry()

    asked = ["chat" if is_chat(prompt) else "chore" for prompt in world.models.prompts[first:]]
    assert asked == ["chore", "chat"] * (len(asked) // 2)
    assert len(asked) >= 4
    assert {turn["disposition"] for turn in world.rows("turns")} <= {"answered", "steered"}
    check_all(world.store)


@pytest.mark.parametrize(("group", "messages"), [(Group.CHAT, 1), (Group.TASK, 3), (Group.CHORE, 3), (Group.WILL, 3)])
def test_continuing_chat_costs_no_message_and_another_run_one_for_each_further_call(
    world: World, group: Group, messages: int
) -> None:
    world.models.script = saying(PAUSED, PAUSED, "done")
    world.submit(group=group)
    slot = OneSlot(world)
    slot.run_dry()

    assert slot.messages == messages
    assert len(world.models.prompts) == 3


def test_a_round_costs_a_chore_what_it_costs_a_chat(world: World) -> None:
    """1 + R(K + 1)."""
    world.models.script = rounds_of(2, rounds=3)
    for group in (Group.CHAT, Group.CHORE):
        slot = OneSlot(world)
        world.submit(group=group, thread=group.value)
        slot.run_dry()
        assert slot.messages == 1 + 3 * (2 + 1)


def test_a_chore_that_lost_its_way_back_is_found_again(world: World) -> None:
    world.models.script = saying(PAUSED, "done")
    world.submit(**CHORE)
    slot = OneSlot(world)
    slot.send(world.pending)
    world.pending, slot.send = [], lambda intents: None  # type: ignore[method-assign]  # whatever follows is lost
    slot.run_dry()
    assert len(world.models.prompts) == 1
    world.recover()

    assert len(world.models.prompts) == 2
    check_all(world.store)
