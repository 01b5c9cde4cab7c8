"""Notes of parallel calls are put together; who contradicts is refused alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core.phases import Scope
from chordage.orchestrator.core.plugin_state import Merged, Place, Writes, merged
from chordage.orchestrator.core.state_updates import SetState

K = Place(Scope.RUN, "k")


def note(value, merge="exclusive", *, key="k", scope="run"):
    return SetState(scope=scope, key=key, value=value, merge=merge)


def of(call, *updates):
    return Writes(writer=call, call_id=call, updates=updates)


def test_nothing_noted_changes_nothing():
    assert merged({K: 1}, [of("c1")]) == Merged(values={}, refused={})


def test_sums_and_unions_are_put_together_with_what_was_there():
    held = {K: 10, Place(Scope.THREAD, "seen"): ["a"]}
    first = of("c1", note(1, "add"), note({"b"}, "union", key="seen", scope="thread"))
    second = of("c2", note(2, "add"), note(["a", "c"], "union", key="seen", scope="thread"))

    assert merged(held, [first, second]).values == {K: 13, Place(Scope.THREAD, "seen"): ["a", "b", "c"]}


def test_a_second_different_value_fails_only_the_later_call_and_all_it_noted():
    done = merged({}, [of("c1", note("x")), of("c2", note(1, "add", key="n"), note("y")), of("c3", note("x"))])

    assert done.values == {K: "x"}
    assert list(done.refused) == ["c2"]
    assert "k of the run was set to something else by c1 in the same round" in done.refused["c2"]


def test_what_was_there_before_the_round_is_simply_replaced():
    assert merged({K: "old"}, [of("c1", note("new"))]) == Merged(values={K: "new"}, refused={})


def test_one_call_may_change_its_mind():
    assert merged({}, [of("c1", note(1), note(5), note(2, "add"))]).values == {K: 7}


def test_two_ways_to_write_the_same_contradict_each_other():
    done = merged({}, [of("c1", note(1, "add")), of("c2", note(5))])

    assert done.values == {K: 1}
    assert done.refused == {"c2": "k of the run was written by c1 in the same round as add, and by c2 as exclusive"}


def test_a_call_that_mixes_ways_has_the_value_for_itself():
    done = merged({}, [of("c1", note(5), note(1, "add")), of("c2", note(1, "add"))])

    assert done.values == {K: 6}
    assert list(done.refused) == ["c2"]


def test_each_call_has_notes_of_its_own():
    done = merged({}, [of("c1", note("x", scope="call")), of("c2", note("y", scope="call"))])

    assert done.values == {Place(Scope.CALL, "k", "c1"): "x", Place(Scope.CALL, "k", "c2"): "y"}


def test_the_same_key_in_two_scopes_is_two_places():
    done = merged({}, [of("c1", note("x")), of("c2", note("y", scope="thread"))])

    assert done.values == {K: "x", Place(Scope.THREAD, "k"): "y"}


def test_true_and_one_are_different_values():
    assert list(merged({}, [of("c1", note(True)), of("c2", note(1))]).refused) == ["c2"]


def test_what_is_held_may_be_of_the_wrong_kind():
    done = merged({K: "text"}, [of("c1", note(1, "add")), of("c2", note([1], "union"))])

    assert done.values == {}
    assert "holds 'text', to which nothing can be added" in done.refused["c1"]
    assert "holds 'text', which is no list to join" in done.refused["c2"]


additive = st.one_of(
    st.builds(lambda value: note(value, "add", key="n"), st.integers(-5, 5)),
    st.builds(lambda value: note(value, "union", key="u"), st.lists(st.integers(0, 5))),
)


@given(
    st.lists(st.lists(additive, max_size=3), max_size=5).flatmap(lambda c: st.tuples(st.just(c), st.permutations(c)))
)
def test_sums_and_unions_are_the_same_in_any_order(both):
    one, other = ([of(f"c{number}", *updates) for number, updates in enumerate(calls)] for calls in both)

    assert merged({}, one) == merged({}, other)
    assert merged({}, other).refused == {}
