"""Forms from JSON Schemas, and the answers that come out of them."""

from __future__ import annotations

import pytest

from chordage.orchestrator.console.forms import FieldKind, SentForm, answer_from, fields_of
from chordage.orchestrator.core.errors import InvalidDecision

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "count": {"type": "integer"},
        "ok": {"type": "boolean"},
        "how": {"enum": ["card", 3, None]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "sizes": {"type": "array", "items": {"type": "number"}},
        "at": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "free": {},
    },
    "required": ["name", "at"],
}


def answered(schema, **sent):
    return answer_from(
        fields_of(schema), SentForm(tuple((name.replace("__", "."), text) for name, text in sent.items()))
    )


def test_each_part_of_a_schema_has_the_field_that_fits_it():
    kinds = {".".join(one.path): one.kind for one in fields_of(SCHEMA)}

    assert kinds == {
        "name": FieldKind.TEXT, "count": FieldKind.NUMBER, "ok": FieldKind.CHOICE, "how": FieldKind.CHOICE,
        "tags": FieldKind.LIST, "sizes": FieldKind.LIST, "at.city": FieldKind.TEXT, "free": FieldKind.JSON,
    }  # fmt: skip


def test_an_answer_has_the_types_of_its_schema():
    answer = answered(
        SCHEMA, answer__name="7", answer__count="7", answer__ok="false", answer__how="3", answer__tags="a\n\nb\n",
        answer__sizes="1\n2.5", answer__at__city="Rom", answer__free='{"x": [1]}',
    )  # fmt: skip

    assert answer == {
        "name": "7", "count": 7, "ok": False, "how": 3, "tags": ["a", "b"], "sizes": [1, 2.5], "at": {"city": "Rom"},
        "free": {"x": [1]},
    }  # fmt: skip


def test_optional_fields_that_are_empty_are_left_out():
    assert answered(SCHEMA, answer__name="", answer__at__city="") == {"name": "", "at": {"city": ""}}


@pytest.mark.parametrize(
    ("schema", "text", "answer"),
    [({"type": "string"}, "yes", "yes"), ({"type": "boolean"}, "true", True), ({"enum": ["a", "b"]}, '"b"', "b"),
     ({}, "[1]", [1]), ({"type": "array", "items": {"type": "string"}}, "x\ny", ["x", "y"])],
)  # fmt: skip
def test_a_schema_that_is_no_object_has_one_field(schema, text, answer):
    assert answered(schema, answer=text) == answer


@pytest.mark.parametrize("schema", [
    {"type": "object", "properties": {"a": {}}, "oneOf": [{}]}, {"$ref": "#/x", "properties": {"a": {}}},
    {"type": "object", "additionalProperties": {"type": "string"}}, True, None, {"properties": "nonsense"},
])  # fmt: skip
def test_what_has_no_fields_is_written_as_json(schema):
    (one,) = fields_of(schema)

    assert one.kind is FieldKind.JSON


def test_what_is_no_json_names_its_field():
    with pytest.raises(InvalidDecision, match="count: give JSON"):
        answered(SCHEMA, answer__count="seven")


def test_what_was_typed_is_shown_again():
    fields = fields_of(SCHEMA, SentForm((("answer.count", "seven"),)))

    assert [one.value for one in fields if one.path == ("count",)] == ["seven"]


def test_defaults_are_filled_in():
    (one,) = fields_of({"type": "object", "properties": {"n": {"type": "integer", "default": 3}}})

    assert one.value == "3"


def test_a_choice_and_a_name_with_hidden_characters_are_shown_and_come_back_as_they_are():
    schema = {
        "type": "object",
        "properties": {"a\u202eb": {"enum": ["go\x7f\u2066", "stop"]}, "t": {"default": "x\u202e"}},
        "required": ["a\u202eb"],
    }
    way, free = fields_of(schema)
    assert (way.name, way.choices[0], free.value) == (r"answer.a\u202eb", r'"go\u007f\u2066"', r'"x\u202e"')

    sent = SentForm(((way.name, way.choices[0]), (free.name, free.value)))

    assert answer_from(fields_of(schema), sent) == {"a\u202eb": "go\x7f\u2066", "t": "x\u202e"}
