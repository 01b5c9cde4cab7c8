"""What is noted in parallel is put together; who contradicts is refused alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core.phases import Scope
from chordage.orchestrator.core.plugin_state import (
    Merge,
    Noter,
    SetState,
    StateEntry,
    StatePlace,
    StateRefused,
    by_place,
    noted,
)

ROUND = Noter(thread_id="t1", run_id="r1", step=3)
K = StatePlace(Scope.RUN, "r1", "k")


def note(value, merge="exclusive", *, key="k", scope="run"):
    return SetState(scope=scope, key=key, value=value, merge=merge)


def of(call, *updates):
    return replace(ROUND, call_id=call), updates


def after(*writes, held=None):
    """The places and the refusals by call, one write after the other; `held` is from before the round."""
    entries = {place: StateEntry(value=value) for place, value in (held or {}).items()}
    refused = {}
    for noter, updates in writes:
        try:
            entries |= noted(entries, noter, updates)
        except StateRefused as why:
            refused[noter.call_id] = str(why)
    return {place: entry.value for place, entry in entries.items()}, refused


def test_nothing_noted_is_nothing_to_write():
    assert noted({}, *of("c1")) == {}


def test_sums_and_unions_are_put_together_with_what_was_there():
    seen = StatePlace(Scope.THREAD, "t1", "seen")
    first = of("c1", note(1, "add"), note({"b"}, "union", key="seen", scope="thread"))
    second = of("c2", note(2, "add"), note(["a", "c"], "union", key="seen", scope="thread"))

    assert after(first, second, held={K: 10, seen: ["a"]}) == ({K: 13, seen: ["a", "b", "c"]}, {})


def test_a_second_different_value_fails_only_the_later_call_and_all_it_noted():
    values, refused = after(of("c1", note("x")), of("c2", note(1, "add", key="n"), note("y")), of("c3", note("x")))

    assert values == {K: "x"}
    assert list(refused) == ["c2"]
    assert "k of the run was set to something else by c1 in the same round" in refused["c2"]


@pytest.mark.parametrize("value", ["x", None, {"b": [1], "a": 2}])
def test_the_same_value_twice_is_no_conflict(value):
    same = dict(reversed(value.items())) if isinstance(value, dict) else value
    assert after(of("c1", note(value)), of("c2", note(same))) == ({K: value}, {})


def test_what_was_there_before_the_round_is_simply_replaced():
    earlier = replace(ROUND, step=1, call_id="c0"), (note(1, "add"),)
    assert after(earlier, of("c1", note("new"))) == ({K: "new"}, {})


def test_another_run_of_the_thread_is_another_round():
    place = StatePlace(Scope.THREAD, "t1", "k")
    earlier = replace(ROUND, run_id="r0", call_id="c0"), (note("old", scope="thread"),)
    assert after(earlier, of("c1", note("new", scope="thread"))) == ({place: "new"}, {})


@pytest.mark.parametrize("first", ["", "c1"])
def test_the_run_itself_is_not_parallel_to_its_calls(first):
    second = "c1" if first == "" else ""
    assert after(of(first, note("x")), of(second, note("y"))) == ({K: "y"}, {})


def test_one_call_may_change_its_mind():
    assert after(of("c1", note(1), note(5), note(2, "add"))) == ({K: 7}, {})
    assert after(of("c1", note(1)), of("c1", note("y"))) == ({K: "y"}, {})


@pytest.mark.parametrize(("way", "value", "stands"), [("exclusive", "x", "x"), ("add", 1, 2)])
def test_key_written_by_several_cannot_be_changed_by_one(way, value, stands):
    values, refused = after(*(of(call, note(value, way)) for call in ("c1", "c2")), of("c1", note("y")))

    assert values == {K: stands}
    assert list(refused) == ["c1"]
    assert "by several calls in the same round" in refused["c1"]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (note(1, "add"), note(1), "as add, and by c2 as exclusive"),
        (note(1), note(1, "add"), "as exclusive, and by c2 as add"),
        (note([1], "union"), note(1, "add"), "as union, and by c2 as add"),
    ],
)
def test_two_ways_to_write_the_same_contradict_each_other(first, second, said):
    values, refused = after(of("c1", first), of("c2", second))

    assert values == {K: first.value}
    assert refused == {"c2": f"k of the run was written by c1 in the same round {said}"}


@pytest.mark.parametrize(("ways", "stands"), [((note(5), note(1, "add")), 6), ((note(1, "add"), note(5)), 5)])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_call_that_mixes_ways_has_the_value_for_itself(ways, stands, at_once):
    mixed = [of("c1", *ways)] if at_once else [of("c1", one) for one in ways]
    values, refused = after(*mixed, of("c2", note(1, "add")))

    assert values == {K: stands}
    assert list(refused) == ["c2"]


def test_a_call_that_mixes_ways_does_not_get_around_what_another_has_added():
    values, refused = after(of("c1", note(1, "add")), of("c2", note(1, "add"), note(5)))

    assert values == {K: 1}
    assert list(refused) == ["c2"]


def test_each_call_has_notes_of_its_own():
    values, refused = after(of("c1", note("x", scope="call")), of("c2", note("y", scope="call")))

    assert values == {StatePlace(Scope.CALL, "c1", "k"): "x", StatePlace(Scope.CALL, "c2", "k"): "y"}
    assert refused == {}


def test_the_same_key_in_two_scopes_is_two_places():
    values, refused = after(of("c1", note("x")), of("c2", note("y", scope="thread")))

    assert values == {K: "x", StatePlace(Scope.THREAD, "t1", "k"): "y"}
    assert refused == {}


def test_true_and_one_are_different_values():
    assert list(after(of("c1", note(True)), of("c2", note(1)))[1]) == ["c2"]


@pytest.mark.parametrize("held", ["text", True, [1], 1e308, 10**400])
def test_what_is_held_may_be_nothing_to_add_to(held):
    values, refused = after(of("c1", note(1e308, "add")), held={K: held})

    assert values == {K: held}
    assert f"k of the run holds {held!r}, to which 1e+308 cannot be added" in refused["c1"]


@pytest.mark.parametrize("held", ["text", 1, {"a": 1}])
def test_what_is_held_may_be_no_list_to_join(held):
    values, refused = after(of("c1", note([1], "union")), held={K: held})

    assert values == {K: held}
    assert f"holds {held!r}, which is no list to join" in refused["c1"]


def test_everybody_writes_the_places_in_one_order():
    updates = [note(1, key="b"), note(1, scope="call"), note(1, "add"), note(2, "add"), note(1, key="a")]
    one, other = (list(by_place(ROUND, order)) for order in (updates, updates[::-1]))

    assert one == other
    assert [f"{place.scope} {place.key}" for place in one] == ["call k", "run a", "run b", "run k"]


def test_merge_is_remembered_for_later_writers():
    (entry,) = noted({}, *of("c1", note(1, "add"))).values()
    assert entry == StateEntry(value=1, run_id="r1", step=3, writer="c1", merge=Merge.ADD)


additive = st.one_of(
    st.builds(lambda value: note(value, "add", key="n"), st.integers(-5, 5)),
    st.builds(lambda value: note(value, "union", key="u"), st.lists(st.integers(0, 5))),
)
# A call notes at its gate and after it has run, and others may come in between.
noting = st.tuples(st.sampled_from(["c1", "c2", "c3"]), st.lists(additive, max_size=3))


@given(st.lists(noting, max_size=6).flatmap(lambda made: st.tuples(st.just(made), st.permutations(made))))
def test_sums_and_unions_are_the_same_in_any_order(both):
    one, other = (after(*(of(call, *updates) for call, updates in made)) for made in both)

    assert one == other
    assert other[1] == {}


any_note = st.builds(note, st.integers(0, 2), st.sampled_from(["exclusive", "add"]), key=st.sampled_from("kn"))


@given(st.lists(st.lists(any_note, max_size=3), max_size=5), st.data())
def test_kept_writes_could_have_come_in_any_order(calls, data):
    made = [of(f"c{number}", *updates) for number, updates in enumerate(calls)]
    values, refused = after(*made)

    kept = [(noter, updates) for noter, updates in made if noter.call_id not in refused]
    assert after(*data.draw(st.permutations(kept))) == (values, {})
