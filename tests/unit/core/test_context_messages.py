"""When a plugin's context message is due again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core.verdicts import AddContextMessage, Block, due


def note(text="t", *, key="k", cooldown=0):
    return AddContextMessage(key=key, text=text, cooldown=cooldown)


def shown_at(cooldown, steps):
    """The steps in which one and the same message is seen."""
    book, seen = {}, []
    for step in range(steps):
        now = due([("p", note(cooldown=cooldown))], book, step)
        book = now.shown
        if now.texts:
            seen.append(step)
    return seen


def test_without_a_cooldown_it_is_in_every_prompt():
    assert shown_at(0, 4) == [0, 1, 2, 3]


@given(st.integers(1, 5), st.integers(1, 30))
def test_with_a_cooldown_it_pauses_that_many_steps(cooldown, steps):
    assert shown_at(cooldown, steps) == list(range(0, steps, cooldown + 1))


def test_changed_text_is_shown_at_once():
    first = due([("p", note("old", cooldown=9))], {}, 1)
    second = due([("p", note("new", cooldown=9))], first.shown, 2)

    assert (first.texts, second.texts) == (("old",), ("new",))
    assert due([("p", note("new", cooldown=9))], second.shown, 3).texts == ()


def test_messages_of_several_plugins_add_up():
    given = [("a", note("1")), ("b", note("2")), ("b", note("3", key="other")), ("b", Block("no"))]

    assert due(given, {}, 1).texts == ("1", "2", "3")


def test_plugin_has_one_text_per_key():
    assert due([("a", note("1")), ("a", note("2"))], {}, 1).texts == ("2",)


def test_what_was_not_due_keeps_its_mark():
    book = due([("p", note(cooldown=5))], {}, 1).shown

    assert due([("p", note(cooldown=5))], book, 3).shown == book
