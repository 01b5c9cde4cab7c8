"""Structured output: an answer that fits is kept, one that does not is put right once, and then it is an error."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chordage.orchestrator import views
from chordage.orchestrator.core.agent import Limits
from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.core.model import StopReason, ToolSays, UserSays
from chordage.orchestrator.core.output import demand as words
from chordage.orchestrator.core.reasons import stopped
from chordage.orchestrator.core.transcript import NOT_RUN, REFUSED
from chordage.orchestrator.core.verdicts import Terminate
from chordage.orchestrator.gateways.output_forms import SchemaForm
from support.fakes import asking, spoken
from support.hooks import after_model, install
from support.invariants import check_all
from support.one_turn import change_agent, kinds
from support.outputs import BAD, GOOD, PROSE, SCHEMA, WRONG, Saying, demand, last_end, refusals, saying

ANSWER = ["AssistantTurnCommitted", "OutputRefused", "AssistantTurnCommitted", "RunFinished"]


def play(world, *replies, form=None, **submitted) -> views.TurnView:
    demand(world, form)
    world.models.script = saying(*replies)
    turn = world.submit(**submitted)
    world.run_dry()
    return views.turn(world.store, turn)


@pytest.mark.parametrize("strategy", ["react", "direct"])
def test_an_answer_that_fits_is_kept_with_the_end_of_its_run(world, strategy):
    turn = play(world, GOOD, strategy=strategy, reply_target={"channel": "me"})

    assert (turn.disposition, turn.reason, turn.answer, turn.output) == ("answered", "natural_end", GOOD, {"n": 7})
    assert last_end(world)["output"] == {"n": 7}
    assert world.row("outbox")["body"]["output"] == {"n": 7}
    assert refusals(world) == []
    check_all(world.store)


@pytest.mark.parametrize("strategy", ["react", "direct"])
@pytest.mark.parametrize("first", [BAD, PROSE, ""])
def test_one_that_does_not_is_put_right_in_one_more_attempt(world, strategy, first):
    turn = play(world, first, GOOD, strategy=strategy)

    assert (turn.disposition, turn.answer, turn.output, turn.rounds) == ("answered", GOOD, {"n": 7}, 0)
    assert kinds(world) == ["UserMessage", *ANSWER]
    assert len(refusals(world)) == 1
    check_all(world.store)


def test_model_gets_the_problem_after_its_own_reply(world):
    play(world, BAD, GOOD)

    asked, again = world.models.prompts
    assert asked.system == again.system == words(SCHEMA)
    assert asked.output == SCHEMA
    *before, reply, note = again.said
    assert tuple(before) == asked.said
    assert reply.text == BAD
    assert isinstance(note, UserSays)
    assert note.text.startswith(f"{REFUSED}:\n{WRONG}\n")


@pytest.mark.parametrize("strategy", ["react", "direct"])
def test_a_second_answer_that_does_not_fit_ends_the_run_with_what_is_wrong_and_where(world, strategy):
    turn = play(world, PROSE, BAD, strategy=strategy, reply_target={"channel": "me"})

    assert (turn.disposition, turn.reason, turn.code) == ("failed", "error", "output_invalid")
    assert turn.detail == f"the answer is not the demanded output, also after one repair: {WRONG}"
    assert (turn.answer, turn.output) == (BAD, None)
    assert "output" not in last_end(world)
    assert world.row("outbox")["body"]["code"] == "output_invalid"
    assert len(world.models.prompts) == 2
    check_all(world.store)


def test_each_turn_of_a_thread_has_its_own_repair_and_the_history_shows_all(world):
    play(world, BAD, GOOD)
    turn = play(world, PROSE, '{"n": 8}')

    assert turn.output == {"n": 8}
    assert [said.text for said in world.models.prompts[-1].said if not said.text.startswith(REFUSED)] == [
        "hi", BAD, GOOD, "hi", PROSE,
    ]  # fmt: skip
    check_all(world.store)


def test_without_a_demand_nothing_is_looked_at(world):
    world.models.script = saying(GOOD)
    turn = world.submit()
    world.run_dry()

    assert views.turn(world.store, turn).output is None
    assert "output" not in last_end(world)
    assert world.models.prompts[0].output is None
    assert world.models.prompts[0].system == ""


@pytest.mark.parametrize("value", ["null", "false", "0", '"text"', "[]"])
def test_any_json_value_may_be_an_output(world, value):
    play(world, value, form=SchemaForm({}))
    assert last_end(world)["output"] in (None, False, 0, "text", [])
    assert "output" in last_end(world)
    assert world.models.prompts[0].system == words({})


def test_what_no_database_can_store_is_replaced_before_it_is_judged(world):
    seen = []
    form = Saying(lambda value: seen.append(value) or [])
    turn = play(world, '{"a\\u0000": "b\\ud800"}', form=form)

    assert turn.output == {"a\ufffd": "b?"}
    assert seen == [turn.output]


def test_tools_run_before_and_only_the_answer_behind_them_has_to_fit(world):
    ask = replace(asking(("pure", {"n": 1})), text="Let me look.")
    turn = play(world, ask, BAD, ask, GOOD)

    assert (turn.output, turn.rounds) == ({"n": 7}, 2)
    assert world.tools.ran.total() == 2
    assert len(refusals(world)) == 1
    check_all(world.store)


def test_round_between_two_refusals_allows_no_second_repair(world):
    turn = play(world, BAD, asking(("pure", {"n": 1})), BAD, GOOD)

    assert (turn.code, len(refusals(world)), len(world.models.prompts)) == ("output_invalid", 1, 3)
    check_all(world.store)


def test_a_repair_is_no_round_but_a_round_behind_it_counts(world):
    change_agent(world, limits=Limits(max_rounds=1))
    ask = asking(("pure", {"n": 1}))
    assert play(world, ask, BAD, GOOD).output == {"n": 7}
    assert play(world, ask, BAD, ask).code == "max_rounds"
    check_all(world.store)


def test_no_repair_is_requested_when_the_time_of_the_turn_is_up(world):
    change_agent(world, limits=Limits(timeout=10))
    world.models.before_reply = lambda prompt: world.clock.pass_by(11)
    turn = play(world, BAD, GOOD)

    assert (turn.reason, turn.code, turn.answer, turn.output) == ("error", "timeout", None, None)
    assert refusals(world) == []


@pytest.mark.parametrize("strategy", ["react", "direct"])
@pytest.mark.parametrize("stop", [StopReason.MAX_TOKENS, StopReason.REFUSAL, StopReason.UNKNOWN])
def test_replies_that_were_cut_or_declined_keep_their_reason(world, strategy, stop):
    turn = play(world, replace(spoken(PROSE), stop=stop), strategy=strategy)

    assert turn.reason == "stopped"
    assert turn.code in {"max_tokens", "refusal", "unknown_stop"}
    assert refusals(world) == []


def test_calls_of_an_answer_without_tools_are_closed_and_answered_before_the_repair(world):
    asks = replace(asking(("pure", {"n": 1})), text=PROSE)
    turn = play(world, asks, GOOD, strategy="direct")

    assert turn.output == {"n": 7}
    assert world.row("calls")["code"] == "not_run"
    assert [said.content for said in world.models.prompts[1].said if isinstance(said, ToolSays)] == [NOT_RUN]
    check_all(world.store)


def test_run_stopped_by_a_plugin_is_not_repaired(world):
    install(world, after_model(Terminate(stopped("budget", "spent"))))
    turn = play(world, BAD)

    assert (turn.reason, turn.code, turn.output) == ("stopped", "budget", None)
    assert refusals(world) == []


def test_an_answer_that_fits_is_not_lost_when_a_plugin_stops_the_run(world):
    install(world, after_model(Terminate(stopped("budget", "spent"))))
    turn = play(world, GOOD)
    assert (turn.code, turn.output) == ("budget", {"n": 7})


def test_a_form_that_raises_ends_the_run_and_is_named(world):
    def broken(value):
        raise KeyError("price")

    turn = play(world, GOOD, form=Saying(broken))

    assert (turn.disposition, turn.code) == ("failed", "output_check")
    assert turn.detail.startswith("the form raised KeyError: 'price' when the answer was checked")
    assert turn.answer == GOOD
    check_all(world.store)


def test_a_form_that_cannot_be_loaded_is_tried_again_and_then_named(world):
    def broken(agent):
        raise RoomError("agent.toml:2: output: there is no module shop")

    object.__setattr__(world.runtime, "outputs", broken)
    turn = world.submit()
    for _ in range(8):
        try:
            world.run_dry()
        except RoomError:
            world.forget_the_dead()
        world.sweep(seconds=400)

    found = views.turn(world.store, turn)
    assert (found.disposition, found.code) == ("failed", "agent")
    assert "there is no module shop" in found.detail


def test_the_steps_of_a_run_show_what_was_refused(world):
    turn = play(world, BAD, GOOD)
    first, second = views.run(world.store, turn.run_id).steps
    assert (first.text, first.refused) == (BAD, WRONG)
    assert (second.text, second.refused) == (GOOD, None)
