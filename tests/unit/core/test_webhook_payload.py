"""Payloads: fields are looked up and never computed."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core import webhooks
from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.webhooks import Shape

PAYLOAD = {"a": {"b": "x", "c": [1, {"d": None}]}, "n": 7, "no": "", "f": 1.5, "yes": True}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{a.b} and {n}", "x and 7"),
        ("{{{a.b}}}", "{x}"),
        ("{a.c.0} {a.c.1.d} {yes}", "1 null true"),
        ("{a.c}", '[1, {"d": null}]'),
        ("plain", "plain"),
    ],
)
def test_fields_fill_a_template(text, said):
    assert webhooks.text_of(Shape(text=text), PAYLOAD) == said


@pytest.mark.parametrize("path", ["a.x", "a.b.0", "a.b.upper", "a.__class__", "a.c.2", "a.c.-1", "a.c.01.x", "x"])
def test_what_is_not_in_the_payload_is_missing(path):
    with pytest.raises(InvalidMessage, match="is missing") as refused:
        webhooks.text_of(Shape(text=f"{{{path}}}"), PAYLOAD)

    assert refused.value.field == path


def test_what_a_field_holds_is_not_a_template():
    assert webhooks.text_of(Shape(text="{a}"), {"a": "{b}", "b": "secret"}) == "{b}"


@pytest.mark.parametrize(("field", "thread"), [("a.b", "x"), ("n", "7")])
def test_a_thread_is_a_text_or_a_whole_number(field, thread):
    assert webhooks.thread_of(Shape(thread_field=field), PAYLOAD) == thread


@pytest.mark.parametrize("field", ["no", "f", "yes", "a", "a.c.1.d", "x"])
def test_a_thread_that_is_no_name_is_refused(field):
    with pytest.raises(InvalidMessage) as refused:
        webhooks.thread_of(Shape(thread_field=field), PAYLOAD)

    assert refused.value.field == field


def test_meta_keeps_what_is_there():
    shape = Shape(meta_fields=("n", "a.c.1.d", "x"), meta_headers=("x-event", "x-other"))

    assert webhooks.meta_of(shape, PAYLOAD, {"x-event": "push"}) == {"n": 7, "a.c.1.d": None, "x-event": "push"}


def test_payload_is_placed_by_its_paths():
    laid = webhooks.laid_out([("a", "1"), ("a.b", "2"), ("c.0.d", "3")])

    assert laid == {"a": {"b": "2"}, "c": {"0": {"d": "3"}}}
    assert webhooks.at(laid, "c.0.d") == "3"
