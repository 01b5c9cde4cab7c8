"""A schema in one line: which answers there are."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.approvals import UNKNOWN_SCHEMA
from chordage.orchestrator.gateways.schemas import complaint_about
from chordage.orchestrator.plugins import permission
from chordage.orchestrator.views import answers

SHOWN = {
    "of an unknown outcome": (
        UNKNOWN_SCHEMA, '{"answer": "retry" | "result" | "failed", "result"?: anything, "reason"?: text}'
    ),
    "none": (None, "anything"),
    "true": (True, "anything"),
    "nothing is known": ({"description": "x"}, "anything"),
    "kinds": ({"type": ["boolean", "null", "string", "number"]}, "true | false | null | text | number"),
    "object or null": (
        {"type": ["object", "null"], "properties": {"remember": {"type": "boolean"}}},
        '{"remember"?: true | false} | null',
    ),
    "members without a type": ({"properties": {"n": {"type": "integer"}}}, '{"n"?: integer}'),
    "members that are required and not described": ({"type": "object", "required": ["amount"]}, '{"amount": anything}'),
    "one described, one not": (
        {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n", "why"]},
        '{"n": integer, "why": anything}',
    ),
    "object without a member": ({"type": "object"}, "object"),
    "list": ({"type": "array", "items": {"enum": [1, "zwölf"]}}, '[1 | "zwölf", …]'),
    "question of a rule": (permission.SCHEMA, 'true | {"remember"?: true | false} | null'),
    "one value excluded": ({"enum": ["a", "b", None], "not": {"const": "b"}}, '"a" | null'),
    "several values excluded": ({"type": ["boolean", "null"], "not": {"enum": [True, None]}}, "false"),
    "a value excluded from a choice": (
        {"anyOf": [{"type": "boolean"}, {"type": "string"}], "not": {"const": True}}, "false | text"
    ),
    "a number is not the truth value it equals in Python": ({"enum": [0, 1], "not": {"const": False}}, "0 | 1"),
    "a schema excluded, which lists no values": ({"type": "boolean", "not": {"type": "null"}}, "true | false"),
    "everything excluded": ({"type": "null", "not": {"const": None}}, "nothing"),
    "choice": ({"anyOf": [{"const": "yes"}, {"type": "null"}]}, '"yes" | null'),
    "deep": (
        {"type": "array", "items": {"type": "array", "items": {"type": "array", "items": {"type": "array"}}}},
        "[[[[anything, …], …], …], …]",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("schema", "shown"), SHOWN.values(), ids=SHOWN)
def test_a_schema_is_shown_as_the_answers_that_fit_it(schema, shown):
    assert answers(schema) == shown


@pytest.mark.parametrize("answer", [True, None, {"remember": True}, {"remember": False}, {}])
def test_answers_shown_for_the_question_of_a_rule_are_accepted(answer):
    assert complaint_about(answer, permission.SCHEMA) is None


def test_a_schema_that_holds_itself_comes_to_an_end():
    schema = {"type": "array"}
    schema["items"] = schema

    assert answers(schema) == "[[[[anything, …], …], …], …]"
