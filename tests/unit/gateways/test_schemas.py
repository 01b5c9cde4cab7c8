"""Values checked against schemas: whatever is in a foreign one, a check ends soon and its result is true."""

from __future__ import annotations

import time

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core.errors import InvalidDecision
from chordage.orchestrator.gateways.mcp.offers import SchemaArguments, fault_of_result
from chordage.orchestrator.gateways.schemas import (
    TooCostly,
    complaint_about,
    complaints,
    copies_in,
    fault_of,
    fault_of_tool,
    is_checked,
    validator,
)
from chordage.orchestrator.gateways.tools.arguments import InvalidArguments

ENDLESS = "^(a+)+$"
SOON = 20.0  # seconds; without its bound each of these takes far too long


def an_object(**properties):
    return {"type": "object", "properties": properties}


def refusals(schema, value):
    return sorted(error.message for error in validator(schema, foreign=True).iter_errors(value))


def doubling(depth):
    """Each level is looked at twice by the one above."""
    inner = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(depth)}
    return {"type": "object", "$ref": "#/$defs/a0", "$defs": {**inner, f"a{depth}": {}}}


HEAVY = {
    "pattern": (an_object(x={"pattern": ENDLESS}), {"x": "a" * 40 + "!"}),
    "key pattern": ({"type": "object", "patternProperties": {ENDLESS: {}}}, {"a" * 40 + "!": 1}),
    "additional": (
        {"type": "object", "patternProperties": {ENDLESS: {}}, "additionalProperties": True},
        {"a" * 40 + "!": 1},
    ),
    "unevaluated": (
        {"type": "object", "patternProperties": {ENDLESS: {}}, "unevaluatedProperties": False},
        {"a" * 40 + "!": 1},
    ),
    "copies": (an_object(x={"pattern": "a[ab]{20000}c"}), {"x": "ab" * 100_000}),
    "nested copies": (an_object(x={"pattern": "(a[ab]{0,100}){0,100}c"}), {"x": "ab" * 100_000}),
    "long text": (an_object(x={"pattern": "a[ab]{1900}c"}), {"x": "abb" * 100_000}),
    "doubling": (doubling(40), {}),
    "itself": ({"type": "object", "$ref": "#"}, {}),
    "unique": (an_object(x={"uniqueItems": True}), {"x": [{"n": n} for n in range(30_000)]}),
    "enumeration": (an_object(x={"items": {"enum": list(range(20_000))}}), {"x": [-1] * 20_000}),
    "complaints": (
        an_object(x={"anyOf": [{"allOf": [{"type": "string"}] * 500}] * 50}),
        {"x": ["y" * 100] * 3000},
    ),
}


@pytest.mark.parametrize("name", HEAVY)
def test_no_schema_holds_up_a_worker(name):
    schema, value = HEAVY[name]
    began = time.thread_time()  # of this thread alone: the machine may be busy

    try:
        SchemaArguments(schema).fit(value)
    except InvalidArguments as refused:
        assert len(str(refused)) < 20_000  # noqa: PT017 - either will do
    fault_of_result(value, schema, "tool")

    assert time.thread_time() - began < SOON


@pytest.mark.parametrize("pattern", ["(?=a)b", r"(a)\1", "a[ab]{20000}c", r"(?x) a{ 9 }", "(", "a{3000}"])
def test_a_foreign_pattern_that_cannot_be_searched_in_linear_time_is_left_to_the_server(pattern):
    assert not is_checked(pattern)
    schema = an_object(x={"pattern": pattern}) | {"patternProperties": {pattern: False}, "additionalProperties": False}
    assert refusals({**schema, "properties": {"x": {"pattern": pattern}}}, {"x": "no match", "y": 1}) == []


def test_a_foreign_pattern_is_searched_for_anywhere_in_the_text():
    schema = an_object(x={"pattern": "b+$"}, y={"type": "integer"})

    assert refusals(schema, {"x": "aab", "y": 1}) == []
    assert refusals(schema, {"x": "aabc", "y": "no"}) == [
        "'aabc' does not match 'b+$'",
        "'no' is not of type 'integer'",
    ]


def test_what_is_over_the_steps_is_known_as_such():
    with pytest.raises(TooCostly):
        refusals(doubling(40), {})


@pytest.mark.parametrize(
    ("pattern", "copies"),
    [
        ("abc", 3), ("[a-z]{1,63}", 63), ("(ab){3}c", 7), ("((a{10}){10}b){2}", 202), (r"\d{4}-\d{2}", 7),
        (r"\p{L}{5}", 5), ("[]a]{4}", 4), ("[^]a]{4}", 4), (r"[\]]{4}", 4), ("(?:a|b){3}", 6), ("(?P<n>a){2}", 2),
        ("a{,3}", 3), ("a{2,}", 2), ("a{}b", 2), ("(?i)ab", 2),
    ],
)  # fmt: skip
def test_copies_of_characters_are_counted(pattern, copies):
    assert copies_in(pattern) == copies


