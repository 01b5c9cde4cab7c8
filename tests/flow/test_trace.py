"""The path of a message: each way in which it can end is shown, and everything that was committed on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import insert

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.agent import WhileWaiting
from chordage.orchestrator.core.arrivals import Overflow, QueueBound
from chordage.orchestrator.core.errors import Conflict, ModelFailed, NotFound
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import WhenBusy
from chordage.orchestrator.core.model import Fault
from chordage.orchestrator.core.status import Disposition
from chordage.orchestrator.run import endings
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.store import schema, trace_reads
from chordage.orchestrator.views.trace import EventKind, TraceView
from support.busy_thread import a_round_then_user_texts, in_the_first_call, steer
from support.family import Lines, ask, by_agent, settle_in
from support.invariants import check_all
from support.one_turn import change_agent
from support.questions import approve, asks_once
from support.world import World


def _answered(world: World) -> str:
    turn = world.submit()
    world.run_dry()
    return turn


def _failed(world: World) -> str:
    def broken(_):
        raise ModelFailed("fake: 401", fault=Fault.AUTH, attempts=())

    world.models.script = broken
    return _answered(world)


def _cancelled(world: World) -> str:
    turn = world.submit()
    stages.cancel_turn(world.runtime, turn, "not wanted")
    world.run_dry()
    return turn


def _steered(world: World) -> str:
    world.models.script = a_round_then_user_texts
    steered: list[str] = []
    in_the_first_call(world, lambda: steered.append(steer(world, "mind this")))
    _answered(world)
    return steered[0]


def _expired(world: World) -> str:
    turn = world.submit(deadline=world.clock() + timedelta(seconds=5))
    world.pending.clear()
    world.sweep(seconds=10)
    return turn


def _superseded(world: World) -> str:
    change_agent(world, while_waiting=WhileWaiting.SUPERSEDE)
    world.tools.asks = asks_once(0)
    turn = _answered(world)
    world.clock.pass_by(7)
    _answered(world)
    return turn


def _rejected(world: World) -> str:
    """By a rule of its group, when it was stored already: it never started."""
    turn = world.submit()
    with Unit(world.runtime) as unit:
        endings.drop_queued(unit, turn, Disposition.REJECTED, "no room")
    return turn


def _merged(world: World) -> str:
    older = world.submit("old", coalesce_key="report")
    world.submit("new", coalesce_key="report")
    world.run_dry()
    return older


ENDS: dict[Disposition, tuple[Callable[[World], str], str | None]] = {
    Disposition.ANSWERED: (_answered, None),
    Disposition.FAILED: (_failed, "model_auth"),
    Disposition.CANCELLED: (_cancelled, "not wanted"),
    Disposition.STEERED: (_steered, "took it in"),
    Disposition.EXPIRED: (_expired, "deadline"),
    Disposition.SUPERSEDED: (_superseded, "superseded"),
    Disposition.REJECTED: (_rejected, "no room"),
    Disposition.MERGED: (_merged, "the same work by key 'report'"),
}


def kinds(trace: TraceView) -> list[EventKind]:
    return [event.kind for event in trace.events]


def test_every_disposition_there_is_is_traced_here() -> None:
    assert ENDS.keys() == set(Disposition)


@pytest.mark.parametrize("disposition", ENDS)
def test_each_way_to_end_is_shown_once_and_last_with_its_reason(world: World, disposition: Disposition) -> None:
    make, why = ENDS[disposition]
    trace = views.trace(world.store, make(world))

    assert trace.disposition is disposition
    assert kinds(trace).count(EventKind.ENDED) == 1
    assert trace.events[-1].text.startswith(disposition.value)
    assert kinds(trace)[:2] == [EventKind.RECEIVED, EventKind.QUEUED]
    assert why is None or why in trace.events[-1].text


@pytest.mark.parametrize(
    ("overflow", "thread"), [(Overflow.DROP_OLDEST, "another"), (Overflow.REPLACE_PENDING, "mine")]
)
def test_message_dropped_from_a_full_queue_names_its_successor(world: World, overflow: Overflow, thread: str) -> None:
    bounds = {Group.CHAT: QueueBound(max_queued=1, overflow=overflow)}
    world.runtime = replace(world.runtime, queue_bounds=bounds)
    older = world.submit("old", thread="mine")
    world.clock.pass_by(3)
    newer = world.submit("new", thread=thread)

    trace = views.trace(world.store, older)

    assert kinds(trace) == [EventKind.RECEIVED, EventKind.QUEUED, EventKind.ENDED]
    told = f"turn {newer} came while the queue of group chat is full, with 1 queued"
    assert (trace.disposition, trace.why) == (Disposition.SUPERSEDED, told)
    assert trace.events[-1].text == f"superseded ({told})"
    assert (trace.events[-1].seconds, len(trace.events[-1].journal)) == (3.0, 1)
    world.run_dry()
    assert views.trace(world.store, newer).disposition is Disposition.ANSWERED


def test_refused_message_is_not_traced_and_the_message_gives_the_reason(world: World) -> None:
    _answered(world)
    world.submit("busy")
    world.deliver(world.pending.pop(0))
    with pytest.raises(Conflict, match="is busy"):
        world.submit(when_busy=WhenBusy.REJECT, dedupe_key="refused")

    with pytest.raises(NotFound, match="refused .* was not stored: its sender got the reason as an error"):
        views.trace(world.store, "refused")
    world.run_dry()


def test_every_checkpoint_of_its_run_has_its_place_in_the_path(world: World) -> None:
    world.tools.asks = asks_once(0)
    turn = _answered(world)
    approve(world, world.inbox()[0])
    trace = views.trace(world.store, turn)

    told = {position for event in trace.events for position in event.journal}
    assert told >= {row["id"] for row in world.rows("journal", run_id=trace.turn.run_id)}
    path = [kind for kind in kinds(trace) if kind is not EventKind.CALL]
    assert path.index(EventKind.STARTED) < path.index(EventKind.MODEL) < path.index(EventKind.ASKED)
    assert path.index(EventKind.ASKED) < path.index(EventKind.WAITED) < path.index(EventKind.ENDED)
    assert {EventKind.DECIDED, EventKind.REPLAYED, EventKind.ROUND} <= set(path)
    check_all(world.store)


def test_steps_name_their_worker_and_attempts(world: World) -> None:
    trace = views.trace(world.store, _answered(world))

    models = [event for event in trace.events if event.kind is EventKind.MODEL]
    calls = [event for event in trace.events if event.kind is EventKind.CALL]
    assert {event.worker for event in models} == {world.runtime.worker}
    assert [(event.step, event.attempts) for event in calls] == [(2, 1), (2, 1)]
    assert all(event.id for event in calls)


def test_steered_message_is_followed_into_its_run_from_there_on(world: World) -> None:
    trace = views.trace(world.store, _steered(world))
    run = world.row("runs")

    assert trace.steered_into == run["id"]
    (into,) = [event for event in trace.events if event.kind is EventKind.STEERED]
    assert into.id == run["id"]
    assert into.step == 3
    assert into.journal
    steps = [event.step for event in trace.events if event.step is not None]
    assert min(steps) == 3, "what the run had done before is not its path"
    assert EventKind.STARTED not in kinds(trace)


def test_run_that_took_a_message_in_shows_that_on_the_path_of_its_own(world: World) -> None:
    steered = _steered(world)
    first = world.row("turns", disposition="answered")["id"]

    (event,) = [event for event in views.trace(world.store, first).events if event.kind is EventKind.TOOK_IN]
    assert event.id == steered


def test_merged_message_is_followed_to_the_turn_it_became_part_of(world: World) -> None:
    trace = views.trace(world.store, _merged(world))
    newer = world.row("turns", disposition="answered")["id"]

    assert trace.merged_into == newer
    assert [event.id for event in trace.events if event.kind is EventKind.MERGED] == [newer]
    assert trace.follows.turn.turn_id == newer
    assert trace.follows.disposition is Disposition.ANSWERED
    assert trace.follows.follows is None


def test_chain_of_merged_messages_is_followed_to_its_end(world: World) -> None:
    first, *_, last = [world.submit(f"{number}", coalesce_key="k") for number in range(4)]
    world.run_dry()
    trace, met = views.trace(world.store, first), 0
    while trace.follows is not None:
        trace, met = trace.follows, met + 1

    assert (trace.turn.turn_id, met) == (last, 3)


def test_queue_shows_the_turns_ahead_and_when_the_way_was_free(world: World) -> None:
    first, second = world.submit("one"), world.submit("two")
    world.deliver(world.pending.pop(0))
    world.clock.pass_by(9)
    world.run_dry()
    events = {event.kind: event for event in views.trace(world.store, second).events}

    assert f"behind 1: nearest turn {first}" in events[EventKind.QUEUED].text
    assert events[EventKind.READY].seconds == 9
    assert events[EventKind.READY].at == world.row("turns", id=first)["done_at"]
    assert events[EventKind.STARTED].seconds == 9


def test_unfinished_turn_has_no_end_and_names_what_it_waits_for(world: World) -> None:
    world.submit("one")
    second = world.submit("two")

    trace = views.trace(world.store, second)

    assert trace.disposition is None
    assert kinds(trace) == [EventKind.RECEIVED, EventKind.QUEUED]
    assert trace.turn.fate == "queued, number 2 in the line of its thread"


def test_ready_turn_names_what_it_may_wait_for(world: World) -> None:
    turn = world.submit()

    (event,) = [event for event in views.trace(world.store, turn).events if event.kind is EventKind.READY]

    assert event.text == (
        "it waits for the budget of group chat, a worker, its time, or its agent to be repaired "
        "(`chordage check` names what is broken)"
    )


def test_sub_agent_is_named_with_its_turn_and_its_parent(world: World) -> None:
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob", "who?")]]})
    turn = _answered(world)
    child = by_agent(world)["bob"]["id"]

    (event,) = [event for event in views.trace(world.store, turn).events if event.kind is EventKind.SUB_AGENT]
    assert event.id == child
    assert "asked agent bob: answered" in event.text
    received = views.trace(world.store, child).events[0]
    assert f"asked by run {world.row('turns', id=turn)['run_id']} (ada/bob)" in received.text


def test_reply_in_the_outbox_is_shown_without_the_content_of_its_target(world: World) -> None:
    turn = world.submit(reply_target={"channel": "telegram", "address": "42", "token": "secret"})
    world.run_dry()
    trace = views.trace(world.store, turn)

    left = [event for event in trace.events if event.kind is EventKind.LEFT]
    row = world.row("outbox")
    (told,) = [event.text for event in left]
    assert told.startswith(f"a reply for telegram 42, row {row['id']}, position {row['position']}, status pending")
    assert trace.events[-1].kind is EventKind.SENT
    assert trace.events[-1].at is None
    assert "secret" not in repr(trace)


def test_message_is_found_by_turn_run_thread_key_and_prefix(world: World) -> None:
    first = world.submit("one", dedupe_key="k1")
    world.run_dry()
    second = world.submit("two", dedupe_key="k2")
    world.run_dry()
    run = world.row("turns", id=first)["run_id"]

    def found(given: str, **more: str) -> str:
        return views.trace(world.store, given, **more).turn.turn_id

    assert [found(given) for given in (first, run, "k1", "t1")] == [first, first, first, second]
    assert found("k2", agent="ada", source=views.trace(world.store, second).source) == second
    assert views.trace(world.store, "k1").dedupe_key == "k1"


def test_unique_prefix_of_an_id_is_enough(world: World) -> None:
    world.runtime = replace(world.runtime, new_id=iter(["aaaa1-1", "aaaa2-2", "bbbb3-3", "bbbb4-4"] * 9).__next__)
    turn = world.submit()

    assert views.trace(world.store, "aaaa1").turn.turn_id == turn
    with pytest.raises(NotFound):
        views.trace(world.store, "aaa")
    with pytest.raises(NotFound):
        views.trace(world.store, "aaaa9")
    world.pending.clear()


def test_ambiguous_prefix_is_refused_with_some_of_the_ids(world: World) -> None:
    first = world.submit(thread="a")
    world.submit(thread="b")

    with pytest.raises(Conflict, match=f"several ids begin with 'id00', such as turn {first}.*give more of it"):
        views.trace(world.store, "id00")
    world.run_dry()


def test_key_of_two_sources_is_refused_with_the_options_that_distinguish_them(world: World) -> None:
    world.submit("one", dedupe_key="k", source="http")
    second = world.submit("two", dedupe_key="k", source="cli")

    with pytest.raises(Conflict, match="--agent ada --source cli; --agent ada --source http"):
        views.trace(world.store, "k")
    assert views.trace(world.store, "k", source="cli").turn.turn_id == second
    with pytest.raises(NotFound, match="no message with the dedupe key 'k' of agent 'ada' of source 'hook:x'"):
        views.trace(world.store, "k", agent="ada", source="hook:x")
    world.run_dry()


def test_looking_for_a_key_queries_once_for_each_source_and_not_for_each_message(world: World) -> None:
    for number in range(30):
        world.submit("hi", thread=f"t{number}", dedupe_key=f"k{number}", source="http" if number % 2 else "cli")
    before = world.statements

    with world.store.read() as tx:
        found = trace_reads.with_dedupe_key(tx, "k7", agent=None, source=None)

    assert [one["source"] for one in found] == ["http"]
    assert world.statements - before == 5, "two sources, the end of them, and one look into each"
    world.pending.clear()


def test_journal_notes_beside_checkpoints_determine_their_positions(world: World) -> None:
    turn = _expired(world)
    row = {"thread_id": "t1", "run_id": turn, "step": 0, "at": world.clock()}
    with world.store.write() as tx:
        noted = {kind for of, kind, _ in trace_reads.notes(tx, {turn})}
        for kind in sorted({"TurnQueued", "TurnDropped"} - noted, reverse=True):
            tx.execute(insert(schema.journal), {**row, "kind": kind, "body": {}})
    events = {event.kind: event for event in views.trace(world.store, turn).events}

    assert events[EventKind.QUEUED].journal < events[EventKind.ENDED].journal
    assert len(events[EventKind.QUEUED].journal) == 1
