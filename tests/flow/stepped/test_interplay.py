"""What else happens to a stepped run: other consumers, other messages, plugins, and agents that cannot be loaded."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.agent import WhenBusy
from chordage.orchestrator.core.errors import StepRefused
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import CallModel
from chordage.orchestrator.core.phases import Hook
from chordage.orchestrator.core.reasons import stopped
from chordage.orchestrator.core.stepping import Control, Standing
from chordage.orchestrator.core.transcript import DECIDED
from chordage.orchestrator.core.verdicts import Block, Terminate
from support import hooks
from support.driving import USER, asks, consume, in_short, text
from support.invariants import check_all
from support.questions import approve, asks_once


def install(world, hook: Hook, answer) -> None:
    hooks.install(world, hooks.plugin_for(hook, answer))


def while_deciding(world, act) -> None:
    """Something happens between the look at a turn and the transaction in which a verb is written."""
    left = [act]

    def invalid(agent, tool, arguments):
        if left:
            left.pop()()

    world.tools.invalid = invalid


def test_verb_is_decided_again_when_the_run_has_changed_meanwhile(world):
    it = consume(world, asks("a"), text("done"))
    it.next()
    while_deciding(world, lambda: world.step(it.turn, "messages", messages=[USER]))

    it.next()

    assert it.asked[1] == ["hi", "U"], "the words that came in between count"
    it.next()
    check_all(world.store)


def test_or_refused_where_it_was_meant_for_one_revision(world):
    it = consume(world, asks("a"), text("done"))
    it.next()
    while_deciding(world, lambda: world.step(it.turn, "next"))

    with pytest.raises(StepRefused) as refused:
        world.step(it.turn, "next", if_rev=it.look().rev)
    world.run_dry()

    assert (refused.value.code, it.runs, len(it.asked)) == ("stale_rev", 1, 2)


def test_two_requests_with_one_key_at_once_do_it_once(world):
    it = consume(world, asks("a"), text("done"))
    it.next()
    answers = []
    while_deciding(world, lambda: answers.append(world.step(it.turn, "next", key="k")))

    answers.append(world.step(it.turn, "next", key="k"))
    world.run_dry()

    assert [one.duplicate for one in answers] == [False, True]
    assert (it.runs, len(it.asked)) == (1, 2)


def test_a_later_message_does_not_end_a_run_that_is_held(world):
    it = consume(world, text("R"))
    it.next()
    other = world.submit("later", control=Control.AUTO)
    world.run_dry()
    assert (it.look().standing, world.row("turns", id=other)["status"]) == (Standing.HELD, "queued")

    it.next()
    world.run_dry()

    assert world.row("turns", id=other)["disposition"] == "answered"
    check_all(world.store)


def test_a_message_that_interrupts_ends_it_all_the_same(world):
    it = consume(world, text("R"))
    it.next()
    world.submit("now", when_busy=WhenBusy.INTERRUPT)
    world.run_dry()

    assert (it.look().standing, it.look().disposition) == (Standing.DONE, "cancelled")
    check_all(world.store)


def test_steering_message_joins_the_run_when_it_resumes(world):
    it = consume(world, asks("a"), text("done"))
    it.next()
    world.submit("by the way", when_busy=WhenBusy.STEER)
    world.run_dry()
    assert it.look().standing is Standing.HELD
    it.next()

    assert it.asked[1] == ["hi", "R(a)", "a=pure0", "by the way"]
    it.next()
    check_all(world.store)


def test_call_check_runs_when_calls_are_opened_and_a_block_becomes_a_result(world):
    install(world, Hook.BEFORE_TOOL_EXECUTE, lambda _context: [Block(reason="not on a Sunday")])
    it = consume(world, asks("a"), text("done"))
    it.next()
    (result,) = it.do("tool_response").tool_response

    assert (result["content"], it.runs) == ("not on a Sunday", 0)
    it.next()
    it.next()
    check_all(world.store)


def test_failing_call_check_ends_the_run_and_keeps_the_reply(world):
    def broken(_context):
        raise RuntimeError("out of order")

    install(world, Hook.BEFORE_TOOL_EXECUTE, broken)
    it = consume(world, asks("a"), text("done"))
    it.next()
    it.next()

    assert (it.look().standing, it.look().code) == (Standing.DONE, "plugin")
    assert [row["kind"] for row in world.rows("journal")][-2:] == ["AssistantTurnCommitted", "RunFinished"]
    check_all(world.store)


def test_plugin_stop_leaves_the_consumer_time_to_read_and_the_tools_to_finish(world):
    install(world, Hook.AFTER_INFERENCE, lambda _context: [Terminate(ending=stopped("budget"))])
    it = consume(world, asks("a"), text("done"))
    it.next()
    assert it.look().standing is Standing.HELD
    it.next()

    assert (it.look().code, it.runs, len(it.asked)) == ("budget", 1, 1)
    check_all(world.store)


def test_run_start_hook_runs_once_even_with_messages_before_the_first_request(world):
    heard = []
    install(world, Hook.RUN_START, lambda context: heard.append(in_short(context.said)) or [])
    it = consume(world, asks("a"), text("done"))
    it.push(USER)
    it.do("run")

    assert heard == [["hi", "U"]]


def test_repeated_wake_up_during_the_first_request_makes_no_second_request(world):
    it = consume(world, text("R"))
    again = [CallModel(run_id=it.look().run_id, step=1, group=Group.CHAT)]
    world.models.before_reply = lambda _prompt: world.deliver(again.pop()) if again else None
    it.next()

    assert len(it.asked) == 1


@pytest.mark.parametrize("is_early", [True, False], ids=["while_held", "behind_next"])
def test_a_result_that_comes_while_the_answer_is_held_is_seen_before_the_run_ends(world, is_early):
    world.tools.asks = asks_once(1)
    it = consume(world, asks("a", "b"), text("not yet"), text("done"))
    it.next()
    assert it.next().reply.text == "not yet"
    if is_early:
        approve(world, world.inbox()[0])
        it.next()
    else:
        it.next()
        approve(world, world.inbox()[0])

    assert it.asked[-1] == ["hi", "R(a b)", "a=pure0", "b=pure1", "not yet", DECIDED]
    assert (it.look().standing, it.look().reply.text, it.runs) == (Standing.HELD, "done", 3)
    it.next()
    assert it.look().answer == "done"
    check_all(world.store)


def test_at_the_cap_an_answer_is_the_answer_whatever_came_meanwhile(world):
    world.tools.asks = asks_once(1)
    it = consume(world, asks("a", "b"), text("not yet"), max_iterations=2)
    it.next()
    it.next()
    approve(world, world.inbox()[0])
    it.next()

    assert (it.look().standing, it.look().answer) == (Standing.DONE, "not yet")
    check_all(world.store)
