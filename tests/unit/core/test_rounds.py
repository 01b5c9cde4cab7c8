"""A round: spread over the workers, with a unique id for every call."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from chordage.orchestrator.core.rounds import distinct, generations, spread
from support.builders import a_call, an_ask

ids = st.lists(st.text("abc", min_size=1, max_size=4), unique=True, max_size=40)
caps = st.none() | st.integers(1, 60)
# What providers send: nothing, the same twice, and now and then what we would make up ourselves.
sent = st.sampled_from(["", "a", "b", "call", "call_3_0", "call_3_1", "a_3_1", "a_3_2", "a_3_1_"])


@given(call_ids=ids, cap=caps)
def test_spreading_keeps_every_call_once(call_ids, cap):
    batches = spread(call_ids, cap)

    assert sorted(call for batch in batches for call in batch) == sorted(call_ids)
    assert all(batches)


@given(call_ids=ids, cap=caps)
def test_A20_spreading_never_runs_more_at_once_than_the_cap(call_ids, cap):
    assert len(spread(call_ids, cap)) == min(cap or len(call_ids), len(call_ids))


@given(call_ids=ids, cap=caps)
def test_within_a_batch_calls_keep_their_order(call_ids, cap):
    place = {call: number for number, call in enumerate(call_ids)}

    assert all(
        [place[call] for call in batch] == sorted(place[call] for call in batch) for batch in spread(call_ids, cap)
    )


@given(call_ids=ids, cap=caps)
def test_no_batch_is_longer_than_another_by_more_than_one(call_ids, cap):
    lengths = {len(batch) for batch in spread(call_ids, cap)}

    assert max(lengths, default=0) - min(lengths, default=0) <= 1


def test_without_a_cap_every_call_is_a_batch_of_its_own():
    assert spread(["a", "b", "c"], None) == (("a",), ("b",), ("c",))
    assert spread(["a", "b", "c"], 1) == (("a", "b", "c"),)
    assert spread([], 3) == ()


@example(asked=["call_3_1", ""])
@example(asked=["a_3_2", "a", "a"])
@given(asked=st.lists(sent, max_size=8))
def test_every_call_of_a_reply_has_its_own_id(asked):
    named = distinct([an_ask(ask_id) for ask_id in asked], step=3)

    assert len({ask.id for ask in named}) == len(asked)
    assert all(ask.id for ask in named)


@given(asked=st.lists(sent, max_size=8))
def test_calls_keep_their_order_and_all_else(asked):
    before = [an_ask(ask_id, name=f"tool{place}", arguments={"n": place}) for place, ask_id in enumerate(asked)]

    named = distinct(before, step=3)

    assert [(ask.name, ask.arguments) for ask in named] == [(ask.name, ask.arguments) for ask in before]


def test_unique_id_is_unchanged():
    asks = (an_ask("x"), an_ask("y"))

    assert distinct(asks, step=1) == asks


def test_naming_is_the_same_however_often_it_is_done():
    """The reply of a step may be recorded by two workers at once: both must mean the same calls."""
    asks = [an_ask(""), an_ask("x"), an_ask("x")]

    once = distinct(asks, step=5)

    assert once == distinct(asks, step=5) == distinct(once, step=5)


def test_made_up_ids_of_two_rounds_differ():
    assert distinct([an_ask("")], step=1)[0].id != distinct([an_ask("")], step=3)[0].id


def test_generations_count_the_lives_of_an_id_within_its_run():
    known = [a_call(run_id="r", ask_id="a"), a_call(run_id="r", ask_id="a"), a_call(run_id="other", ask_id="a")]

    lives = generations("r", known)

    assert (lives["a"], lives["never seen"]) == (2, 0)
