"""Features that were not made for each other, on one thread: sub-agents, plans, stepped turns, messages in between."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.agent import PlanSpec, SubAgent, WhenBusy
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.model import UserSays
from chordage.orchestrator.core.stepping import Control, Standing, StepTerms
from chordage.orchestrator.core.subagents import CUT_OFF
from support.busy_thread import a_round_then_user_texts, in_the_first_call, in_the_model_call
from support.driving import consume, text
from support.fakes import rounds_of, spoken
from support.family import Lines, ask, change, settle_in
from support.invariants import check_all
from support.one_turn import change_agent
from support.questions import asks_once


def sent_when_bob_has_acted(world, **how):
    """bob has run an unsafe tool, and has not answered ada yet. The id of the message that comes then."""
    world.models.script = Lines({"ada": [[ask("bob")]], "bob": [[("unsafe", {"n": 0})]]})
    sent = []
    in_the_model_call(world, lambda: sent.append(world.submit("stop that", **how)), number=3)
    world.submit("first", group=Group.CHAT)
    world.run_dry()
    return sent[0]


def test_interrupted_sub_agent_is_not_reported_as_having_done_nothing(world):
    settle_in(world)
    sent_when_bob_has_acted(world, when_busy=WhenBusy.INTERRUPT, group=Group.CHAT)

    first = world.rows("turns")[0]
    (cut,) = world.rows("calls", tool="ask_bob", run_id=first["run_id"])
    assert (cut["status"], cut["content"]) == ("cancelled", CUT_OFF)
    assert world.row("runs", id=first["run_id"])["code"] == "interrupted"
    check_all(world.store)


def test_nor_that_one_did_nothing_which_has_answered_while_another_was_at_work(world):
    settle_in(world)
    change(world, "ada", agents=(SubAgent(agent="bob"), SubAgent(agent="cleo")))
    world.models.script = Lines({"ada": [[ask("bob"), ask("cleo")]], "bob": [[("unsafe", {"n": 0})]]})
    world.submit("first", group=Group.CHAT)
    while not any(turn["agent"] == "bob" and turn["status"] == "done" for turn in world.rows("turns")):
        is_cleos = [intent for intent in world.pending if cleo_is_meant(world, intent)]
        intent = next(intent for intent in world.pending if intent not in is_cleos)
        world.pending.remove(intent)
        world.deliver(intent)
    world.submit("stop that", when_busy=WhenBusy.INTERRUPT, group=Group.CHAT)

    first = world.rows("turns")[0]
    assert [call["content"] for call in world.rows("calls", run_id=first["run_id"])] == [CUT_OFF, CUT_OFF]


def cleo_is_meant(world, intent) -> bool:
    hint = getattr(intent, "hint", None)
    return hint is not None and world.row("turns", id=hint.turn_id)["agent"] == "cleo"


def test_chore_by_default_ends_no_tree(world):
    settle_in(world, when_busy=WhenBusy.INTERRUPT)
    sent_when_bob_has_acted(world, group=Group.CHORE)

    assert world.rows("turns")[0]["disposition"] == "answered"
    check_all(world.store)


def test_chore_by_default_ends_no_chat_that_waits_for_a_person(world):
    change_agent(world, when_busy=WhenBusy.INTERRUPT)
    world.tools.asks = asks_once(0)
    world.models.script = rounds_of(1)
    world.submit(group=Group.CHAT)
    world.run_dry()
    world.submit("chore", group=Group.CHORE)
    world.run_dry()
    assert world.rows("runs")[0]["status"] == "waiting"


def test_chore_by_default_ends_no_chat_that_is_with_its_consumer(world):
    change_agent(world, when_busy=WhenBusy.INTERRUPT)
    driven = consume(world, text("R"))
    driven.next()
    world.submit("chore", group=Group.CHORE)
    world.run_dry()
    assert driven.look().standing is Standing.HELD


@pytest.mark.parametrize(
    ("habit", "sent"),
    [
        (WhenBusy.ENQUEUE, {"when_busy": WhenBusy.STEER, "control": Control.STEP, "step": StepTerms()}),
        (WhenBusy.STEER, {"control": Control.STEP, "step": StepTerms()}),
        (WhenBusy.STEER, {"group": Group.CHORE}),
    ],
    ids=["driven", "driven, by habit", "of another group"],
)
def test_run_absorbs_no_message_with_another_reply_target(world, habit, sent):
    change_agent(world, when_busy=habit)
    world.models.script = a_round_then_user_texts
    came = []
    in_the_first_call(world, lambda: came.append(world.submit("mine", **sent)))
    world.submit("first", group=Group.CHAT)
    world.run_dry()
    assert world.row("turns", id=came[0])["disposition"] != "steered"


def test_a_sub_agent_may_carry_out_a_whole_round_of_a_plan(world):
    settle_in(world)
    change(world, "ada", strategy="plan_execute", plan=PlanSpec(executor="ask_bob", max_rounds=1))
    command = '{"execution_commands": [{"purpose": "p", "tool_name": "pure", "tool_kwargs": {}}]}'

    def script(prompt):
        if prompt.system == "bob":
            return spoken('["done by bob"]')
        first = prompt.said[0]
        return spoken(command if isinstance(first, UserSays) and first.text.startswith('{"input"') else "answer")

    world.models.script = script
    world.submit("go", strategy="plan_execute")
    world.run_dry()

    (end,) = [row["body"] for row in world.rows("journal", kind="RunFinished") if "extra" in row["body"]]
    assert [(log["status"], log["result"]) for log in end["extra"]["tool_logs"]] == [("ok", "done by bob")]


def test_what_is_steered_in_behind_the_plans_is_planned_for_as_well(world):
    change_agent(world, strategy="plan_execute", plan=PlanSpec())
    came = []

    def script(prompt):
        first = prompt.said[0]
        is_planner = isinstance(first, UserSays) and first.text.startswith('{"input"')
        if not is_planner and not came:
            came.append(world.submit("and now this", when_busy=WhenBusy.STEER, strategy="plan_execute"))
        return spoken('{"next_action": "response"}' if is_planner else "answer")

    world.models.script = script
    world.submit("find out", strategy="plan_execute")
    world.run_dry()

    kinds = [row["kind"] for row in world.rows("journal")]
    said, planned = ([n for n, kind in enumerate(kinds) if kind == one] for one in ("UserMessage", "PlanCommitted"))
    assert world.row("turns", id=came[0])["disposition"] == "steered"
    assert planned[-1] > said[-1]
