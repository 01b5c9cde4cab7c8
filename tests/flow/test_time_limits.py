"""A time limit of a run: what is under way is given up, the turn fails with `timeout`, and what was found stays."""

from __future__ import annotations

import pytest

from chordage.orchestrator import views
from chordage.orchestrator.core.agent import Limits, PlanSpec
from chordage.orchestrator.core.intents import CallModel
from chordage.orchestrator.core.limits import TurnLimits
from chordage.orchestrator.core.model import AssistantSays, ToolSays
from chordage.orchestrator.core.stepping import Control
from support.fakes import asking, rounds_of, spoken
from support.family import Lines, ask, by_agent, change, settle_in
from support.invariants import check_all
from support.one_turn import change_agent
from support.questions import ASK, approve, asks_once
from support.world import Died, Header, World

LIMIT = "the limit of 10 s for a turn was reached"


def slow_model(world: World, seconds: float) -> None:
    world.models.before_reply = lambda _: world.clock.pass_by(seconds)


def slow_tool(world: World, seconds: float, number: int = 0) -> None:
    world.tools.before = lambda order: world.clock.pass_by(seconds if order.arguments.get("n") == number else 0)


def play(world: World, **submitted) -> views.TurnView:
    turn = world.submit(**submitted)
    world.run_dry()
    return views.turn(world.store, turn)


def ended(turn: views.TurnView) -> tuple[object, ...]:
    return (turn.disposition, turn.reason, turn.code, turn.detail)


TIMED_OUT = ("failed", "error", "timeout", LIMIT)
WAYS = {
    "by its agent": ({"limits": Limits(timeout=10)}, {}),
    "by its turn": ({}, {"limits": TurnLimits(timeout=10)}),
    "direct": ({"limits": Limits(timeout=10)}, {"strategy": "direct"}),
}


@pytest.mark.parametrize(("of_agent", "of_turn"), WAYS.values(), ids=list(WAYS))
def test_interrupted_model_call_keeps_its_partial_text(world, of_agent, of_turn):
    change_agent(world, **of_agent)
    world.models.script = lambda _: spoken("the whole answer")
    world.models.thinks = lambda on_reasoning: on_reasoning("so")
    world.models.streams = lambda on_delta, _: [on_delta(word) for word in ("the ", "whole ")]
    slow_model(world, 10)
    turn = play(world, **of_turn, reply_target={"channel": "me"})

    assert (*ended(turn), turn.answer) == (*TIMED_OUT, "the whole ")
    assert world.row("outbox")["body"]["code"] == "timeout"
    assert world.row("outbox")["body"]["text"] == "the whole "
    replies = [row["body"] for row in world.rows("journal") if row["kind"] == "AssistantTurnCommitted"]
    assert [(body["text"], body["reasoning"]) for body in replies] == [("the whole ", "so")]
    check_all(world.store)


def test_interrupted_model_call_without_text_leaves_no_empty_reply(world):
    change_agent(world, limits=Limits(timeout=10))
    slow_model(world, 11)
    turn = play(world)

    assert (*ended(turn), turn.answer) == (*TIMED_OUT, None)
    assert [row["kind"] for row in world.rows("journal")] == ["UserMessage", "RunInterrupted", "RunFinished"]


def test_partial_text_of_a_failed_attempt_is_not_kept(world):
    def streams(on_delta, on_reset):
        on_delta("first try")
        on_reset()
        on_delta("second")

    change_agent(world, limits=Limits(timeout=10))
    world.models.streams = streams
    slow_model(world, 11)
    assert play(world).answer == "second"


def test_next_turn_learns_that_the_one_before_was_interrupted(world):
    change_agent(world, limits=Limits(timeout=10))
    world.models.script = lambda _: spoken("done")
    world.models.streams = lambda on_delta, _: on_delta("half")
    slow_model(world, 11)
    play(world)
    world.models.before_reply = lambda _: None
    play(world)

    said = world.models.prompts[-1].said
    assert isinstance(said[1], AssistantSays)
    assert said[1].text == "half"
    assert "timeout" in said[2].text


