"""Stepped runs whose calls ask sub-agents, wait for each other, or are dropped; and requests that fail."""

from __future__ import annotations

from chordage.orchestrator.core.agent import MixedRound, SubAgent, ToolMode, WhenBusy
from chordage.orchestrator.core.errors import ModelFailed
from chordage.orchestrator.core.intents import Dispatch
from chordage.orchestrator.core.model import Fault
from chordage.orchestrator.core.stepping import Control, OnHeld, Standing, StepTerms
from support.driving import USER, Consumer, asks, consume, text
from support.fakes import asking, spoken
from support.family import ask, by_agent, change, settle_in
from support.invariants import check_all
from support.one_turn import change_agent, statuses
from support.questions import approval, asks_once


def of_a_family(world, *replies) -> Consumer:
    """ada's replies in their order; the others say their name. Nothing of them starts by itself."""
    left = list(replies)
    world.models.script = lambda prompt: spoken(prompt.system) if prompt.system != "ada" else left.pop(0)
    driven = Consumer(world, world.submit(control=Control.STEP, step=StepTerms()))
    world.run_dry()
    driven.next()
    return driven


def deliver_all_but_starts(world):
    kept = []
    while world.pending:
        intent = world.pending.pop(0)
        if isinstance(intent, Dispatch):
            kept.append(intent)
        else:
            world.deliver(intent)
    world.pending = kept


def test_sub_agent_of_a_dropped_call_does_not_continue(world):
    settle_in(world)
    driven = of_a_family(world, asking(ask("bob"), ids=("b",)), spoken("fin"))
    world.step(driven.turn, "tool_response")
    deliver_all_but_starts(world)
    world.step(driven.turn, "messages", messages=[USER])
    world.step(driven.turn, "next")
    world.run_dry()
    assert by_agent(world)["bob"]["disposition"] == "cancelled"


def test_sub_agent_of_a_call_with_a_consumer_result_does_not_continue(world):
    settle_in(world)
    driven = of_a_family(world, asking(ask("bob"), ids=("b",)), spoken("fin"))
    world.step(driven.turn, "tool_response")
    deliver_all_but_starts(world)
    world.step(driven.turn, "tool_results", results=[{"ask_id": "b", "content": "mine"}])
    world.run_dry()
    assert by_agent(world)["bob"]["disposition"] == "cancelled"


def test_sequential_sub_agents_start_one_after_the_other(world):
    settle_in(world)
    change(world, "ada", tool_mode=ToolMode.SEQUENTIAL, agents=(SubAgent(agent="bob"), SubAgent(agent="cleo")))
    calls = [ask("bob"), ask("bob", "again"), ask("cleo"), ("pure", {"n": 0})]
    driven = of_a_family(world, asking(*calls, ids=("a", "b", "c", "d")), spoken("fin"))
    world.step(driven.turn, "tool_response")
    deliver_all_but_starts(world)
    world.deliver(world.pending.pop(0))  # bob begins, and answers
    deliver_all_but_starts(world)

    assert [turn["agent"] for turn in world.rows("turns", status="queued")] == ["bob"]
    assert world.tools.orders == []
    world.run_dry()
    assert set(statuses(world)) == {"succeeded"}
    driven.next()
    driven.next()
    check_all(world.store)


def test_consumer_result_for_a_sequential_call_releases_the_calls_behind_it(world):
    change_agent(world, tool_mode=ToolMode.SEQUENTIAL)
    driven = consume(world, asks("a", "b"), text("fin"))
    world.tools.asks = asks_once(0)
    driven.next()
    driven.do("tool_response")
    assert statuses(world) == ["suspended", "new"]
    driven.do("tool_results", results=[{"ask_id": "a", "content": "mine"}])

    assert statuses(world) == ["succeeded", "succeeded"]
    assert driven.look().standing is Standing.HELD
    driven.next()
    driven.next()
    check_all(world.store)


def test_consumer_that_replaces_the_history_gets_no_question_about_the_old_one(world):
    change_agent(world, mixed_round=MixedRound.CONTINUE)
    driven = consume(world, asks("a", "b"), text("mid"), text("fin"))
    world.tools.asks = asks_once(0)
    driven.next()
    driven.next()
    driven.do("params", params={}, messages=[{"role": "user", "text": "all new"}])
    driven.next()

    assert world.inbox() == []
    driven.next()
    assert driven.look().standing is Standing.DONE
    check_all(world.store)


def test_a_message_for_a_stepped_run_that_would_end_is_taken_in(world):
    driven = consume(world, text("R"), text("S"))
    driven.next()
    other = world.submit("by the way", when_busy=WhenBusy.STEER)
    driven.next()
    assert world.row("turns", id=other)["disposition"] == "steered"
    assert driven.look().standing is Standing.HELD


def test_failed_request_without_a_consumer_is_not_repeated_for_ever(world):
    def down(prompt):
        raise ModelFailed("down", fault=Fault.SERVER, attempts=())

    world.models.script = down
    turn = world.submit(control=Control.STEP, step=StepTerms(hold_seconds=5, on_held=OnHeld.RESUME))
    world.run_dry()
    world.step(turn, "next")
    for _ in range(9):
        world.run_dry()
        world.sweep(10)
    assert len(world.models.prompts) == 1
    assert Consumer(world, turn).look().standing is Standing.PARKED


def test_decision_made_during_the_model_call_takes_effect_while_the_reply_is_held(world):
    change_agent(world, mixed_round=MixedRound.CONTINUE)
    driven = consume(world, asks("a", "b"), text("mid"), text("fin"))
    world.tools.asks = asks_once(0)
    driven.next()
    before = world.models.before_reply

    def decide(prompt):
        world.models.before_reply = before
        world.decide(approval(world.inbox()[0]))

    world.models.before_reply = decide
    driven.next()

    assert statuses(world) == ["succeeded", "succeeded"]
    assert driven.look().standing is Standing.HELD
    for _ in range(3):
        if driven.look().standing is not Standing.DONE:
            driven.next()
    check_all(world.store)
