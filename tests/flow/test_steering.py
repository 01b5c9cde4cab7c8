"""A message that is steered into a run: where the model reads it, and what becomes of it if the run cannot take it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.agent import AgentSpec, Limits, MixedRound, WhenBusy, WhileWaiting
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Dispatch
from chordage.orchestrator.core.model import Prompt, StopReason, UserSays
from chordage.orchestrator.plugins.base import Plugin
from chordage.orchestrator.store import runs
from support.busy_thread import (
    a_round_then_user_texts,
    answer_with_user_texts,
    in_the_first_call,
    in_the_model_call,
    shapes,
    steer,
    user_texts,
)
from support.fakes import rounds_of, spoken
from support.hooks import install
from support.invariants import check_all
from support.one_turn import change_agent
from support.questions import approve, asks_once
from support.world import World


def dispositions(world: World) -> list[str]:
    return [turn["disposition"] for turn in world.rows("turns")]


def test_on_a_free_thread_it_is_a_turn_like_any_other(world: World) -> None:
    world.models.script = answer_with_user_texts
    turn = steer(world, "hi")
    world.run_dry()

    assert world.row("turns", id=turn)["disposition"] == "answered"
    assert world.row("runs")["turn_id"] == turn


def test_message_during_a_round_comes_after_the_results(world: World) -> None:
    world.models.script = a_round_then_user_texts
    in_the_first_call(world, lambda: steer(world, "mind this"))
    first = world.submit("do it")
    world.run_dry()

    assert dispositions(world) == ["answered", "steered"]
    run = world.row("runs")
    assert run["steers"] == 0, "no message waits any more"
    assert {turn["run_id"] for turn in world.rows("turns")} == {run["id"]}
    assert shapes(world.models.prompts[-1]) == ["UserSays", "AssistantSays", "ToolSays", "ToolSays", "UserSays"]
    assert views.turn(world.store, first).answer == "do it | mind this"
    assert len(world.models.prompts) == 2
    check_all(world.store)


def test_behind_the_last_reply_it_keeps_the_run_from_ending(world: World) -> None:
    world.models.script = answer_with_user_texts
    in_the_model_call(world, lambda: steer(world, "and this"))
    world.submit("do it")
    world.run_dry()

    assert dispositions(world) == ["answered", "steered"]
    assert shapes(world.models.prompts[-1]) == ["UserSays", "AssistantSays", "UserSays"]
    assert world.row("runs")["rounds"] == 1
    check_all(world.store)


def test_message_while_the_model_calls_tools_waits_for_their_results(world: World) -> None:
    world.models.script = a_round_then_user_texts
    in_the_model_call(world, lambda: steer(world, "and this"))
    world.submit("do it")
    world.run_dry()

    assert shapes(world.models.prompts[-1]) == ["UserSays", "AssistantSays", "ToolSays", "ToolSays", "UserSays"]
    assert dispositions(world) == ["answered", "steered"]
    check_all(world.store)


def test_behind_a_last_reply_with_half_a_call_it_has_a_step_of_its_own(world: World) -> None:
    """The reply ends the run although it names a call: that is closed as not run, at the step behind the reply."""
    half = replace(rounds_of(1)(Prompt(system="", said=(UserSays(text="x"),), offers=())), stop=StopReason.END)
    world.models.script = lambda prompt: half if len(world.models.prompts) == 1 else answer_with_user_texts(prompt)
    in_the_model_call(world, lambda: steer(world, "and this"))
    world.submit("do it")
    world.run_dry()

    assert dispositions(world) == ["answered", "steered"]
    assert [(step.number, step.kind.value) for step in views.run(world.store, world.row("runs")["id"]).steps] == [
        (1, "inference"), (2, "tool_round"), (3, "steered"), (4, "inference"),
    ]  # fmt: skip
    check_all(world.store)


def test_several_messages_are_absorbed_in_order_of_arrival(world: World) -> None:
    world.models.script = a_round_then_user_texts
    in_the_first_call(world, lambda: [steer(world, text) for text in ("one", "two", "three")])
    world.submit("do it")
    world.run_dry()

    assert user_texts(world.models.prompts[-1]) == ["do it", "one", "two", "three"]
    assert len(world.models.prompts) == 2
    check_all(world.store)


def test_message_during_each_reply_is_absorbed_each_time(world: World) -> None:
    world.models.script = answer_with_user_texts

    def write_twice(prompt) -> None:
        if len(world.models.prompts) < 3:
            steer(world, f"number {len(world.models.prompts)}")

    world.models.before_reply = write_twice
    world.submit("do it")
    world.run_dry()

    assert user_texts(world.models.prompts[-1]) == ["do it", "number 1", "number 2"]
    assert len(world.rows("runs")) == 1
    check_all(world.store)


def test_it_overtakes_what_is_queued_behind_the_run(world: World) -> None:
    world.models.script = a_round_then_user_texts
    in_the_first_call(world, lambda: [world.submit("later"), steer(world, "mind this")])
    world.submit("do it")
    world.run_dry()

    assert user_texts(world.models.prompts[-1]) == ["do it", "mind this", "later"]
    assert dispositions(world) == ["answered", "answered", "steered"]
    check_all(world.store)


def test_message_queued_behind_another_turn_is_absorbed_as_soon_as_that_starts(world: World) -> None:
    world.models.script = answer_with_user_texts
    world.submit("do it")
    steer(world, "and this")
    world.run_dry()

    assert user_texts(world.models.prompts[0]) == ["do it", "and this"]
    assert dispositions(world) == ["answered", "steered"]
    assert len(world.models.prompts) == 1
    check_all(world.store)


class Starts(Plugin):
    id = "starts"

    def __init__(self):
        self.seen = []

    def run_start(self, context):
        self.seen.append(context.step)
        return []


def test_start_hook_runs_for_a_run_that_absorbs_messages_at_once(world: World) -> None:
    starts = Starts()
    install(world, starts)
    world.models.script = a_round_then_user_texts
    world.submit("do it")
    steer(world, "and this")
    world.run_dry()

    assert starts.seen == [2]


@pytest.mark.parametrize("other", [{"agent": "bob"}, {"strategy": "direct"}], ids=["agent", "strategy"])
def test_run_absorbs_only_messages_it_can_answer_as_requested(world: World, other: dict) -> None:
    world.agents.agents["bob"] = AgentSpec(name="bob", model="fake")
    world.models.script = a_round_then_user_texts
    in_the_first_call(world, lambda: [steer(world, "not for you", **other), steer(world, "for you")])
    world.submit("do it")
    world.run_dry()

    assert dispositions(world) == ["answered", "answered", "steered"]
    assert [row["body"]["text"] for row in world.rows("journal", kind="UserMessage")] == [
        "do it", "for you", "not for you",
    ]  # fmt: skip
    check_all(world.store)


def test_run_absorbs_no_message_that_came_before_its_own(world: World) -> None:
    """An interrupting message goes before it in the line of its thread."""

    def meanwhile(_prompt: Prompt) -> None:
        match len(world.models.prompts):
            case 1:
                steer(world, "mind this")
                world.submit("stop", when_busy=WhenBusy.INTERRUPT)
            case 2:
                steer(world, "and that")

    world.models.script, world.models.before_reply = answer_with_user_texts, meanwhile
    world.submit("do it")
    world.run_dry()

    assert {turn["text"]: turn["disposition"] for turn in world.rows("turns")} == {
        "do it": "cancelled", "mind this": "answered", "stop": "answered", "and that": "steered",
    }  # fmt: skip
    check_all(world.store)


def test_a_message_for_later_queues(world: World) -> None:
    world.models.script = a_round_then_user_texts
    later = world.clock.now + timedelta(hours=1)
    in_the_first_call(world, lambda: steer(world, "tomorrow", not_before=later))
    world.submit("do it")
    world.run_dry()

    assert dispositions(world) == ["answered", None]
    world.sweep(3601)
    world.run_dry()
    assert dispositions(world) == ["answered", "answered"]


@pytest.mark.parametrize("end", ["max_rounds", "timeout", "max_tokens", "error"])
def test_run_that_has_to_stop_absorbs_none_and_the_message_is_next(world: World, end: str) -> None:
    def reply(prompt):
        if len(world.models.prompts) > 1:
            return answer_with_user_texts(prompt)
        steer(world, "and this")
        if end == "timeout":
            world.clock.pass_by(100)
        stop = StopReason.MAX_TOKENS if end == "max_tokens" else StopReason.END
        return replace(spoken("no more"), stop=stop)

    limits = {"max_rounds": Limits(max_rounds=0), "timeout": Limits(timeout=50)}.get(end, Limits())
    change_agent(world, limits=limits)
    if end == "error":
        install(world, BreaksOnce())
    world.models.script = reply
    world.submit("do it")
    world.run_dry()

    first, second = world.rows("turns")
    assert second["disposition"] == "answered"
    assert second["run_id"] not in {None, first["run_id"]}
    check_all(world.store)


class BreaksOnce(Plugin):
    id = "breaks-once"
    broken = False

    def after_inference(self, context):
        if self.broken:
            return []
        self.broken = True
        raise RuntimeError("a plugin that breaks")


def test_waiting_run_absorbs_it_once_it_resumes(world: World) -> None:
    world.models.script = a_round_then_user_texts
    world.tools.asks = asks_once(0, 1)
    world.submit("do it")
    world.run_dry()
    turn = steer(world, "and this", while_waiting=WhileWaiting.HOLD)
    world.run_dry()
    assert world.row("turns", id=turn)["status"] == "queued"

    for row in world.inbox():
        approve(world, row)

    assert dispositions(world) == ["answered", "steered"]
    assert user_texts(world.models.prompts[-1])[-1] == "and this"
    check_all(world.store)


def test_a_run_that_waits_is_superseded_where_that_is_the_rule(world: World) -> None:
    world.models.script = a_round_then_user_texts
    world.tools.asks = asks_once(0, 1)
    world.submit("do it")
    world.run_dry()
    steer(world, "never mind")
    world.run_dry()

    assert dispositions(world) == ["superseded", "answered"]
    check_all(world.store)


def test_it_goes_past_no_question_that_comes_after_it(world: World) -> None:
    """All calls of the round wait: so does the run, and the message with it."""
    world.models.script = a_round_then_user_texts
    world.tools.asks = asks_once(0, 1)
    in_the_first_call(world, lambda: steer(world, "and this"))
    world.submit("do it")
    world.run_dry()
    assert world.row("runs")["status"] == "waiting"
    assert len(world.models.prompts) == 1

    for row in world.inbox():
        approve(world, row)
    assert dispositions(world) == ["answered", "steered"]
    check_all(world.store)


@pytest.mark.parametrize("mixed", list(MixedRound))
def test_with_a_waiting_call_the_run_continues_with_it_before_it_suspends(world: World, mixed: MixedRound) -> None:
    change_agent(world, mixed_round=mixed)
    world.models.script = a_round_then_user_texts
    world.tools.asks = asks_once(1)
    in_the_model_call(world, lambda: steer(world, "and this"), number=2)
    world.submit("do it")
    world.run_dry()
    if mixed is MixedRound.CONTINUE:
        assert user_texts(world.models.prompts[-1]) == ["do it", "and this"]
        assert len(world.models.prompts) == 3
    assert world.row("runs")["status"] == "waiting"

    for row in world.inbox():
        approve(world, row)
    assert dispositions(world) == ["answered", "steered"]
    check_all(world.store)


def test_one_that_is_cancelled_in_time_leaves_no_trace_in_the_run(world: World) -> None:
    world.models.script = a_round_then_user_texts

    def write_and_take_back() -> None:
        stages.cancel_turn(world.runtime, steer(world, "mind this"))

    in_the_first_call(world, write_and_take_back)
    world.submit("do it")
    world.run_dry()

    assert dispositions(world) == ["answered", "cancelled"]
    assert world.row("runs")["steers"] == 0
    assert user_texts(world.models.prompts[-1]) == ["do it"]
    assert len(world.models.prompts) == 2
    check_all(world.store)


def test_cancelled_message_during_the_last_reply_lets_the_run_end(world: World) -> None:
    world.models.script = answer_with_user_texts
    in_the_model_call(world, lambda: stages.cancel_turn(world.runtime, steer(world, "mind this")))
    world.submit("do it")
    world.run_dry()

    assert dispositions(world) == ["answered", "cancelled"]
    assert len(world.models.prompts) == 1
    check_all(world.store)


def test_expired_message_is_not_absorbed(world: World) -> None:
    world.models.script = a_round_then_user_texts

    def write_too_late() -> None:
        steer(world, "mind this", deadline=world.clock.now + timedelta(seconds=5))
        world.clock.pass_by(10)

    in_the_first_call(world, write_too_late)
    world.submit("do it")
    world.run_dry()
    world.sweep()
    world.run_dry()

    assert dispositions(world) == ["answered", "expired"]
    check_all(world.store)


def test_the_run_that_is_cancelled_leaves_it_in_the_queue(world: World) -> None:
    world.models.script = a_round_then_user_texts
    first = world.submit("do it")

    def write_and_cancel() -> None:
        steer(world, "mind this")
        world.pending += stages.cancel_turn(world.runtime, first)[1]

    in_the_first_call(world, write_and_cancel)
    world.run_dry()

    assert dispositions(world) == ["cancelled", "answered"]
    check_all(world.store)


def test_agent_may_set_that_messages_steer(world: World) -> None:
    change_agent(world, when_busy=WhenBusy.STEER)
    world.models.script = a_round_then_user_texts
    in_the_first_call(world, lambda: [world.submit("by habit"), world.submit("not so", when_busy=WhenBusy.ENQUEUE)])
    world.submit("do it")
    world.run_dry()

    assert dispositions(world) == ["answered", "steered", "answered"]


def test_reply_target_learns_which_run_absorbed_it(world: World) -> None:
    world.models.script = a_round_then_user_texts
    in_the_first_call(world, lambda: steer(world, "mind this", reply_target={"channel": "me"}))
    world.submit("do it")
    world.run_dry()

    (left,) = world.rows("outbox")
    assert left["body"] == {"reason": "steered", "code": None, "detail": world.row("runs")["id"], "text": None}
    assert left["turn_id"] in world.events.done


def test_it_is_shown_with_its_run_and_as_a_step_of_it(world: World) -> None:
    world.models.script = a_round_then_user_texts
    in_the_first_call(world, lambda: steer(world, "mind this"))
    world.submit("do it")
    world.run_dry()

    run = world.row("runs")
    (steered,) = [turn for turn in views.turns(world.store) if turn.disposition == "steered"]
    assert steered.run_id == run["id"]
    view = views.turn(world.store, steered.turn_id)
    assert (view.fate, view.answer) == (f"steered into run {run['id']}", "do it | mind this")
    steps = views.run(world.store, run["id"]).steps
    assert [(step.number, step.kind.value) for step in steps] == [
        (1, "inference"), (2, "tool_round"), (3, "steered"), (4, "inference"),
    ]  # fmt: skip
    assert [remark.text for remark in views.history(world.store, "t1")][-2:] == ["mind this", "do it | mind this"]


def test_run_without_steering_sends_no_further_statement(world: World) -> None:
    """The flag is read with the run, and the guard of its end is part of the statement that ends it."""
    world.models.script = rounds_of(2)
    world.carries, world.before_carrying = True, lambda *_: None
    sent = []
    for thread in ("warm", "a"):
        before = world.statements
        world.submit(thread=thread)
        world.run_dry()
        sent.append(world.statements - before)

    assert sent == [20, 20]


def test_a_wake_up_that_comes_twice_takes_nothing_in_twice(world: World) -> None:
    world.models.script = a_round_then_user_texts
    in_the_first_call(world, lambda: steer(world, "mind this"))
    world.submit("do it")
    for _ in range(100):
        if not world.pending:
            break
        intent = world.pending[0]
        world.deliver(intent)
        world.deliver(world.pending.pop(world.pending.index(intent)))
    world.run_dry()

    assert dispositions(world) == ["answered", "steered"]
    check_all(world.store)


def test_round_that_seemed_settled_too_early_absorbs_nothing(world: World) -> None:
    """A call that was decided about may join a round between the look at the run and its lock."""
    world.models.script = a_round_then_user_texts

    def steer_and_go_on_too_early() -> None:
        turn = steer(world, "mind this")
        with world.store.read() as tx:
            run = runs.load(tx, world.row("runs")["id"])
        assert run is not None
        assert run.in_flight == 2
        assert stages.call_model(world.runtime, run.id, run.step + 1, replace(run, in_flight=0)) == []
        assert world.row("turns", id=turn)["status"] == "queued"

    in_the_first_call(world, steer_and_go_on_too_early)
    world.submit("do it")
    world.run_dry()
    world.forget_the_dead()
    world.sweep(100)
    world.run_dry()

    assert dispositions(world) == ["answered", "steered"]
    check_all(world.store)


def test_the_turn_is_no_longer_dispatched_once_it_was_taken_in(world: World) -> None:
    world.models.script = a_round_then_user_texts
    in_the_first_call(world, lambda: steer(world, "mind this"))
    world.submit("do it")
    world.run_dry()
    world.deliver(Dispatch(group=Group.CHAT))

    assert len(world.rows("runs")) == 1