def test_a_reply_that_came_too_late_is_kept_and_the_turn_has_failed(world):
    """No abort was noticed: the model was done before the abort was checked."""
    change_agent(world, limits=Limits(timeout=10))

    def late(_):
        world.clock.pass_by(11)
        return spoken("late")

    world.models.script = late
    turn = play(world)
    assert (*ended(turn), turn.answer) == (*TIMED_OUT, "late")


@pytest.mark.parametrize("tool", ["pure", "idempotent", "reconcilable", "unsafe"])
def test_a_tool_is_broken_off_and_the_results_of_the_others_are_kept(world, tool):
    change_agent(world, limits=Limits(timeout=10))
    world.models.script = rounds_of(2, tool=tool)
    slow_tool(world, 11, number=1)
    turn = play(world)

    first, second = world.rows("calls")
    assert (first["status"], first["content"]) == ("succeeded", f"{tool}0")
    assert (second["status"], second["code"]) == ("failed", "timeout")
    assert "not known" in second["content"]
    assert ended(turn) == TIMED_OUT
    assert world.tools.finished.total() == 1, "the one that was broken off did not come to its end"
    assert len(world.models.prompts) == 1
    assert world.rows("suspensions") == [], "a run that has failed has no open question"
    check_all(world.store)


def test_what_was_found_is_history_for_the_next_turn(world):
    change_agent(world, limits=Limits(timeout=10))
    slow_tool(world, 11, number=1)
    play(world)
    world.tools.before = lambda _: None
    play(world)
    results = [said.content for said in world.models.prompts[1].said if isinstance(said, ToolSays)]
    assert results[0] == "pure0"


def test_a_call_that_comes_up_too_late_is_not_started(world):
    change_agent(world, limits=Limits(timeout=10))
    slow_tool(world, 11, number=0)
    play(world)

    assert world.tools.ran.total() == 1
    assert "not started" in world.rows("calls")[1]["content"]


def test_interrupted_planner_reports_what_was_done_before(world):
    change_agent(world, limits=Limits(timeout=10), plan=PlanSpec())
    plan = '{"next_action": "execute", "execution_commands": [{"tool_name": "pure", "tool_kwargs": {"n": 3}}]}'
    world.models.script = lambda _: spoken(plan)
    slow_model(world, 6)
    turn = play(world, strategy="plan_execute")

    assert (*ended(turn), turn.answer) == (*TIMED_OUT, None)
    (record,) = views.run(world.store, turn.run_id).extra["tool_logs"]
    assert (record["result"], record["success"]) == ("pure3", True)
    check_all(world.store)


def test_the_planning_time_of_a_plan_still_only_ends_the_planning(world):
    change_agent(world, plan=PlanSpec(timeout=5))
    plan = '{"next_action": "execute", "execution_commands": [{"tool_name": "pure", "tool_kwargs": {"n": 3}}]}'
    world.models.script = lambda prompt: spoken("answer" if "ACTION RESULTS" in str(prompt.said[-1]) else plan)
    slow_model(world, 6)
    assert play(world, strategy="plan_execute").disposition == "answered"


def test_a_stepped_turn_that_is_out_of_time_has_failed_like_any(world):
    change_agent(world, limits=Limits(timeout=10))
    world.models.script = lambda _: asking(("pure", {"n": 0}))
    turn = world.submit(control=Control.STEP)
    world.run_dry()
    world.step(turn, "next")
    world.run_dry()
    world.clock.pass_by(1000)  # it waits for its consumer: none of its time
    slow_tool(world, 11)
    world.step(turn, "next")
    world.run_dry()

    assert ended(views.turn(world.store, turn)) == TIMED_OUT
    check_all(world.store)


