"""Answers checked against schemas that somebody else has laid down."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.errors import InvalidDecision
from chordage.orchestrator.gateways.schemas import complaint_about

ORDER = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}


@pytest.mark.parametrize(
    ("value", "told"),
    [({"amount": 5}, None), ({}, "'amount' is a required property"), ({"amount": "x"}, "amount: 'x' is not of type")],
)
def test_what_does_not_fit_is_told_with_its_place(value, told):
    found = complaint_about(value, ORDER)
    assert found is None if told is None else found is not None and found.startswith(told)


@pytest.mark.parametrize("reference", ["http://127.0.0.1:9/schema.json", "#/$defs/nowhere"])
def test_a_reference_is_not_followed_out_of_the_schema(reference):
    with pytest.raises(InvalidDecision, match="reference that leads nowhere"):
        complaint_about({}, {"$ref": reference})


def test_a_schema_that_is_none_is_told_as_such():
    with pytest.raises(InvalidDecision, match="a schema that is none"):
        complaint_about({}, {"type": "thing"})
