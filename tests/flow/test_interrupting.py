"""A message that ends the run at work on its thread: at once, once, and before the queued turns."""

from __future__ import annotations

import pytest

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.agent import WhenBusy, WhileWaiting
from chordage.orchestrator.core.errors import Aborted, Conflict
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.store import journal
from support.busy_thread import (
    a_round_then_user_texts,
    answer_with_user_texts,
    in_the_first_call,
    in_the_model_call,
    notes,
    shapes,
    steer,
    user_texts,
)
from support.invariants import check_all
from support.one_turn import change_agent, kinds, statuses
from support.questions import approval, approve, asks_once
from support.world import World

ENDING = [WhenBusy.INTERRUPT, WhenBusy.ROLLBACK]


def dispositions(world: World) -> list[str]:
    return [turn["disposition"] for turn in world.rows("turns")]


def interrupt(world: World, text: str = "stop, do this", **more: object) -> str:
    return world.submit(text, when_busy=WhenBusy.INTERRUPT, **more)


def roll_back(world: World, text: str = "instead", **more: object) -> str:
    return world.submit(text, when_busy=WhenBusy.ROLLBACK, **more)


@pytest.mark.parametrize("when_busy", ENDING)
def test_on_a_free_thread_there_is_nothing_to_end(world: World, when_busy: WhenBusy) -> None:
    world.models.script = answer_with_user_texts
    world.submit("hi", when_busy=when_busy)
    world.run_dry()

    assert dispositions(world) == ["answered"]


def test_interrupted_round_keeps_finished_results_and_the_next_turn_learns_of_it(world: World) -> None:
    world.models.script = a_round_then_user_texts

    def interrupt_the_second(order) -> None:
        if order.arguments["n"] == 1:
            world.tools.before = lambda order: None
            interrupt(world)

    world.tools.before = interrupt_the_second
    world.submit("do it")
    world.run_dry()

    assert dispositions(world) == ["cancelled", "answered"]
    assert world.rows("runs")[0]["code"] == "interrupted"
    assert statuses(world) == ["succeeded", "cancelled"]
    said = world.models.prompts[-1].said
    assert [one.content for one in said[2:4]] == [
        "pure0", "This call was cut off: a later message came. If it had started, it may have taken effect.",
    ]  # fmt: skip
    assert notes(world.models.prompts[-1]) == [
        "[The work on the message above ended before it was done (interrupted: a later message came).]"
    ]
    assert user_texts(world.models.prompts[-1]) == ["do it", "stop, do this"]
    check_all(world.store)


def test_an_interrupted_model_call_is_not_waited_for(world: World) -> None:
    world.models.script = answer_with_user_texts
    in_the_model_call(world, lambda: interrupt(world))
    world.submit("do it")
    world.run_dry()

    assert dispositions(world) == ["cancelled", "answered"]
    assert kinds(world).count("AssistantTurnCommitted") == 1, "the reply of the run that was ended is refused"
    check_all(world.store)


def test_work_in_flight_is_cancelled(world: World) -> None:
    """By the heartbeat of the worker that does it, as after a cancel."""
    world.models.script = a_round_then_user_texts
    aborted = []

    def interrupt_and_beat() -> None:
        interrupt(world)
        hand = next(hand for hand in world.runtime.in_flight.all() if hand.call_id)
        stages.beat(world.runtime, first=0, every=0)
        try:
            hand.check()
        except Aborted:
            aborted.append(hand.call_id)

    in_the_first_call(world, interrupt_and_beat)
    world.submit("do it")
    world.run_dry()

    assert aborted == [world.rows("calls")[0]["id"]]


@pytest.mark.parametrize("when_busy", ENDING)
def test_it_comes_before_queued_turns_and_they_keep_their_order(world: World, when_busy: WhenBusy) -> None:
    world.models.script = a_round_then_user_texts
    in_the_first_call(
        world, lambda: [world.submit("one"), world.submit("two"), world.submit("now", when_busy=when_busy)]
    )
    world.submit("do it")
    world.run_dry()

    told = [row["body"]["text"] for row in world.rows("journal", kind="UserMessage")]
    assert told == ["do it", "now", "one", "two"]
    assert dispositions(world) == ["cancelled", "answered", "answered", "answered"]
    check_all(world.store)


