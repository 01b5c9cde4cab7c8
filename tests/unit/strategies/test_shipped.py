"""The moves of the strategies that come with chordage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core.model import StopReason
from chordage.orchestrator.core.moves import Finish, Infer, RunTools, View
from chordage.orchestrator.core.reasons import NATURAL_END, Reason
from chordage.orchestrator.strategies.shipped import STRATEGIES, direct, react
from support.builders import a_reply, an_ask


def view(stop=None, *asks, rounds=0, max_rounds=25):
    reply = None if stop is None else a_reply(stop, *asks)
    return View(rounds=rounds, reply=reply, max_rounds=max_rounds)


def test_idle_run_calls_the_model_and_offers_the_tools():
    assert react(view()) == Infer(offer_tools=True)
    assert react(view(rounds=25)) == Infer(offer_tools=True)


def test_tool_use_runs_the_tools():
    assert react(view(StopReason.TOOL_USE, an_ask())) == RunTools()


def test_tool_use_without_a_call_is_the_end():
    assert react(view(StopReason.TOOL_USE)) == Finish(ending=NATURAL_END)


def test_a_paused_turn_is_sent_back():
    assert react(view(StopReason.PAUSE_TURN)) == Infer()


@pytest.mark.parametrize("asks", [(), (an_ask(),)], ids=["no ask", "half an ask"])
@pytest.mark.parametrize(
    ("stop", "reason", "code"),
    [
        (StopReason.END, Reason.NATURAL_END, None),
        (StopReason.MAX_TOKENS, Reason.STOPPED, "max_tokens"),
        (StopReason.REFUSAL, Reason.STOPPED, "refusal"),
        (StopReason.UNKNOWN, Reason.STOPPED, "unknown_stop"),
    ],
)
def test_every_other_stop_ends_the_run_and_runs_nothing(stop, reason, code, asks):
    move = react(view(stop, *asks))

    assert isinstance(move, Finish)
    assert (move.ending.reason, move.ending.code) == (reason, code)
    assert (move.ending.detail is None) is (code is None)


@pytest.mark.parametrize(("rounds", "opens"), [(0, True), (2, True), (3, False), (4, False)])
def test_limit_is_reached_before_a_round_that_would_not_be_read(rounds, opens):
    move = react(view(StopReason.TOOL_USE, an_ask(), rounds=rounds, max_rounds=3))

    assert (move == RunTools()) is opens
    if not opens:
        assert (move.ending.reason, move.ending.code) == (Reason.STOPPED, "max_rounds")
        assert "3 tool rounds" in move.ending.detail


def test_without_a_limit_there_is_always_another_round():
    assert react(view(StopReason.TOOL_USE, an_ask(), rounds=10_000, max_rounds=None)) == RunTools()


@given(
    stop=st.none() | st.sampled_from(list(StopReason)),
    asks=st.integers(0, 3),
    rounds=st.integers(0, 50),
    max_rounds=st.none() | st.integers(1, 50),
)
def test_tools_run_only_where_they_were_called_within_the_limit(stop, asks, rounds, max_rounds):
    move = react(view(stop, *[an_ask()] * asks, rounds=rounds, max_rounds=max_rounds))

    may_run = stop is StopReason.TOOL_USE and asks > 0 and (max_rounds is None or rounds < max_rounds)
    assert (move == RunTools()) is may_run


def test_strategies_are_found_by_name():
    assert set(STRATEGIES) == {"direct", "react", "plan_execute"}
    assert STRATEGIES["react"] is react


def test_model_is_called_once_and_offered_no_tools():
    assert direct(View(rounds=0, reply=None, max_rounds=25)) == Infer(offer_tools=False)


@pytest.mark.parametrize("stop", list(StopReason))
def test_any_reply_is_the_answer(stop):
    view = View(rounds=0, reply=a_reply(stop, an_ask()), max_rounds=25)

    assert direct(view) == Finish(ending=NATURAL_END)
