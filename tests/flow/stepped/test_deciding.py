"""The verb `decide` about calls that wait for a decision, of any round, in any state of the run."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.approvals import Question, ResumeMode, Why
from chordage.orchestrator.core.errors import Conflict, InvalidDecision, InvalidMessage, StepRefused
from chordage.orchestrator.core.stepping import Control, Standing
from support.driving import Consumer, asks, consume, text
from support.family import Lines, ask, settle_in
from support.invariants import check_all
from support.planning import plan_of, planner
from support.questions import asks_once

SIZE = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
HOW_MANY = Question(why=Why.TOOL, prompt="How many?", schema=SIZE, resume_mode=ResumeMode.USE_AS_RESULT)


def waiting(world, question: Question | None = None) -> Consumer:
    """Its only call waits for a decision, and so does the run."""
    world.tools.asks = asks_once(0, **({"question": question} if question else {}))
    it = consume(world, asks("a"), text("done"))
    it.next()
    it.next()
    assert it.look().standing is Standing.WAITING
    return it


@pytest.mark.parametrize(("allow", "result"), [(True, "pure0"), (False, "no way")])
def test_a_run_that_waits_is_moved_on_by_its_consumer(world, allow, result):
    it = waiting(world)
    it.do("decide", ask_id="a", allow=allow, reason="no way")

    (told,) = [said for said in it.asked[-1] if said.startswith("a=")]
    assert (result in told, it.look().standing, world.inbox()) == (True, Standing.HELD, [])
    assert world.row("decisions")["source"] == "consumer"
    it.do("run")
    check_all(world.store)


def test_question_accepts_the_answer_it_describes(world):
    it = waiting(world, HOW_MANY)
    with pytest.raises(InvalidDecision, match="does not fit"):
        world.step(it.turn, "decide", ask_id="a", allow=True)
    it.do("decide", ask_id="a", allow=True, payload={"size": 3})

    assert it.asked[-1][-1] == 'a={"size": 3}'
    assert it.look().standing is Standing.HELD


def test_the_same_key_answers_once_and_another_answer_under_it_is_refused(world):
    it = waiting(world)
    first = world.step(it.turn, "decide", key="k", ask_id="a", allow=True)
    again = world.step(it.turn, "decide", key="k", ask_id="a", allow=True)
    with pytest.raises(StepRefused, match="another request"):
        world.step(it.turn, "decide", key="k", ask_id="a", allow=False)
    world.run_dry()

    assert (again.rev, again.duplicate, len(world.rows("decisions"))) == (first.rev, True, 1)
    assert it.runs == 2, "once to ask, once to run"


def test_second_decision_is_refused_and_changes_nothing(world):
    it = waiting(world)
    world.step(it.turn, "decide", ask_id="a", allow=True)
    with pytest.raises((Conflict, InvalidMessage)):
        world.step(it.turn, "decide", ask_id="a", allow=False)
    world.run_dry()

    assert it.asked[-1][-1] == "a=pure0"
    it.do("run")
    check_all(world.store)


def test_what_waits_of_an_earlier_round_is_decided_while_the_next_reply_is_held(world):
    world.tools.asks = asks_once(0)
    it = consume(world, asks("a", "b"), text("not yet"), text("done"))
    it.next()
    assert it.next().reply.text == "not yet"
    it.do("decide", ask_id="a", allow=True)

    assert (it.look().standing, it.look().reply.text) == (Standing.HELD, "not yet")
    it.next()
    assert it.asked[-1][2] == "a=pure0"
    it.do("run")
    check_all(world.store)


def test_a_record_that_waits_is_decided_behind_its_round(world):
    world.tools.asks = asks_once(0)
    world.models.script = planner(plan_of("pure"))
    it = Consumer(world, world.submit("find out", strategy="plan_execute", control=Control.STEP))
    world.run_dry()
    it.next()
    it.next()
    assert it.look().round.records[0]["status"] == "waiting"
    it.do("decide", ask_id="plan-1-0", allow=True)

    assert (it.look().standing, it.look().round.records[0]["status"]) == (Standing.HELD, "ok")
    it.do("run")
    check_all(world.store)


def test_decision_during_the_model_call_takes_effect_beside_the_reply(world):
    world.tools.asks = asks_once(0)
    it = consume(world, asks("a", "b"), text("not yet"), text("done"))
    it.next()
    left = ["now"]

    def before(_prompt):
        if left:
            left.pop()
            assert it.look().standing is Standing.REQUESTING
            world.step(it.turn, "decide", ask_id="a", allow=True)

    world.models.before_reply = before
    it.next()

    assert [call["status"] for call in world.rows("calls")] == ["succeeded", "succeeded"]
    assert it.look().standing is Standing.HELD
    it.do("run")
    check_all(world.store)


def test_a_sub_agent_is_denied_and_never_answered_for(world):
    settle_in(world, "ada", "bob")
    world.models.script = Lines({"ada": [[ask("bob")]]})
    it = Consumer(world, world.submit(control=Control.STEP))
    world.run_dry()
    it.next()
    world.step(it.turn, "next")
    (child,) = [turn["id"] for turn in world.rows("turns") if turn["agent"] == "bob"]
    with pytest.raises(InvalidDecision, match="answered by its sub-agent alone"):
        world.step(it.turn, "decide", ask_id="r0c0", allow=True)
    it.do("decide", ask_id="r0c0", allow=False)

    assert world.row("turns", id=child)["disposition"] == "cancelled"
    assert it.look().standing is Standing.HELD
    it.do("run")
    check_all(world.store)


def test_call_without_a_question_has_nothing_to_decide(world):
    it = waiting(world)
    with pytest.raises(InvalidMessage, match="'z' is no call of what is held; there are: a"):
        world.step(it.turn, "decide", ask_id="z", allow=True)
    queued = world.submit(control=Control.STEP, thread="t2")

    with pytest.raises(StepRefused, match="this one is queued"):
        world.step(queued, "decide", ask_id="a", allow=True)


def test_call_that_was_not_opened_needs_no_payload(world):
    it = consume(world, asks("a"))
    it.next()
    with pytest.raises(InvalidMessage, match="has not been opened"):
        world.step(it.turn, "decide", ask_id="a", allow=True, payload={"size": 1})


def test_a_result_is_no_answer_to_a_question(world):
    it = waiting(world)
    with pytest.raises(StepRefused, match="this one is waiting"):
        world.step(it.turn, "tool_results", results=[{"ask_id": "a", "content": "mine"}])