words = st.text(alphabet="ab1", max_size=4)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, 1.0, 1.5]) | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=8,
)
schemas = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "array", "string", "integer"]),
            "pattern": st.sampled_from(["^a", "b$", "a+b", "[ab]{2}", "1"]),
            "uniqueItems": st.booleans(),
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(words, inner, max_size=2),
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$", "1"]), inner, max_size=2),
            "additionalProperties": st.booleans() | inner,
            "items": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
        },
    ),
    max_leaves=4,
)


@given(schemas, values)
def test_values_fit_as_the_library_has_it(schema, value):
    expected = jsonschema.Draft202012Validator(schema).is_valid(value)

    assert validator(schema).is_valid(value) == expected
    assert validator(schema, foreign=True).is_valid(value) == expected


def test_schema_in_own_code_may_have_lookarounds_and_is_checked_with_them():
    schema = an_object(x={"pattern": "^(?!no)"})

    assert complaint_about({"x": "yes"}, schema) is None
    assert "does not match" in complaint_about({"x": "no"}, schema)


def test_a_question_with_an_endless_pattern_is_answered_at_once():
    began = time.thread_time()

    assert "does not match" in complaint_about({"x": "a" * 40 + "!"}, an_object(x={"pattern": ENDLESS}))
    assert time.thread_time() - began < SOON


def test_structured_content_is_checked_within_the_bounds():
    schema = an_object(x={"pattern": "^a+$"}, n={"type": "integer"})

    assert fault_of_result({"x": "aaa", "n": 1}, schema, "tool") is None
    assert "does not match '^a+$'" in fault_of_result({"x": "b", "n": 1}, schema, "tool")
    assert "its schema is none" in fault_of_result({}, {"type": "thing"}, "tool")
    assert "leads nowhere" in fault_of_result({}, {"$ref": "#/$defs/gone"}, "tool")
    assert fault_of_result({"x": 1}, {"enum": ["x" * 300_000]}, "tool") is None, "the schema is too large"


def test_invalid_pattern_is_reported_when_the_file_is_read():
    assert "'(' is no regular expression" in fault_of(an_object(x={"pattern": "("}))
    assert fault_of(an_object(x={"pattern": "^(?!no)"})) is None


@pytest.mark.parametrize("schema", [an_object(x={"pattern": "("}), {"type": "object", "$ref": "#"}])
def test_a_question_whose_schema_cannot_be_followed_is_refused_and_nothing_is_raised(schema):
    with pytest.raises(InvalidDecision, match="the question has a schema that"):
        complaint_about({"x": "y"}, schema)


ORDER = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}


@pytest.mark.parametrize(
    ("value", "told"),
    [({"amount": 5}, None), ({}, "'amount' is a required property"), ({"amount": "x"}, "amount: 'x' is not of type")],
)
def test_value_that_does_not_fit_is_reported_with_its_place(value, told):
    found = complaint_about(value, ORDER)
    assert found is None if told is None else found is not None and found.startswith(told)


@pytest.mark.parametrize("reference", ["http://127.0.0.1:9/schema.json", "#/$defs/nowhere"])
def test_a_reference_is_not_followed_out_of_the_schema(reference):
    with pytest.raises(InvalidDecision, match="reference that leads nowhere"):
        complaint_about({}, {"$ref": reference})


def test_invalid_schema_is_reported_as_such():
    with pytest.raises(InvalidDecision, match="a schema that is none"):
        complaint_about({}, {"type": "thing"})


DRAFT = "http://json-schema.org/draft-0{}/schema#"


@pytest.mark.parametrize(
    "schema",
    [{"$schema": 7}, {"$schema": []}, {"$schema": "http://["}, {"$id": 7}, {"$schema": DRAFT.format(3), "id": 7}],
    ids=str,
)
def test_foreign_schema_whose_names_are_no_addresses_is_refused_and_nothing_is_raised(schema):
    assert "its schema is none" in fault_of_tool({"type": "object", **schema})


@pytest.mark.parametrize(
    "part",
    [
        {"$schema": DRAFT.format(4), "properties": {"x": {"$ref": 7}}},
        {"$schema": DRAFT.format(3), "properties": {"x": {"type": "thing"}}},
        {"properties": {"x": {"$ref": "http://["}}},
        {"properties": {"x": {"$schema": "http://["}}},
    ],
    ids=str,
)
def test_foreign_schema_that_cannot_be_followed_is_left_to_who_carries_the_call_out(part):
    schema = {"type": "object", **part}

    assert fault_of_tool(schema) is None
    assert complaints({"x": 1}, schema, "tool") == []
    assert fault_of_result({"x": 1}, {**schema, "$id": 7}, "tool") is None