def test_it_starts_although_another_was_ready_on_its_thread(world: World) -> None:
    """A chore was ready, and a chat overtook it. The chore must not start before the message that ends the chat."""
    world.models.script = answer_with_user_texts
    world.submit("chore", group=Group.CHORE)
    world.submit("chat")
    late = [intent for intent in world.pending if intent.group is Group.CHORE]
    world.pending = [intent for intent in world.pending if intent.group is Group.CHAT]

    def interrupt_and_wake_the_chore() -> None:
        interrupt(world, "now")
        world.pending[:0] = late

    in_the_model_call(world, interrupt_and_wake_the_chore)
    world.run_dry()
    world.sweep(100)
    world.run_dry()

    told = [row["body"]["text"] for row in world.rows("journal", kind="UserMessage")]
    assert told == ["chat", "now", "chore"]
    check_all(world.store)


def test_one_after_the_other_each_ends_the_one_before(world: World) -> None:
    world.models.script = answer_with_user_texts

    def interrupt_twice(prompt) -> None:
        if len(world.models.prompts) < 3:
            interrupt(world, f"number {len(world.models.prompts)}")

    world.models.before_reply = interrupt_twice
    world.submit("do it")
    world.run_dry()

    assert dispositions(world) == ["cancelled", "cancelled", "answered"]
    check_all(world.store)


def test_message_meant_to_steer_the_ended_run_gets_its_own_turn_behind(world: World) -> None:
    """It came before the message that ended the run, and is not told to the model as if it had come after it."""
    world.models.script = a_round_then_user_texts
    in_the_first_call(world, lambda: [steer(world, "mind this"), interrupt(world, "now")])
    world.submit("do it")
    world.run_dry()

    assert user_texts(world.models.prompts[-1]) == ["do it", "now", "mind this"]
    assert dispositions(world) == ["cancelled", "answered", "answered"]
    check_all(world.store)


def test_earlier_message_is_not_absorbed_beside_a_later_one(world: World) -> None:
    world.models.script = a_round_then_user_texts
    in_the_first_call(world, lambda: [steer(world, "older"), interrupt(world, "now")])
    in_the_model_call(world, lambda: steer(world, "younger"), number=2)
    world.submit("do it")
    world.run_dry()

    assert user_texts(world.models.prompts[-1]) == ["do it", "now", "younger", "older"]
    assert dispositions(world) == ["cancelled", "answered", "answered", "steered"]
    check_all(world.store)


def test_rolled_back_run_leaves_no_text(world: World) -> None:
    world.models.script = a_round_then_user_texts
    world.submit("before")
    world.run_dry()
    in_the_model_call(world, lambda: [steer(world, "mind this"), roll_back(world)], number=3)
    world.submit("do it")
    world.run_dry()

    assert dispositions(world) == ["answered", "cancelled", "answered", "answered"]
    last = world.models.prompts[3]
    assert shapes(last) == ["UserSays", "AssistantSays", "ToolSays", "ToolSays", "AssistantSays", "UserSays"]
    assert user_texts(last) == ["before", "instead"]
    assert notes(last) == []
    check_all(world.store)


def test_a_rolled_back_round_leaves_with_its_results_and_what_was_steered_into_it(world: World) -> None:
    world.models.script = a_round_then_user_texts
    in_the_first_call(world, lambda: steer(world, "mind this"))
    in_the_model_call(world, lambda: roll_back(world), number=2)
    world.submit("do it")
    world.run_dry()

    assert dispositions(world) == ["cancelled", "steered", "answered"]
    assert [remark.text for remark in views.history(world.store, "t1") if remark.role == "user"] == ["instead"]
    assert user_texts(world.models.prompts[-1]) == ["instead"]
    check_all(world.store)


def test_the_journal_of_what_was_rolled_back_stays(world: World) -> None:
    world.models.script = answer_with_user_texts
    in_the_model_call(world, lambda: roll_back(world))
    world.submit("do it")
    world.run_dry()

    assert kinds(world)[:4] == ["UserMessage", "RunInterrupted", "RolledBack", "RunFinished"]
    first = world.rows("runs")[0]
    assert views.run(world.store, first["id"]).code == "rolled_back"
    with world.store.read() as tx:
        told = journal.history(tx, "t1")
    assert {entry.run_id for entry in told.entries} == {world.rows("runs")[1]["id"]}


