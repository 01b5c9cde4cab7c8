"""What calls of one round note at the same moment: all of it is kept, or the later one gets an error."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import event

from chordage.orchestrator.core.phases import Scope
from chordage.orchestrator.core.plugin_state import Merge, Noter, SetState
from chordage.orchestrator.store import plugin_state
from support.race import race

RACERS = 6
ROUND = Noter(thread_id="t1", run_id="r1", step=3)
CALLS = [replace(ROUND, call_id=f"c{number}") for number in range(RACERS)]


def update(value, merge=Merge.EXCLUSIVE, *, key="k", scope=Scope.RUN):
    return SetState(scope=scope, key=key, value=value, merge=merge)


def note(tx, noter, *updates):
    """As the stages do it: what is refused is undone."""
    with tx.begin_nested() as attempt:
        conflict = plugin_state.note(tx, noter, updates)
        if conflict is not None:
            attempt.rollback()
    return conflict


def held(store, noter=ROUND):
    with store.read() as tx:
        return plugin_state.held(tx, noter)


def test_each_sees_what_is_noted_for_its_thread_its_run_and_itself(store):
    with store.write() as tx:
        note(tx, CALLS[0], *(update(scope.value, scope=scope) for scope in Scope))

    assert held(store, CALLS[0]) == {scope: {"k": scope.value} for scope in Scope}
    assert held(store, CALLS[1]) == {Scope.THREAD: {"k": "thread"}, Scope.RUN: {"k": "run"}, Scope.CALL: {}}
    assert held(store, replace(CALLS[1], run_id="r2"))[Scope.RUN] == {}


def test_sums_and_unions_of_calls_at_the_same_moment_are_complete(store):
    def add(tx, noter):
        return note(tx, noter, update(1, Merge.ADD, key="n"), update([noter.call_id], Merge.UNION, key="who"))

    assert race(store, [lambda tx, call=call: add(tx, call) for call in CALLS]) == [None] * RACERS
    assert held(store)[Scope.RUN] == {"n": RACERS, "who": [call.call_id for call in CALLS]}


def test_of_calls_that_contradict_each_other_at_the_same_moment_one_is_kept_whole(store):
    def claim(tx, noter):
        return note(tx, noter, update(1, Merge.ADD, key="a"), update(noter.call_id), update(1, Merge.ADD, key="z"))

    told = race(store, [lambda tx, call=call: claim(tx, call) for call in CALLS])

    first = CALLS[told.index(None)].call_id
    assert held(store)[Scope.RUN] == {"a": 1, "k": first, "z": 1}
    others = [why for why in told if why is not None]
    assert len(others) == RACERS - 1
    assert all(f"k of the run was set to something else by {first} in the same round" in why for why in others)


def test_calls_that_agree_at_the_same_moment_are_all_kept(store):
    assert race(store, [lambda tx, call=call: note(tx, call, update({"a": True})) for call in CALLS]) == [None] * RACERS
    assert held(store)[Scope.RUN] == {"k": {"a": True}}
    with store.write() as tx:
        assert "by several calls in the same round" in (note(tx, CALLS[0], update({"a": 1})) or "")


@pytest.mark.parametrize("value", [1.0, 1e16, 0.1 + 0.2, True, None, "1", [1.0, {"a": None}]])
def test_the_same_value_twice_is_no_conflict_in_whatever_form_the_database_returns_it(store, value):
    with store.write() as tx:
        assert [note(tx, call, update(value)) for call in CALLS[:3]] == [None] * 3
    assert held(store)[Scope.RUN] == {"k": value}


def test_notes_in_another_order_cause_no_deadlock(store):
    both = [update(1, Merge.ADD, key=key) for key in "ab"]

    told = race(store, [lambda tx, n=n: note(tx, CALLS[n], *both[:: (1, -1)[n % 2]]) for n in range(RACERS)])

    assert told == [None] * RACERS
    assert held(store)[Scope.RUN] == {"a": RACERS, "b": RACERS}


def test_a_later_round_replaces_what_an_earlier_one_has_set(store):
    with store.write() as tx:
        assert note(tx, CALLS[0], update("x")) is None
        assert note(tx, replace(CALLS[1], step=5), update("y")) is None
    assert held(store)[Scope.RUN] == {"k": "y"}


def test_nothing_is_left_of_what_was_refused(store):
    with store.write() as tx:
        assert "which is no list to join" in (note(tx, CALLS[0], update("x"), update([1], Merge.UNION)) or "")
    assert held(store)[Scope.RUN] == {}


@pytest.mark.parametrize(("updates", "statements"), [(0, 0), (1, 3), (2, 3)])
def test_a_place_costs_three_statements_however_often_it_is_written(store, updates, statements):
    sent = []
    event.listen(store.engine, "before_cursor_execute", lambda *given: sent.append(given[2]))
    with store.write() as tx:
        assert plugin_state.note(tx, CALLS[0], [update(1, Merge.ADD)] * updates) is None
    assert len(sent) == statements
