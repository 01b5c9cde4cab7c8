"""Turns by many conditions, on SQLite and PostgreSQL: what is found, page by page, and how far a page looks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from chordage.orchestrator import views
from chordage.orchestrator.core.agent import WhileWaiting
from chordage.orchestrator.core.approvals import Question, Why
from chordage.orchestrator.core.bulk import BulkCount
from chordage.orchestrator.store import turn_search
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.views import TurnFilter, TurnState
from chordage.orchestrator.views.turn_search import OPEN_STATES, conditions_of
from support.fakes import rounds_of
from support.world import World

ASK = Question(why=Why.TOOL, prompt="May I?")


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    store = Store(database_url)
    yield World(store)
    store.close()


def found(world: World, **wanted: object) -> list[str]:
    page = views.search_turns(world.store, TurnFilter(**wanted))
    return [turn.turn_id for turn in page.turns]


def turns_of_each_state(world: World) -> dict[str, str]:
    world.models.script = rounds_of(1)
    world.tools.asks = lambda order: ASK if order.decision is None else None
    waiting = world.submit("wait", thread="w")
    world.run_dry()
    behind = world.submit("behind", thread="w", while_waiting=WhileWaiting.HOLD)
    world.tools.asks = lambda order: None
    world.models.script = rounds_of(0)
    answered = world.submit("Order 100% of _all_", thread="a")
    world.run_dry()
    return {"waiting": waiting, "queued": behind, "answered": answered}


def test_a_state_finds_its_turns_and_no_others(world: World) -> None:
    turns = turns_of_each_state(world)

    assert found(world, states=frozenset({TurnState.WAITING})) == [turns["waiting"]]
    assert found(world, states=frozenset({TurnState.QUEUED})) == [turns["queued"]]
    assert found(world, states=frozenset({TurnState.ANSWERED})) == [turns["answered"]]
    assert found(world, states=OPEN_STATES) == [turns["queued"], turns["waiting"]]
    assert len(found(world)) == 3


def test_text_is_found_as_it_stands_whatever_its_case(world: World) -> None:
    turns = turns_of_each_state(world)

    assert found(world, text="order 100% OF _a") == [turns["answered"]]
    assert found(world, text="o_der") == []
    assert found(world, text="1%f") == []


def test_conditions_hold_together(world: World) -> None:
    turns = turns_of_each_state(world)
    now = world.clock()

    assert found(world, tool="look", states=frozenset({TurnState.WAITING})) in ([turns["waiting"]], [])
    assert found(world, thread_id="w", text="wait") == [turns["waiting"]]
    assert found(world, agent="nobody") == []
    assert found(world, more_tokens=10**9) == []
    assert found(world, since=now + timedelta(days=1)) == []
    assert len(found(world, until=now + timedelta(days=1))) == 3


def test_pages_go_on_from_the_id_of_the_last(world: World) -> None:
    world.models.script = rounds_of(0)
    ids = [world.submit(thread=f"t{number}") for number in range(5)]
    world.run_dry()
    wanted, seen, before = TurnFilter(agent="ada"), [], None
    while True:
        page = views.search_turns(world.store, wanted, limit=2, before=before)
        seen += [turn.turn_id for turn in page.turns]
        if (before := page.next) is None:
            break

    assert seen == sorted(ids, reverse=True)


def test_a_page_looks_at_a_bounded_number_and_says_how_far(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_search, "AT_ONCE", 2)
    monkeypatch.setattr(turn_search, "LOOKED_AT", 4)
    world.models.script = rounds_of(0)
    first = world.submit("needle", thread="t")
    world.run_dry()
    for number in range(6):
        world.submit(thread=f"t{number}")
        world.run_dry()

    page = views.search_turns(world.store, TurnFilter(text="needle"))
    assert page.turns == ()
    assert page.looked_to is not None
    further = views.search_turns(world.store, TurnFilter(text="needle"), before=page.next)

    assert [turn.turn_id for turn in further.turns] == [first]
    assert further.next is None


def test_a_caller_finds_its_own_threads_only(world: World) -> None:
    turns = turns_of_each_state(world)

    assert views.search_turns(world.store, TurnFilter(), space="api").turns == ()
    waiting = TurnFilter(states=frozenset({TurnState.WAITING}))
    with world.store.read() as tx:
        assert turn_search.count(tx, conditions_of(waiting, None)) == BulkCount(number=1)
        assert turn_search.count(tx, conditions_of(waiting, "api")) == BulkCount(number=0)
        found = turn_search.next_fitting(tx, conditions_of(waiting, None), "", upwards=False, limit=9)
        assert list(found.ids) == [turns["waiting"]]
        assert not turn_search.next_fitting(tx, conditions_of(waiting, "api"), "", upwards=True, limit=9).ids


@pytest.mark.parametrize("upwards", [True, False])
def test_turns_are_found_part_by_part_in_both_directions(
    world: World, upwards: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_search, "AT_ONCE", 2)
    turns = turns_of_each_state(world)
    wanted = conditions_of(TurnFilter(states=frozenset({TurnState.DONE})), None)
    every = conditions_of(TurnFilter(), None)
    position, found = "", []
    with world.store.read() as tx:
        while (part := turn_search.next_fitting(tx, every, position, upwards=upwards, limit=50)).up_to is not None:
            found += part.ids
            position = part.up_to
        done = turn_search.count(tx, wanted).number

    assert found == sorted(turns.values(), reverse=not upwards)
    assert 0 < done < len(turns)


def test_turns_are_counted_by_the_minute_they_came(world: World) -> None:
    turns_of_each_state(world)

    counted = views.throughput(world.store, world.clock())

    assert sum(counted.came) == 3
    assert len(counted.came) == 60
    assert replace(counted).failed == (0,) * 60


def test_the_model_saw_what_was_said_before_its_reply(world: World) -> None:
    world.models.script = rounds_of(1)
    turn = world.submit("hello")
    world.run_dry()
    run_id = world.row("turns", id=turn)["run_id"]

    first, last = views.prompt_at(world.store, run_id, 1), views.prompt_at(world.store, run_id, 3)

    assert [one.role.value for one in first.messages] == ["user"]
    assert [one.role.value for one in last.messages] == ["user", "assistant", "tool", "tool"][: len(last.messages)]
    assert last.messages[0].text == "hello"
