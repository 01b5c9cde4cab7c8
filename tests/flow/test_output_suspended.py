"""Structured output while calls wait for a decision: what is said meanwhile is not the answer."""

from __future__ import annotations

import pytest

from chordage.orchestrator import views
from support.fakes import asking
from support.invariants import check_all
from support.outputs import BAD, GOOD, PROSE, demand, refusals, saying
from support.questions import approve, asks_once

ASK = asking(("pure", {"n": 0}), ("pure", {"n": 1}))


def play(world, *replies) -> str:
    """The first call of the round waits, so that the model is asked again meanwhile."""
    demand(world)
    world.tools.asks = asks_once(0)
    world.models.script = saying(*replies)
    turn = world.submit()
    world.run_dry()
    assert views.turn(world.store, turn).reason == "suspended"
    return turn


@pytest.mark.parametrize("meanwhile", [PROSE, BAD, GOOD])
def test_text_while_a_call_waits_need_not_fit_and_costs_no_repair(world, meanwhile):
    turn = play(world, ASK, meanwhile, BAD, '{"n": 9}')
    assert refusals(world) == []

    approve(world, *world.inbox())

    found = views.turn(world.store, turn)
    assert (found.disposition, found.output) == ("answered", {"n": 9})
    assert len(refusals(world)) == 1
    check_all(world.store)


def test_a_run_that_has_used_its_repair_waits_all_the_same_and_fails_only_at_its_end(world):
    turn = play(world, BAD, ASK, PROSE, BAD)
    assert len(refusals(world)) == 1

    approve(world, *world.inbox())

    found = views.turn(world.store, turn)
    assert (found.code, len(refusals(world))) == ("output_invalid", 1)
    check_all(world.store)


def test_once_nothing_waits_any_more_a_run_is_held_to_its_output(world):
    turn = play(world, ASK, PROSE, PROSE, PROSE)
    approve(world, *world.inbox())

    found = views.turn(world.store, turn)
    assert (found.disposition, found.code) == ("failed", "output_invalid")
    assert len(world.models.prompts) == 4
    check_all(world.store)