def test_another_thread_loses_nothing_by_a_roll_back(world: World) -> None:
    world.models.script = answer_with_user_texts
    world.submit("elsewhere", thread="t2")
    world.run_dry()
    in_the_model_call(world, lambda: roll_back(world), number=2)
    world.submit("do it")
    world.run_dry()

    assert [remark.text for remark in views.history(world.store, "t2")] == ["elsewhere", "elsewhere"]


@pytest.mark.parametrize(
    ("when_busy", "code", "disposition"),
    [(WhenBusy.INTERRUPT, "superseded", "superseded"), (WhenBusy.ROLLBACK, "rolled_back", "cancelled")],
)
@pytest.mark.parametrize("group", [Group.CHAT, Group.CHORE])
def test_a_run_that_waits_is_ended_too(world: World, when_busy, code, disposition, group) -> None:
    world.models.script = a_round_then_user_texts
    world.tools.asks = asks_once(0, 1)
    world.submit("do it", group=group)
    world.run_dry()
    world.submit("now", when_busy=when_busy, group=group)
    world.run_dry()
    for row in world.inbox():
        approve(world, row)

    assert world.rows("runs")[0]["code"] == code
    assert dispositions(world) == [disposition, "answered"]
    check_all(world.store)


def test_waiting_run_is_left_alone_where_the_message_is_set_to_hold(world: World) -> None:
    world.models.script = a_round_then_user_texts
    world.tools.asks = asks_once(0, 1)
    world.submit("do it")
    world.run_dry()
    interrupt(world, while_waiting=WhileWaiting.HOLD)
    world.run_dry()

    assert world.row("runs")["status"] == "waiting"


def test_default_of_the_agent_does_not_let_a_chore_end_a_chat(world: World) -> None:
    change_agent(world, when_busy=WhenBusy.INTERRUPT)
    world.models.script = answer_with_user_texts
    in_the_model_call(world, lambda: world.submit("tick", group=Group.CHORE, thread="t1"))
    world.submit("do it")
    world.run_dry()

    assert dispositions(world) == ["answered", "answered"]


@pytest.mark.parametrize("when_busy", [*ENDING, None])
def test_agent_may_set_what_a_message_does(world: World, when_busy: WhenBusy | None) -> None:
    change_agent(world, when_busy=when_busy or WhenBusy.REJECT)
    world.models.script = answer_with_user_texts
    refused = []

    def write() -> None:
        try:
            world.submit("now")
        except Conflict as error:
            refused.append(str(error))

    in_the_model_call(world, write)
    world.submit("do it")
    world.run_dry()

    assert dispositions(world) == (["cancelled", "answered"] if when_busy else ["answered"])
    assert bool(refused) == (when_busy is None)


def test_answer_to_a_question_does_not_by_default_end_the_run_that_asked(world: World) -> None:
    change_agent(world, when_busy=WhenBusy.INTERRUPT)
    world.models.script = a_round_then_user_texts
    world.tools.asks = asks_once(0, 1)
    world.submit("do it")
    world.run_dry()
    world.submit("yes, and more", decisions=tuple(approval(row) for row in world.inbox()))
    world.run_dry()

    assert dispositions(world) == ["answered", "answered"]
    check_all(world.store)


def test_a_message_for_later_ends_nothing_now(world: World) -> None:
    from datetime import timedelta

    world.models.script = answer_with_user_texts
    later = world.clock.now + timedelta(hours=1)
    in_the_model_call(world, lambda: interrupt(world, "tomorrow", not_before=later))
    world.submit("do it")
    world.run_dry()

    assert dispositions(world) == ["answered", None]


def test_the_same_message_handed_in_twice_interrupts_once(world: World) -> None:
    world.models.script = answer_with_user_texts
    in_the_model_call(world, lambda: interrupt(world, "now", dedupe_key="k"))
    in_the_first = world.submit("do it")
    world.run_dry()
    in_the_model_call(world, lambda: interrupt(world, "now", dedupe_key="k"), number=3)
    world.submit("more")
    world.run_dry()

    assert world.row("turns", id=in_the_first)["disposition"] == "cancelled"
    assert dispositions(world) == ["cancelled", "answered", "answered"]