def test_a_stepped_request_that_is_out_of_time_has_failed_like_any(world):
    change_agent(world, limits=Limits(timeout=10))
    slow_model(world, 11)
    turn = world.submit(control=Control.STEP)
    world.run_dry()
    world.step(turn, "next")
    world.run_dry()
    assert ended(views.turn(world.store, turn)) == TIMED_OUT
    check_all(world.store)


def test_an_open_question_does_not_keep_a_run_that_is_out_of_time(world):
    change_agent(world, limits=Limits(timeout=10))
    world.tools.asks = asks_once(0)
    slow_tool(world, 11, number=1)
    turn = play(world)

    assert ended(turn) == TIMED_OUT
    assert world.inbox() == []
    check_all(world.store)


def test_a_run_that_waits_for_a_person_has_no_deadline(world):
    change_agent(world, limits=Limits(timeout=10))
    world.models.script = rounds_of(1)
    world.tools.asks = asks_once(0)
    turn = play(world)
    world.sweep(100_000)
    world.run_dry()
    approve(world, world.inbox()[0])
    assert views.turn(world.store, turn.turn_id).disposition == "answered"


# a worker that died delays no other


@pytest.mark.parametrize("where", ["model", "tool", "between"])
def test_the_sweep_ends_what_died_with_its_worker_on_time(world, where):
    change_agent(world, limits=Limits(timeout=10))

    def die(_):
        raise world.kill()

    if where == "model":
        world.models.before_reply = die
    if where == "tool":
        world.tools.before = die
    turn = world.submit()
    try:
        while not (where == "between" and isinstance(world.pending[0], Header | CallModel)):
            world.deliver(world.pending.pop(0))
    except (Died, IndexError):
        world.pending.clear()
    world.sweep(9)
    assert views.turn(world.store, turn).status == "active"
    world.pending.clear()
    world.sweep(4)

    assert ended(views.turn(world.store, turn)) == TIMED_OUT
    world.models.before_reply = world.tools.before = lambda _: None
    world.run_dry()
    check_all(world.store)


def test_the_sweep_leaves_a_run_alone_whose_holder_is_about_to_end_it(world):
    """It has what the model has said so far, and the sweep has not."""
    change_agent(world, limits=Limits(timeout=10))
    world.models.streams = lambda on_delta, _: on_delta("half")

    def sweep(_):
        world.clock.pass_by(10.5)
        assert world.sweep() == []

    world.models.before_reply = sweep
    assert play(world).answer == "half"


def test_a_broken_room_does_not_keep_the_sweep_from_turns_with_limits_of_their_own(world):
    turn = world.submit(limits=TurnLimits(timeout=10))
    world.deliver(world.pending.pop(0))
    world.pending.clear()
    world.agents.agents = {}
    world.sweep(20)
    assert ended(views.turn(world.store, turn)) == TIMED_OUT


# sub-agents


def test_child_has_no_more_time_than_its_parent_has_left(world):
    settle_in(world)
    change(world, "ada", limits=Limits(timeout=10))
    world.models.script = Lines({"ada": [[ask("bob")]]})
    world.models.before_reply = lambda prompt: world.clock.pass_by(6)
    world.submit()
    world.run_dry()

    runs = by_agent(world, "runs")
    assert (runs["bob"]["reason"], runs["bob"]["code"]) == ("error", "timeout")
    assert "ada" in runs["bob"]["detail"]
    assert (runs["ada"]["reason"], runs["ada"]["code"]) == ("error", "timeout")
    assert by_agent(world)["ada"]["disposition"] == "failed"
    check_all(world.store)


def test_the_sweep_ends_a_tree_whose_root_is_out_of_time_while_it_waits(world):
    settle_in(world)
    change(world, "ada", limits=Limits(timeout=10))
    world.models.script = Lines({"ada": [[ask("bob")]]})

    def die(prompt):
        if prompt.system == "bob":
            raise world.kill()

    world.models.before_reply = die
    world.submit()
    with pytest.raises(Died):
        world.run_dry()
    world.pending.clear()
    world.sweep(13)
    world.run_dry()

    assert {name: turn["disposition"] for name, turn in by_agent(world).items()} == {
        "ada": "failed", "bob": "cancelled",
    }  # fmt: skip
    check_all(world.store)


