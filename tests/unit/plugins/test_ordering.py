"""The order in which plugins are asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordage import RoomError
from chordage.orchestrator.plugins.base import Plugin
from chordage.orchestrator.plugins.plugin_set import ordered


def plugin(name, *, before=(), after=()):
    return type(f"Plugin_{name}", (Plugin,), {"id": name, "before": before, "after": after})()


def ids(*plugins):
    return "".join(one.id for one in ordered(plugins))


def test_without_wishes_the_order_of_the_file_stays():
    assert ids(plugin("c"), plugin("a"), plugin("b")) == "cab"


def test_wishes_move_no_more_than_they_must():
    assert ids(plugin("a"), plugin("b"), plugin("c", before=("a",)), plugin("d")) == "bcad"
    assert ids(plugin("a", after=("c",)), plugin("b"), plugin("c")) == "bca"


def test_a_wish_about_a_plugin_that_is_not_there_is_ignored():
    assert ids(plugin("a", after=("x",), before=("y",)), plugin("b")) == "ab"


@given(st.lists(st.sampled_from("abcdef"), unique=True), st.data())
def test_every_wish_that_can_be_met_is_met(names, data):
    """Wishes that follow the alphabet never make a circle."""
    wishes = {name: tuple(data.draw(st.sets(st.sampled_from([n for n in "abcdefg" if n > name])))) for name in names}
    placed = [one.id for one in ordered(plugin(name, before=wishes[name]) for name in names)]

    assert sorted(placed) == sorted(names)
    for name in names:
        assert all(placed.index(name) < placed.index(later) for later in wishes[name] if later in placed)


def test_cycle_is_reported_with_all_its_members():
    circle = [plugin("a", after=("c",)), plugin("b", after=("a",)), plugin("c", after=("b",)), plugin("d")]

    with pytest.raises(RoomError, match="in a circle: a before b before c before a; take one"):
        ordered([plugin("x", after=("a",)), *circle])


def test_a_plugin_cannot_come_before_itself():
    with pytest.raises(RoomError, match="'a' is to come before itself"):
        ordered([plugin("a", before=("a",))])


def test_an_id_is_used_once():
    with pytest.raises(RoomError, match=r"'a' is used 2 times \(Plugin_a, Plugin_a\); keep one"):
        ordered([plugin("a"), plugin("b"), plugin("a")])


@pytest.mark.parametrize("wrong", ["", " ", None])
def test_a_plugin_needs_an_id(wrong):
    with pytest.raises(RoomError, match="has no id; give the class `id = "):
        ordered([type("Mine", (Plugin,), {"id": wrong})()])


def test_a_wish_is_a_tuple_of_ids():
    with pytest.raises(RoomError, match="'a': `after` is a text; write a tuple"):
        ordered([plugin("a", after="permission")])
