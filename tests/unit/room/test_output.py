"""`output` of an agent file: a model, a schema, a file, and the report of each mistake: file, line, key, remedy."""

from __future__ import annotations

import json

import pytest

from chordage import RoomError
from chordage.orchestrator.core.agent import OutputUse
from support.plain_room import agent_faults

MODELS = """
from pydantic import BaseModel, RootModel

class Item(BaseModel):
    price: float

class Order(BaseModel):
    items: list[Item]

class Callback(BaseModel):
    model_config = {"arbitrary_types_allowed": True}
    call: object
    what: type

def plain() -> None: ...
"""
SCHEMA = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}


def fault(folder, text):
    folder.agent(f'model = "m"\n{text}\n')
    with pytest.raises(RoomError) as refusal:
        folder.open().get(None)
    return str(refusal.value)


def import_fault(folder, output):
    folder.agent(f'model = "m"\n\noutput = "{output}"\n')
    room = folder.open()
    with pytest.raises(RoomError) as refusal:
        room.output_of(room.get(None))
    assert agent_faults(folder.path) == [str(refusal.value)]
    return str(refusal.value)


def form_of(folder, text):
    folder.agent(f'model = "m"\n{text}\n')
    room = folder.open()
    return room.output_of(room.get(None))


def test_without_output_any_text_will_do(folder):
    assert form_of(folder, "") is None


def test_a_model_of_the_rooms_own_code(folder):
    folder.write("shop_models.py", MODELS)
    form = form_of(folder, 'output = "shop_models:Order"')
    assert form.name == "model shop_models:Order"
    assert form.problems({"items": [{"price": 1}, {}]}) == ["$.items[1].price: Field required"]


def test_a_model_is_made_into_a_schema_once(folder):
    folder.write("shop_models.py", MODELS)
    folder.agent('model = "m"\noutput = "shop_models:Order"')
    room = folder.open()
    assert room.output_of(room.get(None)) is room.output_of(room.get(None))


def test_a_schema_in_the_file_itself(folder):
    form = form_of(folder, '[output.schema]\ntype = "object"\nrequired = ["n"]')
    assert form.problems({}) == ["$: 'n' is a required property"]
    short = form_of(folder, '[output]\nschema = {type = "integer"}')
    assert short.problems(5) == []


def test_a_schema_in_a_file_beside_it_which_is_read_again_when_it_changes(folder):
    folder.write("schemas/n.json", json.dumps(SCHEMA))
    folder.agent('model = "m"\noutput = "schemas/n.json"')
    room = folder.open()
    assert room.get(None).output == OutputUse(schema=SCHEMA)

    folder.write("schemas/n.json", '{"type": "string"}')

    assert room.get(None).output == OutputUse(schema={"type": "string"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("output = 5", 'agent.toml:2: output: must be a pydantic model as "module:Model"'),
        ('output = "Order"', 'agent.toml:2: output: must be a pydantic model as "module:Model", a JSON Schema'),
        ('output = "shop_models"', "or leave it out; got 'shop_models'"),
        ("[output]", "agent.toml:2: output.schema: is missing; write `schema = ...`, a table"),
        ("[output]\nschema = 'x'", "agent.toml:3: output.schema: must be a table; got 'x'"),
        ("[output]\nschema = {}\nscheme = 1", "agent.toml:4: output.scheme: there is no such key; did you mean schema"),
        ("[output.schema]\nconst = 2026-01-01", "agent.toml:2: output.schema: must hold only what JSON has"),
        ("[output.schema]\nmaximum = inf", "agent.toml:2: output.schema: must hold only what JSON has"),
        (
            '[output.schema]\ntype = "text"',
            "agent.toml:2: output.schema: this is no JSON Schema (draft 2020-12): $.type: 'text' is not valid",
        ),
        (
            '[output]\nschema = {items = {"$ref" = "#/$defs/x"}}',
            "agent.toml:3: output.schema: this is no JSON Schema (draft 2020-12): the reference '#/$defs/x'",
        ),
    ],
)
def test_fault_in_the_agent_file_is_reported_with_its_line(folder, text, says):
    assert says in fault(folder, text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "n.json cannot be read ([Errno 2] No such file or directory"),
        ("{", "n.json is not JSON: Expecting property name"),
        ('{"maximum": NaN}', "n.json is not JSON: NaN is no JSON value"),
        ("[1]", "n.json must hold a JSON Schema, an object; got [1]"),
        ('{"type": 5}', "n.json: this is no JSON Schema (draft 2020-12): $.type: 5 is not valid"),
    ],
)
def test_fault_of_a_schema_file_is_reported(folder, text, says):
    if text is not None:
        folder.write("n.json", text)
    told = fault(folder, 'output = "n.json"')
    assert told.startswith("agent.toml:2: output: ")
    assert says in told


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("nowhere:Order", "there is no module nowhere; there are: shop_models"),
        ("shop_models:Ordre", "module shop_models has no 'Ordre'; did you mean Order?"),
        ("shop_models:plain", "plain is a function and no pydantic model; derive it from pydantic.BaseModel"),
        ("shop_models:BaseModel", "BaseModel is a ModelMetaclass and no pydantic model"),
        ("shop_models:Callback", "Callback cannot be described in JSON Schema: PydanticInvalidForJsonSchema"),
    ],
)
def test_fault_of_a_model_is_reported_at_its_first_use(folder, output, says):
    folder.write("shop_models.py", MODELS)
    told = import_fault(folder, output)
    assert told.startswith(f"agent.toml:3: output: {output!r}: ")
    assert says in told


def test_model_whose_module_raises_is_reported_with_its_line(folder):
    folder.write("broken_models.py", "\n1 / 0\n")
    assert "broken_models.py:2" in import_fault(folder, "broken_models:Order")