def test_a_child_that_waits_for_a_person_takes_none_of_the_time_of_its_parent(world):
    settle_in(world)
    change(world, "ada", limits=Limits(timeout=10))
    world.models.script = Lines({"ada": [[ask("bob")]], "bob": [[("pure", {"n": 0})]]})
    world.tools.asks = asks_once(0)
    turn = world.submit()
    world.run_dry()
    world.sweep(100_000)
    world.run_dry()
    approve(world, world.inbox()[0])
    assert world.row("turns", id=turn)["disposition"] == "answered"


# calls that a model asks for


@pytest.mark.parametrize("strategy", ["react", "plan_execute"])
def test_calls_beyond_the_limit_are_not_run_also_inside_one_reply(world, strategy):
    change_agent(world, limits=Limits(max_tool_calls=3))
    commands = ", ".join(f'{{"tool_name": "pure", "tool_kwargs": {{"n": {n}}}}}' for n in range(5))
    planned = f'{{"next_action": "execute", "execution_commands": [{commands}]}}'
    world.models.script = rounds_of(5) if strategy == "react" else lambda _: spoken(planned)
    turn = play(world, strategy=strategy)

    assert [(call["status"], call["code"]) for call in world.rows("calls")] == [
        *[("succeeded", None)] * 3, *[("cancelled", "not_run")] * 2,
    ]  # fmt: skip
    assert world.tools.ran.total() == 3
    assert (turn.disposition, turn.reason, turn.code) == ("answered", "stopped", "max_tool_calls")
    assert turn.detail == "5 tool calls were asked for; the limit is 3"
    check_all(world.store)


def test_calls_are_counted_over_all_rounds_and_the_last_may_be_used(world):
    change_agent(world, limits=Limits(max_tool_calls=4))
    world.models.script = rounds_of(2, rounds=2)
    assert play(world).disposition == "answered"
    world.models.script = rounds_of(2, rounds=3)
    turn = play(world)
    assert (turn.code, turn.detail) == ("max_tool_calls", "6 tool calls were asked for; the limit is 4")
    assert world.tools.ran.total() == 4 + 4


def test_calls_that_are_refused_count_as_well(world):
    change_agent(world, limits=Limits(max_tool_calls=2))
    world.models.script = rounds_of(1, rounds=5, tool="nobody")
    turn = play(world)
    assert (turn.code, len(world.models.prompts)) == ("max_tool_calls", 3)


def test_a_stepped_turn_has_the_same_limit_of_calls(world):
    change_agent(world, limits=Limits(max_tool_calls=1))
    world.models.script = rounds_of(2)
    turn = world.submit(control=Control.STEP)
    world.run_dry()
    for _ in range(3):
        if views.turn(world.store, turn).status != "done":
            world.step(turn, "next")
            world.run_dry()

    assert views.turn(world.store, turn).code == "max_tool_calls"
    assert world.tools.ran.total() == 1
    check_all(world.store)


def test_question_that_comes_too_late_is_not_asked(world):
    change_agent(world, limits=Limits(timeout=10))
    world.models.script = rounds_of(1)

    def late(order):
        world.clock.pass_by(11)
        return ASK

    world.tools.before = lambda _: None
    world.tools.asks = late
    turn = play(world)
    assert ended(turn) == TIMED_OUT
    assert world.inbox() == []
    check_all(world.store)


def test_next_turn_learns_that_a_round_was_interrupted(world):
    change_agent(world, limits=Limits(timeout=10))
    slow_tool(world, 11)
    play(world)
    world.tools.before = lambda _: None
    world.models.script = lambda _: spoken("ok")
    play(world)
    assert "ended before it was done (timeout" in str(world.models.prompts[-1].said)
