"""Values judged by a JSON Schema and by a pydantic model: faults are reported with their places."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, field_validator

from chordage.orchestrator.core.output import COMPLAINTS
from chordage.orchestrator.gateways.output_forms import ModelForm, SchemaForm
from chordage.orchestrator.gateways.schemas import fault_of

ITEM = {"type": "object", "required": ["price"], "properties": {"price": {"type": "number", "minimum": 0}}}
ORDER = {
    "type": "object",
    "required": ["items"],
    "properties": {"items": {"type": "array", "items": {"$ref": "#/$defs/item"}}},
    "$defs": {"item": ITEM},
}


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Zoo(BaseModel):
    model_config = ConfigDict(strict=True)

    opened: date
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]]
    motto: str = Field(default="none", alias="the motto")

    @field_validator("pets")
    @classmethod
    def some(cls, pets):
        if not pets:
            raise ValueError("a zoo needs pets")
        return pets


def zoo(**changed):
    return {"opened": "2026-01-01", "pets": [{"kind": "cat", "lives": 9}], **changed}


def test_a_value_that_fits_its_schema_has_no_problems():
    assert SchemaForm(ORDER).problems({"items": [{"price": 1}, {"price": 2.5}]}) == []


def test_each_problem_has_its_place():
    assert SchemaForm(ORDER).problems({"items": [{"price": "x"}, {}, {"price": -1}]}) == [
        "$.items[0].price: 'x' is not of type 'number'",
        "$.items[1]: 'price' is a required property",
        "$.items[2].price: -1 is less than the minimum of 0",
    ]
    assert SchemaForm(ORDER).problems([]) == ["$: [] is not of type 'object'"]


def test_only_as_many_problems_are_computed_as_reported():
    assert len(SchemaForm(ORDER).problems({"items": [{}] * 1000})) == COMPLAINTS + 1


def test_nearest_of_alternatives_is_reported():
    schema = {"anyOf": [{"type": "integer"}, {"type": "object", "required": ["n"]}]}
    assert SchemaForm(schema).problems({}) == ["$: 'n' is a required property"]


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "objec"}, "$.type: 'objec' is not valid"),
        ({"properties": {"a": {"pattern": "("}}}, "$.properties.a.pattern: '(' is no regular expression: missing )"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}}, "the reference '#/$defs/b' leads nowhere"),
        ({"items": {"$ref": "https://example.org/s.json"}}, "the reference 'https://example.org/s.json' leads nowhere"),
        ({"$ref": 5}, '$["$ref"]: 5 is not of type'),
    ],
)
def test_schema_that_cannot_be_evaluated_is_reported(schema, says):
    assert fault_of(schema).startswith(says)


def test_a_schema_may_refer_to_itself_and_show_references_as_data():
    assert fault_of(ORDER) is None
    assert fault_of({"properties": {"next": {"$ref": "#"}, "any": True}}) is None
    assert fault_of({"const": {"$ref": "https://example.org/s.json"}}) is None


def test_a_model_is_shown_as_its_schema():
    form = ModelForm(Zoo)
    assert form.name.endswith(":Zoo")
    assert sorted(form.schema["properties"]) == ["opened", "pets", "the motto"]
    assert form.schema["required"] == ["opened", "pets"]


def test_a_value_is_validated_as_json_also_where_the_model_is_strict():
    assert ModelForm(Zoo).problems(zoo()) == []
    assert ModelForm(Zoo).problems(zoo(opened=5)) == ["$.opened: Input should be a valid date"]


def test_error_of_a_validator_reaches_the_model():
    assert ModelForm(Zoo).problems(zoo(pets=[])) == ["$.pets: Value error, a zoo needs pets"]


def test_the_place_is_one_of_the_json_and_names_no_alternative():
    pets = [{"kind": "dog"}, {"kind": "cat", "lives": "nine"}]
    assert ModelForm(Zoo).problems(zoo(pets=pets)) == [
        "$.pets[0].name: Field required",
        "$.pets[1].lives: Input should be a valid integer, unable to parse string as an integer",
    ]
    assert ModelForm(Zoo).problems(zoo(**{"the motto": 1})) == ['$["the motto"]: Input should be a valid string']


def test_a_list_is_a_root_model():
    form = ModelForm(RootModel[list[int]])
    assert form.schema["type"] == "array"
    assert form.problems([1, 2]) == []
    assert form.problems([1, "x"]) == ["$[1]: Input should be a valid integer, unable to parse string as an integer"]


def test_what_a_validator_raises_otherwise_is_left_to_the_caller():
    class Broken(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def look_up(cls, n):
            return {}[n]

    with pytest.raises(KeyError):
        ModelForm(Broken).problems({"n": 1})
