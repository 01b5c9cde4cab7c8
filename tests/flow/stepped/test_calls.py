"""The calls of a reply that is held: carried out once, tried again by name, supplied, held back and decided about."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chordage.orchestrator import views
from chordage.orchestrator.core.approvals import Action, DecisionRequest, Question, Why
from chordage.orchestrator.core.errors import InvalidMessage, StepRefused
from chordage.orchestrator.core.model import StopReason
from chordage.orchestrator.core.stepping import Standing
from chordage.orchestrator.gateways.ports import ToolOutcome
from support.driving import USER, asks, consume, text
from support.fakes import asking
from support.invariants import check_all

ASK = Question(why=Why.TOOL, prompt="May I?")


def held(world, *ids, tool="pure", then="done", **terms):
    it = consume(world, asks(*ids, tool=tool), text(then), **terms)
    it.next()
    return it


def contents(view):
    return [one["content"] for one in view.tool_response]


def test_B25_generating_changes_neither_history_nor_the_mutated_flag(world):
    it = held(world, "a", "b")
    view = it.do("tool_response")

    assert (contents(view), view.mutated, view.standing) == (["pure0", "pure1"], False, Standing.HELD)
    assert [row["kind"] for row in world.rows("journal")] == ["UserMessage", "ReplyHeld"]


def test_turn_whose_reply_is_held_is_shown_as_waiting_for_its_consumer(world):
    it = held(world, "a")

    assert views.turn(world.store, it.turn).fate == "waiting for its consumer"
    assert [line.fate for line in views.turns(world.store)] == ["waiting for its consumer"]


def test_B26_B27_repeated_and_concurrent_calls_carry_out_once(world):
    it = held(world, "a")
    world.step(it.turn, "tool_response")
    world.step(it.turn, "tool_response")
    assert it.look().standing is Standing.TOOLING
    world.run_dry()
    it.do("tool_response")
    it.next()

    assert it.runs == 1


def test_B29_a_reply_without_calls_has_no_tool_response(world):
    it = consume(world, text())
    it.next()

    assert it.do("tool_response").tool_response is None


def test_B30_before_the_start_there_is_no_reply_to_generate_for(world):
    it = consume(world, text())
    with pytest.raises(StepRefused, match="this one is ready"):
        it.do("tool_response")


@pytest.mark.parametrize("stop", [StopReason.END, StopReason.MAX_TOKENS, StopReason.REFUSAL, StopReason.UNKNOWN])
def test_B50_B53_B57_calls_of_a_reply_that_stopped_never_run(world, stop):
    cut = replace(asks("a"), stop=stop)
    it = consume(world, cut, text("done"))
    it.next()

    assert it.do("tool_response").tool_response is None
    it.push(it.link)
    it.next()

    assert it.runs == 0
    assert it.asked[1][:2] == ["hi", "R(a)"]
    it.next()
    check_all(world.store)


def test_B52_a_pause_is_sent_back_unchanged(world):
    it = consume(world, replace(text("wait"), stop=StopReason.PAUSE_TURN), text("done"))
    it.next()
    it.next()

    assert it.asked[1] == ["hi", "wait"]


def test_A21_B41_B43_B44_results_keep_the_order_of_the_calls_whatever_finished_first(world):
    it = held(world, "a", "b", "c")
    world.step(it.turn, "next")
    (fan_out,) = world.pending
    world.pending.clear()
    headers = world.deliver(fan_out)
    world.pending.clear()
    for header in reversed(headers):
        world.deliver(header)
    world.run_dry()

    assert it.asked[1] == ["hi", "R(a b c)", "a=pure0", "b=pure1", "c=pure2"]


def test_B33_B34_B35_failures_and_unknown_tools_are_results(world):
    world.tools.run = lambda agent, order, **_: ToolOutcome(code="raised", content="Error: boom")
    it = consume(world, asks("a"), text("done"))
    it.next()
    (result,) = it.do("tool_response").tool_response
    assert result == {"role": "tool", "ask_id": "a", "content": "Error: boom", "is_error": True}
    it.next()
    it.next()
    check_all(world.store)


def test_B37_arguments_that_do_not_fit_are_an_error_result(world):
    it = consume(world, asking(("pure", {"n": "x"}), ids=("a",)), text("done"))
    it.next()
    (result,) = it.do("tool_response").tool_response

    assert (result["is_error"], "must be a number" in result["content"], it.runs) == (True, True, 0)


@pytest.mark.parametrize("when", ["before", "while-held"])
def test_B38_B46_B47_B49_a_tool_that_is_taken_away_is_not_found_and_may_come_back(world, when):
    it = consume(world, asks("a"), text("done"))
    if when == "before":
        it.do("params", params={"tools": ["unsafe"]})
        it.next()
    else:
        it.next()
        it.do("params", params={"tools": ["unsafe"]})
    (result,) = it.do("tool_response").tool_response
    assert (result["is_error"], it.runs) == (True, 0)
    assert "no tool 'pure'" in result["content"]

    it.do("params", params={"tools": None})
    it.do("retry", ask_ids=["a"])

    assert contents(it.look()) == ["pure0"]


def test_a_retry_is_a_new_life_of_the_named_calls_only(world):
    outcomes = iter(["bad", "fine", "good"])
    world.tools.run = lambda agent, order, **_: ToolOutcome(content=next(outcomes))
    it = held(world, "a", "b")
    it.do("tool_response")
    view = it.do("retry", ask_ids=["a"])

    assert contents(view) == ["good", "fine"]
    assert [(row["ask_id"], row["generation"]) for row in world.rows("calls")] == [("a", 1), ("b", 1), ("a", 2)]
    it.next()
    assert it.asked[1] == ["hi", "R(a b)", "a=good", "b=fine"]
    it.next()
    check_all(world.store)


def test_a_call_with_effects_is_retried_only_by_force(world):
    it = held(world, "a", tool="unsafe")
    it.do("tool_response")
    with pytest.raises(StepRefused, match="say force") as refused:
        it.do("retry", ask_ids=["a"])
    assert refused.value.code == "needs_force"

    it.do("retry", ask_ids=["a"], force=True)
    it.do("retry", ask_ids=["a"], force=True)

    assert sorted(world.tools.ran.values()) == [1, 1, 1], "each life has a key of its own"
    it.next()
    it.next()
    check_all(world.store)


def test_only_calls_of_the_reply_that_have_ended_are_retried(world):
    it = held(world, "a")
    with pytest.raises(InvalidMessage, match="is no call of what is held"):
        it.do("retry", ask_ids=["a"])
    it.do("tool_response")
    with pytest.raises(InvalidMessage, match="'z' is no call"):
        it.do("retry", ask_ids=["z"])


def test_consumer_results_replace_calls_that_were_not_opened(world):
    it = held(world, "a", "b")
    it.do("tool_results", results=[{"ask_id": "b", "content": "mine"}])
    it.next()

    assert (it.asked[1], it.runs) == (["hi", "R(a b)", "a=pure0", "b=mine"], 1)
    assert [row["code"] for row in world.rows("calls")] == [None, "client_supplied"]
    it.next()
    check_all(world.store)


def test_the_first_terminal_result_of_a_running_call_counts(world):
    it = held(world, "a", tool="unsafe")

    def overtaken(order):
        world.step(it.turn, "tool_results", results=[{"ask_id": "a", "content": "mine", "is_error": True}])

    world.tools.before = overtaken
    it.do("tool_response")

    (result,) = it.look().tool_response
    assert (result["content"], result["is_error"], it.look().standing) == ("mine", True, Standing.HELD)
    with pytest.raises(StepRefused, match="its result stays"):
        it.do("tool_results", results=[{"ask_id": "a", "content": "late"}])
    it.next()
    it.next()
    check_all(world.store)


def test_call_that_waits_for_a_decision_accepts_a_consumer_result(world):
    world.tools.asks = lambda _order: ASK
    it = held(world, "a")
    it.do("tool_response")
    it.do("tool_results", results=[{"ask_id": "a", "content": "mine"}])
    it.next()

    assert it.asked[1] == ["hi", "R(a)", "a=mine"]
    it.next()
    check_all(world.store)


def test_results_are_for_calls_of_the_reply(world):
    it = held(world, "a")
    with pytest.raises(InvalidMessage, match="'z' is no call"):
        it.do("tool_results", results=[{"ask_id": "z", "content": ""}])
    with pytest.raises(InvalidMessage) as error:
        it.do("tool_results", results=[{"ask_id": "a"}])
    assert error.value.field == "results.0"


def test_a_call_held_back_runs_only_after_an_explicit_yes(world):
    it = held(world, "a", "b")
    it.do("hold", ask_ids=["a"])
    view = it.do("tool_response")
    assert ([call.status.value for call in view.calls], view.tool_response) == (["suspended", "succeeded"], None)

    it.do("decide", ask_id="a", allow=True)

    assert (contents(it.look()), it.look().standing) == (["pure0", "pure1"], Standing.HELD)
    it.next()
    assert it.asked[1] == ["hi", "R(a b)", "a=pure0", "b=pure1"]
    it.next()
    check_all(world.store)


def test_a_verdict_may_come_before_the_call(world):
    it = held(world, "a", "b")
    it.do("hold", ask_ids=["a"])
    it.do("decide", ask_id="a", allow=True)
    it.do("decide", ask_id="b", allow=False, reason="too dear")
    it.next()

    assert it.asked[1][2] == "a=pure0"
    assert "too dear" in it.asked[1][3]
    assert it.runs == 1
    it.next()
    check_all(world.store)


def test_a_denied_call_is_an_error_result_and_never_runs(world):
    it = held(world, "a")
    it.do("hold", ask_ids=["a"])
    it.do("tool_response")
    view = it.do("decide", ask_id="a", allow=False, reason="no")

    assert (view.tool_response[0]["is_error"], it.runs) == (True, 0)
    it.next()
    it.next()
    check_all(world.store)


def test_a_call_that_was_opened_cannot_be_held_back(world):
    it = held(world, "a")
    it.do("tool_response")
    with pytest.raises(StepRefused) as refused:
        it.do("hold", ask_ids=["a"])
    assert refused.value.code == "started"


def test_a_decision_from_the_inbox_is_carried_out_while_the_reply_stays_held(world):
    asked: set[str] = set()
    world.tools.asks = lambda order: None if order.call_id in asked else (asked.add(order.call_id) or ASK)
    it = held(world, "a")
    it.do("tool_response")
    world.decide(DecisionRequest(target=world.inbox()[0]["id"], action=Action.RESUME, payload=True))
    world.run_dry()

    assert (contents(it.look()), it.look().standing, len(it.asked)) == (["pure0"], Standing.HELD, 1)
    it.next()
    it.next()
    check_all(world.store)


def test_run_whose_calls_all_wait_suspends_and_then_calls_the_model(world):
    asked: set[str] = set()
    world.tools.asks = lambda order: None if order.call_id in asked else (asked.add(order.call_id) or ASK)
    it = held(world, "a")
    it.next()
    assert it.look().standing is Standing.WAITING
    it.do("decide", ask_id="a", allow=True)

    assert (it.asked[1], it.look().standing) == (["hi", "R(a)", "a=pure0"], Standing.HELD)
    it.next()
    check_all(world.store)


def test_mixed_round_continues_with_a_placeholder_and_waits_before_its_end(world):
    asked: set[str] = set()

    def once(order):
        return ASK if order.arguments["n"] == 0 and not (order.call_id in asked or asked.add(order.call_id)) else None

    world.tools.asks = once
    it = held(world, "a", "b")
    it.next()
    assert it.look().standing is Standing.HELD
    it.next()
    assert it.look().standing is Standing.WAITING
    world.decide(DecisionRequest(target=world.inbox()[0]["id"], action=Action.RESUME, payload=True))
    world.run_dry()

    assert it.asked[-1][2:4] == ["a=pure0", "b=pure1"]
    it.next()
    assert it.look().standing is Standing.DONE
    check_all(world.store)


def test_calls_of_a_dropped_reply_that_still_wait_are_closed_with_their_questions(world):
    world.tools.asks = lambda _order: ASK
    it = held(world, "a")
    it.do("tool_response")
    it.push(USER)
    it.next()

    assert world.inbox() == []
    assert world.row("calls")["status"] == "cancelled"
    it.next()
    check_all(world.store)
