"""The settle rule, as a pure function: what becomes of a reply, and where the run goes."""

from __future__ import annotations

from typing import Any

import pytest

from chordage.orchestrator.core import client_messages
from chordage.orchestrator.core.model import Reply, StopReason
from chordage.orchestrator.core.moves import View
from chordage.orchestrator.core.reasons import NATURAL_END, Ending, Reason, stopped
from chordage.orchestrator.core.settling import Fate, Held, Route, Settled, settled
from chordage.orchestrator.core.stepping import CapPolicy
from chordage.orchestrator.strategies.shipped import STRATEGIES
from support.builders import a_reply, an_ask

TOOLS = a_reply(StopReason.TOOL_USE, an_ask("a"), an_ask("b"), text="let me see")
TEXT = a_reply(StopReason.END)
ID = "r:1"


def normal(*messages: dict[str, Any], reply: Reply | None = TOOLS) -> list[dict[str, Any]]:
    return client_messages.normal(messages, [], reply, ID)


def rule(reply: Reply | None, *messages: dict[str, Any], strategy: str = "react", **more: Any) -> Settled:
    pending = normal(*messages, reply=reply) if messages else []
    known: dict[str, Any] = {
        "reply": reply, "mutated": bool(messages) and reply is not None, "given": pending, "steered": False,
        "kept": None, "iteration": 1, "max_iterations": None, "cap_policy": CapPolicy.SKIP_TOOLS,
    }  # fmt: skip
    held = Held(**{**known, **more})
    return settled(held, lambda one: STRATEGIES[strategy](View(rounds=0, reply=one, max_rounds=25)))


USER = {"role": "user", "text": "another way, please"}
LINK = {"role": "assistant", "reply": ID}
RESULTS = ({"role": "tool", "ask_id": "a", "content": "A"}, {"role": "tool", "ask_id": "b", "content": "B"})
OWN = {"role": "assistant", "text": "mine", "asks": [{"id": "x", "name": "pure", "arguments": {}}]}


@pytest.mark.parametrize(
    ("reply", "messages", "fate", "route", "opens"),
    [
        pytest.param(TOOLS, (), Fate.APPENDED, Route.TOOLS, "ab", id="untouched-tools"),
        pytest.param(TEXT, (), Fate.APPENDED, Route.END, "", id="untouched-text"),
        pytest.param(TOOLS, (LINK, *RESULTS), Fate.LINKED, Route.ASK, "", id="linked-with-results"),
        pytest.param(TOOLS, (LINK, RESULTS[0]), Fate.LINKED, Route.TOOLS, "b", id="linked-with-one-result"),
        pytest.param(TOOLS, (LINK,), Fate.LINKED, Route.TOOLS, "ab", id="linked-alone"),
        pytest.param(TOOLS, (USER,), Fate.DISCARDED, Route.ASK, "", id="user-message"),
        pytest.param(TOOLS, (USER, OWN), Fate.DISCARDED, Route.TOOLS, "x", id="own-assistant-message"),
        pytest.param(TEXT, (USER,), Fate.DISCARDED, Route.ASK, "", id="user-message-on-text"),
        pytest.param(TEXT, (LINK, USER), Fate.LINKED, Route.ASK, "", id="linked-and-user-on-text"),
        pytest.param(None, (), Fate.NONE, Route.ASK, "", id="ready"),
        pytest.param(None, (USER,), Fate.NONE, Route.ASK, "", id="ready-with-words"),
        pytest.param(None, (OWN,), Fate.NONE, Route.TOOLS, "x", id="ready-with-open-asks"),
    ],
)
def test_next_step_follows_from_the_reply_or_the_consumers_list(reply, messages, fate, route, opens):
    found = rule(reply, *messages)

    assert (found.fate, found.route, found.open_ids, found.closes) == (fate, route, frozenset(opens), None)


@pytest.mark.parametrize(
    ("stop", "ending"),
    [
        (StopReason.REFUSAL, "refusal"),
        (StopReason.MAX_TOKENS, "max_tokens"),
        (StopReason.UNKNOWN, "unknown_stop"),
        (StopReason.END, None),
    ],
)
def test_calls_of_a_reply_that_stopped_are_never_carried_out_appended_or_pushed(stop, ending):
    cut = a_reply(stop, an_ask("a"))

    appended = rule(cut)
    pushed = rule(cut, LINK)

    assert (appended.route, appended.closes, appended.ending.code) == (Route.END, "not_run", ending)
    assert (pushed.route, pushed.closes, pushed.ending) == (Route.ASK, "not_run", None)


def test_a_pause_is_sent_back():
    assert rule(a_reply(StopReason.PAUSE_TURN)).route is Route.ASK


@pytest.mark.parametrize(
    ("reply", "messages"), [(TEXT, ()), (a_reply(StopReason.REFUSAL), ()), (a_reply(StopReason.MAX_TOKENS), ())]
)
def test_a_steer_turns_an_end_of_the_models_own_into_one_more_request(reply, messages):
    assert rule(reply, *messages, steered=True).route is Route.ASK
    assert rule(reply, *messages, steered=True, max_iterations=1).route is Route.END


def test_at_the_cap_calls_are_closed_and_the_run_is_stopped():
    found = rule(TOOLS, max_iterations=1)

    assert (found.route, found.closes, found.open_ids) == (Route.END, "not_run_cap", frozenset("ab"))
    assert (found.ending.reason, found.ending.code) == (Reason.STOPPED, "max_iterations")


def test_at_the_cap_calls_run_if_the_policy_allows_and_then_it_stops():
    found = rule(TOOLS, max_iterations=1, cap_policy=CapPolicy.RUN_TOOLS)

    assert (found.route, found.closes, found.ending.code) == (Route.TOOLS, None, "max_iterations")


def test_at_the_cap_a_text_reply_ends_as_usual_and_a_mutation_calls_no_model():
    assert rule(TEXT, max_iterations=1).ending == NATURAL_END
    assert rule(TEXT, USER, max_iterations=1).ending.code == "max_iterations"
    assert rule(TEXT, max_iterations=2).route is Route.END


def test_stop_of_a_plugin_finishes_the_round_and_any_other_end_does_not():
    budget, enough = stopped("tokens"), Ending(reason=Reason.BEHAVIOR_REQUESTED)

    assert (rule(TOOLS, kept=budget).route, rule(TOOLS, kept=budget).ending) == (Route.TOOLS, budget)
    assert (rule(TOOLS, kept=enough).route, rule(TOOLS, kept=enough).closes) == (Route.END, "not_run")
    assert rule(TOOLS, USER, kept=budget).ending == budget


def test_a_limit_of_the_agent_ends_the_run_also_where_the_consumer_pushes_the_reply():
    held = Held(
        reply=TOOLS, mutated=True, given=normal(LINK), steered=True, kept=None, iteration=1, max_iterations=None,
        cap_policy=CapPolicy.SKIP_TOOLS,
    )  # fmt: skip
    found = settled(held, lambda one: STRATEGIES["react"](View(rounds=25, reply=one, max_rounds=25)))

    assert (found.route, found.ending.code, found.closes) == (Route.END, "max_rounds", "not_run")


def test_a_direct_run_offers_no_tools_and_ends_with_its_reply():
    assert rule(TEXT, strategy="direct").route is Route.END
    assert rule(TEXT, USER, strategy="direct").route is Route.ASK
