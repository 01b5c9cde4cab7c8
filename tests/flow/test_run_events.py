"""The events of a run from the journal: the same list while it happens and afterwards, on both databases."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.agent import ToolMode
from chordage.orchestrator.core.approvals import Action, DecisionRequest, Question
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.run_events import RunEvent, position_of, without_texts
from chordage.orchestrator.faces.fold import TurnFold
from chordage.orchestrator.faces.moments import (
    CallSettled,
    QuestionAnswered,
    QuestionAsked,
    SubAgentStarted,
    TurnEnded,
)
from chordage.orchestrator.gateways.ports import CallOrder
from chordage.orchestrator.views.run_events import BEGINNING
from support.busy_thread import a_round_then_user_texts, in_the_first_call, steer
from support.fakes import rounds_of
from support.family import Lines, ask, by_agent, settle_in
from support.questions import ASK, approve, asks_once
from support.run_stories import texts_of
from support.world import World

TOP = 10**9  # as if everything were on the bus


@pytest.fixture(autouse=True)
def _time_goes_by(world: World) -> None:
    """No two transactions have the same time."""

    def now() -> datetime:
        world.clock.now += timedelta(milliseconds=1)
        return world.clock.now

    world.runtime = replace(world.runtime, clock=now)


def of_run(world: World, run_id: str | None = None) -> list[RunEvent]:
    run_id = run_id or world.row("runs")["id"]
    return views.run_events(world.store, run_id, BEGINNING, TOP).events


def kinds(events: list[RunEvent]) -> list[str]:
    return [event.kind for event in events]


def one(events: list[RunEvent], kind: str) -> RunEvent:
    (event,) = (event for event in events if event.kind == kind)
    return event


def moments(events: list[RunEvent]) -> list:
    return moments_of(events, events[-1].turn_id or "")


def moments_of(events: list[RunEvent], turn_id: str) -> list:
    fold = TurnFold(turn_id)
    return [moment for event in events for moment in fold.feed(event)]


def test_plain_turn_has_all_that_its_rows_say(world: World) -> None:
    world.models.script = rounds_of(1)
    world.submit("do it")
    world.run_dry()
    events = of_run(world)
    assert kinds(events) == [
        "run.started", "model.replied", "tools.settled", "model.replied", "run.finished", "turn.ended",
    ]  # fmt: skip
    assert events[0].data["text"] == "do it"
    calls = {row["id"]: row for row in world.rows("calls")}
    asked, settled = events[1].data["calls"], events[2].data["calls"]
    assert [call["id"] for call in asked] == [call["id"] for call in settled] == list(calls)
    assert [call["content"] for call in settled] == [row["content"] for row in calls.values()]
    turn = views.turn(world.store, world.row("turns")["id"])
    assert events[-1].data["text"] == turn.answer
    assert events[-1].data["usage"]["input_tokens"] == turn.usage.input_tokens
    assert isinstance(moments(events)[-1], TurnEnded)


def test_ids_are_those_of_the_bus(world: World) -> None:
    world.models.script = rounds_of(1)
    world.submit()
    world.run_dry()
    positions = [position_of(event.id or "") for event in of_run(world)]
    rows = [(row["id"], 0) for row in world.rows("journal") if row["kind"] != "TurnQueued"]
    assert positions == [*rows, (rows[-1][0], 1)]


def test_list_is_the_same_at_every_moment(world: World) -> None:
    """What was read while the run went on is the beginning of what is read when it is over."""
    world.models.script = rounds_of(2)
    world.submit()
    read: list[list[RunEvent]] = []
    while world.pending:
        world.deliver(world.pending.pop(0))
        if world.rows("runs"):
            read.append(of_run(world))
    for earlier, later in zip(read, read[1:], strict=False):
        assert later[: len(earlier)] == earlier


def test_nothing_is_read_beyond_the_position_of_the_bus(world: World) -> None:
    world.models.script = rounds_of(1)
    world.submit()
    world.run_dry()
    events = of_run(world)
    for place, event in enumerate(events[:-1]):
        row = position_of(event.id or "")[0]
        page = views.run_events(world.store, events[0].run_id or "", BEGINNING, row)
        assert page.events == [each for each in events if position_of(each.id or "")[0] <= row]
        behind = views.run_events(world.store, events[0].run_id or "", position_of(event.id or ""), TOP)
        assert behind.events == events[place + 1 :]
    assert views.settled_position(world.store) == 0


def test_caller_without_a_space_finds_the_turn_and_another_does_not(world: World) -> None:
    turn_id = world.submit(thread="api:t")
    assert views.place_of_turn(world.store, turn_id, space=None).run_id is None
    assert views.place_of_turn(world.store, turn_id, space="api").thread_id == "api:t"
    with pytest.raises(NotFound):
        views.place_of_turn(world.store, turn_id, space="api@other")
    with pytest.raises(NotFound):
        views.place_of_turn(world.store, "no such", space=None)


def test_call_that_waited_is_asked_answered_and_settled_once(world: World) -> None:
    world.models.script = rounds_of(2)
    world.tools.asks = asks_once(1)
    world.submit()
    world.run_dry()
    waiting = of_run(world)
    assert kinds(waiting)[-1] == "run.waiting"
    (question,) = waiting[-1].data["questions"]
    assert (question["tool"], question["arguments"], question["why"]) == ("pure", {"n": 1}, "tool")
    assert question["digest"] == world.inbox()[0]["digest"]
    assert one(waiting, "call.suspended").data["id"] == question["id"]

    approve(world, world.inbox()[0], reason="go on")
    events = of_run(world)
    assert events[: len(waiting)] == waiting, "what was read before is still so"
    assert one(events, "call.decided").data["reason"] == "go on"
    told = moments(events)
    of_call = [m for m in told if getattr(m, "call_id", getattr(m, "id", None)) == question["call_id"]]
    assert [type(moment) for moment in of_call] == [QuestionAsked, QuestionAnswered, CallSettled]
    assert all(reply.text == grown for reply, grown in texts_of(told))


def test_each_wait_has_the_questions_of_its_time(world: World) -> None:
    """A call that asks again asks another question."""
    world.models.script = rounds_of(1)
    asked: list[str] = []

    def asks_twice(order: CallOrder) -> Question | None:
        asked.append(order.call_id)
        return ASK if len(asked) <= 2 else None

    world.tools.asks = asks_twice
    world.submit()
    world.run_dry()
    first = of_run(world)[-1]
    for _ in range(2):
        approve(world, world.inbox()[0])
    waits = [event for event in of_run(world) if event.kind == "run.waiting"]
    assert waits[0] == first
    assert [len(wait.data["questions"]) for wait in waits] == [1, 1]
    assert waits[0].data["questions"] != waits[1].data["questions"]


def test_arguments_are_shown_as_they_were_asked_for_and_as_they_were_in_question(world: World) -> None:
    """Also when the answer has changed them."""
    world.models.script = rounds_of(2)
    world.tools.asks = asks_once(1)
    world.submit()
    world.run_dry()
    row = world.inbox()[0]
    world.decide(DecisionRequest(target=row["id"], action=Action.RESUME, payload=True, edited_args={"n": 7}))
    world.run_dry()
    events = of_run(world)
    assert [call["arguments"] for call in events[1].data["calls"]] == [{"n": 0}, {"n": 1}]
    assert one(events, "call.suspended").data["arguments"] == {"n": 1}
    assert one(events, "run.waiting").data["questions"][0]["arguments"] == {"n": 1}


def test_turn_waits_for_people_while_nothing_of_it_is_at_work(world: World) -> None:
    world.models.script = rounds_of(1)
    world.tools.asks = asks_once(0)
    turn_id = world.submit()
    world.run_dry()
    standing = views.standing(world.store, world.row("runs")["id"])
    assert standing.rests
    note = views.waiting_note(standing)
    assert (note.id, note.kind, note.turn_id) == (None, "turn.waiting", turn_id)
    assert [question["id"] for question in note.data["questions"]] == [world.inbox()[0]["id"]]
    approve(world, world.inbox()[0])
    assert not views.standing(world.store, world.row("runs")["id"]).rests


def test_turn_waits_with_the_question_of_its_sub_agent(world: World) -> None:
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob")]], "bob": [[("pure", {"n": 0})]]})
    world.tools.asks = asks_once(0)
    world.submit()
    resting: list[bool] = []
    while world.pending:
        world.deliver(world.pending.pop(0))
        root = by_agent(world, "runs").get("ada")
        if root is not None and root["status"] == "waiting":
            resting.append(views.standing(world.store, root["id"]).rests)
    runs = by_agent(world, "runs")
    assert resting[0] is False, "the sub-agent is at work"
    standing = views.standing(world.store, runs["ada"]["id"])
    assert standing.rests
    assert standing.questions[0]["run_id"] == runs["bob"]["id"]


def test_sub_agents_are_named_with_the_calls_that_they_answer(world: World) -> None:
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob")]], "bob": [[ask("cleo")]], "cleo": [[("pure", {"n": 0})]]})
    world.tools.asks = asks_once(0)
    world.submit()
    world.run_dry()
    runs, turns = by_agent(world, "runs"), by_agent(world)
    of_bob = {"turn": turns["bob"]["id"], "agent": "bob", "call": turns["bob"]["parent_call"]}

    (for_bob,) = one(of_run(world, runs["ada"]["id"]), "model.replied").data["calls"]
    waiting = one(of_run(world, runs["ada"]["id"]), "run.waiting")
    assert for_bob["child"] == of_bob
    assert waiting.data["children"] == [of_bob]
    note = views.waiting_note(views.standing(world.store, runs["ada"]["id"]))
    assert note.data["children"] == [
        {**of_bob, "parent": None},
        {"turn": turns["cleo"]["id"], "agent": "cleo", "call": turns["cleo"]["parent_call"], "parent": of_bob["turn"]},
    ]
    assert [question["asker"] for question in note.data["questions"]] == [turns["cleo"]["id"]]
    assert without_texts(note).data["children"] == note.data["children"]
    told = [*of_run(world, runs["ada"]["id"]), note]
    started = [moment for moment in moments_of(told, turns["ada"]["id"]) if isinstance(moment, SubAgentStarted)]
    assert [(moment.agent, moment.parent) for moment in started] == [("bob", None), ("cleo", turns["bob"]["id"])]


def test_a_sub_agent_that_starts_later_is_not_named_with_the_reply(world: World) -> None:
    """In sequence, each is asked when the one before has answered."""
    settle_in(world, tool_mode=ToolMode.SEQUENTIAL)
    world.models.script = Lines({"ada": [[ask("bob", "first"), ask("bob", "then")]]})
    world.submit()
    world.run_dry()
    (run_id,) = (str(run["id"]) for run in world.rows("runs", agent="ada"))
    reply = next(event for event in of_run(world, run_id) if event.kind == "model.replied")
    first, then = reply.data["calls"]
    assert ("child" in first, "child" in then) == (True, False)
    asked = [moment for moment in moments(of_run(world, run_id)) if isinstance(moment, SubAgentStarted)]
    assert [moment.call_id for moment in asked] == [first["id"], then["id"]]


def test_message_that_was_taken_in_is_part_of_the_run(world: World) -> None:
    world.models.script = a_round_then_user_texts
    steered: list[str] = []
    in_the_first_call(world, lambda: steered.append(steer(world, "mind this")))
    first = world.submit("do it")
    world.run_dry()
    events = of_run(world)
    taken = one(events, "turn.steered")
    assert (taken.turn_id, taken.data["text"]) == (steered[0], "mind this")
    assert [event.turn_id for event in events if event.kind == "turn.ended"] == [steered[0], first]
    place = views.place_of_turn(world.store, steered[0], space=None)
    assert (place.turn_id, place.run_id) == (first, world.row("runs")["id"])
    assert isinstance(moments(events)[-1], TurnEnded)


def test_calls_of_a_run_that_was_cancelled_are_settled_at_its_end(world: World) -> None:
    world.models.script = rounds_of(2)
    turn_id = world.submit()
    while not world.rows("calls"):
        world.deliver(world.pending.pop(0))
    stages.cancel_turn(world.runtime, turn_id, "enough")
    events = of_run(world)
    ended = {call["id"]: call["status"] for call in one(events, "run.finished").data["calls"]}
    assert ended == {row["id"]: row["status"] for row in world.rows("calls")}
    told = moments(events)
    assert {moment.id for moment in told if isinstance(moment, CallSettled)} == set(ended)
    assert told[-1].disposition == "cancelled"


def test_turn_that_ended_without_a_run_is_told_by_its_notes(world: World) -> None:
    world.budgets[Group.CHAT] = 0
    turn_id = world.submit()
    stages.cancel_turn(world.runtime, turn_id, "enough")
    events = views.turn_notes(world.store, {turn_id}, BEGINNING, TOP).events
    assert kinds(events) == ["turn.queued", "turn.ended"]
    assert events[-1].data["disposition"] == "cancelled"
    place = views.place_of_turn(world.store, turn_id, space=None)
    assert place.is_done
    assert views.ended_by(world.store, place, position_of(events[-1].id or ""))
    assert not views.ended_by(world.store, place, position_of(events[0].id or ""))


def test_results_of_a_round_are_known_before_its_checkpoint(world: World) -> None:
    """That is recorded with the next reply."""
    world.models.script = rounds_of(2)
    world.submit()
    while not world.rows("calls") or not all(row["ended_at"] for row in world.rows("calls")):
        world.deliver(world.pending.pop(0))
    run_id = world.row("runs")["id"]
    assert "tools.settled" not in kinds(of_run(world))
    notes = views.new_results(world.store, run_id, TOP)
    results = {row["id"]: row["content"] for row in world.rows("calls")}
    assert {note.data["call"]: note.data["content"] for note in notes} == results
    world.run_dry()
    assert views.new_results(world.store, run_id, TOP) == []


def test_thread_and_fleet_have_the_same_facts(world: World) -> None:
    world.models.script = rounds_of(1)
    world.submit("a secret of mine")
    world.run_dry()
    of_thread = views.thread_events(world.store, "t1", BEGINNING, TOP).events
    assert [event for event in of_thread if event.run_id] == of_run(world)
    of_fleet = views.fleet_events(world.store, BEGINNING, TOP).events
    assert kinds(of_fleet) == ["turn.queued", "run.started", "run.finished", "turn.ended"]
    assert {event.id for event in of_fleet} <= {event.id for event in of_thread}
    assert "secret" not in repr(of_fleet)


def test_long_run_is_read_in_pages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.models.script = rounds_of(1, rounds=4)
    world.submit()
    world.run_dry()
    whole = of_run(world)
    monkeypatch.setattr(sys.modules["chordage.orchestrator.views.run_events"], "PAGE", 3)
    read: list[RunEvent] = []
    after = BEGINNING
    while True:
        page = views.run_events(world.store, world.row("runs")["id"], after, TOP)
        read += page.events
        if page.upto == TOP:
            break
        after = (page.upto + 1, -1)
    assert read == whole


def test_without_texts_nothing_that_was_said_is_left(world: World) -> None:
    world.models.script = rounds_of(1)
    world.submit("a secret of mine")
    world.run_dry()
    shown = [without_texts(event) for event in of_run(world)]
    assert all(event is not None for event in shown)
    assert "secret" not in repr(shown)
    assert not {"text", "arguments", "content"} & {name for event in shown for name in names(event.data)}


def names(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {name for part in value.values() for name in names(part)}
    return {name for part in value for name in names(part)} if isinstance(value, list) else set()
