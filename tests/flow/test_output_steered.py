"""Structured output in a run that takes further messages in: the answer is what it says to the last of them."""

from __future__ import annotations

import pytest

from chordage.orchestrator import views
from support.busy_thread import steer
from support.invariants import check_all
from support.one_turn import kinds
from support.outputs import BAD, GOOD, PROSE, demand, refusals, saying


def play(world, *replies, during: int) -> views.TurnView:
    """A message is steered in while the model makes the reply with this number."""
    demand(world)
    world.models.script = saying_on(*replies)
    world.models.before_reply = lambda prompt: steer(world, "and this") if len(world.models.prompts) == during else None
    turn = world.submit()
    world.run_dry()
    return views.turn(world.store, turn)


def saying_on(*replies):
    """One after the other, whatever comes in between."""
    left = iter(replies)
    return lambda prompt: saying(next(left))(prompt.__class__(system="", said=prompt.said[:1]))


@pytest.mark.parametrize("meanwhile", [PROSE, BAD, GOOD])
def test_a_reply_behind_which_a_message_is_taken_in_need_not_fit(world, meanwhile):
    turn = play(world, meanwhile, BAD, '{"n": 9}', during=1)

    assert (turn.disposition, turn.output) == ("answered", {"n": 9})
    assert kinds(world)[:3] == ["UserMessage", "AssistantTurnCommitted", "UserMessage"]
    assert len(refusals(world)) == 1
    check_all(world.store)


def test_a_message_has_a_repair_of_its_own(world):
    turn = play(world, BAD, PROSE, PROSE, '{"n": 9}', during=2)

    assert (turn.disposition, turn.output) == ("answered", {"n": 9})
    assert len(refusals(world)) == 2
    check_all(world.store)


def test_the_last_of_them_is_held_to_the_output(world):
    turn = play(world, PROSE, BAD, BAD, during=1)

    assert (turn.code, len(refusals(world))) == ("output_invalid", 1)
    check_all(world.store)
