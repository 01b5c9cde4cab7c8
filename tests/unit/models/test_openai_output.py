"""The demand for output on the wire: as response_format where the provider takes it, and in words everywhere."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from chordage.orchestrator.core.model import ToolOffer
from chordage.orchestrator.gateways.models.anthropic import AnthropicWire
from chordage.orchestrator.gateways.models.catalog import ModelCatalog
from chordage.orchestrator.gateways.models.openai import OpenAIWire, response_format
from chordage.orchestrator.gateways.models.providers import BUILTIN, TableProviders
from chordage.orchestrator.gateways.models.wire import Target
from chordage.orchestrator.gateways.output_forms import ModelForm
from support.fake_providers import KEYS, Calm, a_prompt, an_agent, providers_at, serving

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
ADD = ToolOffer(name="add", description="Adds.", schema={"type": "object"})
ABLE = Target(provider="openai", model="m", json_schema=True)


def request_body(schema=NUMBER, target=ABLE, **prompt):
    return OpenAIWire().body(a_prompt("hi", output=schema, **prompt), target, stream=False)


def strict(schema) -> bool:
    return response_format(schema)["response_format"]["json_schema"]["strict"]


def test_a_provider_that_takes_it_is_sent_the_schema_also_beside_tools():
    body = request_body(offers=(ADD,))
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "output", "schema": NUMBER, "strict": True},
    }
    assert [tool["function"]["name"] for tool in body["tools"]] == ["add"]


def test_one_that_does_not_is_not():
    assert "response_format" not in request_body(target=Target(provider="local", model="m"))
    assert "response_format" not in request_body(schema=None)


def test_setting_of_the_agent_wins():
    mine = {"type": "json_object"}
    assert request_body(params={"response_format": mine})["response_format"] == mine
    assert "response_format" not in request_body(params={"openai": {"response_format": None}})


def test_the_other_format_gets_no_response_format():
    body = AnthropicWire().body(a_prompt("hi", output=NUMBER), ABLE, stream=False)
    assert body.keys() == {"model", "max_tokens", "messages", "system"}


@pytest.mark.parametrize("schema", [{"type": "array"}, {"anyOf": [NUMBER]}, {"$ref": "#/$defs/a"}, {}])
def test_a_schema_whose_root_is_no_object_is_not_sent(schema):
    assert response_format(schema) == {}


@pytest.mark.parametrize(
    "changed",
    [
        {"additionalProperties": True},
        {"required": []},
        {"properties": {"n": {"type": "integer", "minimum": 0}}},
        {"properties": {"n": {"type": ["integer", "null"]}}},
        {"properties": {"n": {"type": "array"}}},
        {"properties": {"n": {"$ref": "#/$defs/a", "description": "x"}}},
        {"properties": {"n": {"type": "object"}}},
        {"properties": {"n": {}}},
        {"properties": {"n": True}},
        {"properties": {"n": {"anyOf": [{"type": "integer"}, {"not": {}}]}}},
        {"$defs": {"a": {"type": "string", "pattern": "x"}}},
        {"anyOf": [{"type": "object"}]},
        {"oneOf": []},
    ],
)
def test_a_schema_that_a_strict_reader_might_refuse_is_not_sent_as_strict(changed):
    assert strict({**NUMBER, **changed}) is False


def test_models_that_allow_nothing_else_are_strict():
    class Item(BaseModel):
        """One thing."""

        model_config = {"extra": "forbid"}
        name: str
        price: float | None

    class Order(BaseModel):
        model_config = {"extra": "forbid"}
        items: list[Item]
        best: Item

    class Loose(Order):
        note: str = ""

    assert strict(ModelForm(Order).schema) is True
    assert strict(ModelForm(Loose).schema) is False


def test_room_sets_which_of_its_providers_take_schemas(tmp_path):
    table = {"base_url": "http://127.0.0.1:1/v1", "json_schema": True}
    tables = {"local": table, "plain": {"base_url": "http://127.0.0.1:1/v1"}, "openai": {"json_schema": False}}
    made = TableProviders(lambda: tables, tmp_path)
    assert [made[name].json_schema for name in ("local", "plain", "openai")] == [True, False, False]
    assert (BUILTIN["openai"].json_schema, BUILTIN["anthropic"].json_schema) == (True, False)


@pytest.mark.parametrize(("json_schema", "wire"), [(True, "openai"), (False, "openai"), (True, "anthropic")])
def test_the_request_that_arrives_holds_the_demand(tmp_path, json_schema, wire):
    with serving(tmp_path, "- text: '{\"n\": 7}'") as server:
        catalog = ModelCatalog(providers_at(server.url, json_schema=json_schema), environ=KEYS)
        reply = catalog.complete(an_agent(f"{wire}:m"), a_prompt("hi", output=NUMBER), abort=Calm())
        catalog.close()

    assert reply.text == '{"n": 7}'
    assert ("response_format" in server.requests[0].body) is (json_schema and wire == "openai")
