"""The JSON Schema that a declare becomes, and where its descriptions come from."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from chordage import RoomError, tool
from chordage.orchestrator.gateways.tools import signature


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Dangling(BaseModel):
    inner: Nowhere  # noqa: F821 - the point of it


class Item(BaseModel):
    name: str
    parts: list[Part] = []


@tool
def defined_early(thing: DefinedLate) -> int:
    return thing.size


@tool
def weigh_early(item: Item) -> int:
    return len(item.parts)


class Part(BaseModel):
    size: int


@dataclass
class DefinedLate:
    size: int


def properties(bench, function):
    return bench.spec(function).schema["properties"]


def test_required_and_optional_parameters_are_distinguished(bench):
    @tool
    def search(query: str, limit: int = 5, after: str | None = None) -> str:
        return query

    schema = bench.spec(search).schema
    assert schema["required"] == ["query"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["limit"] == {"type": "integer", "default": 5}
    assert schema["properties"]["after"]["anyOf"] == [{"type": "string"}, {"type": "null"}]


def test_enums_and_literals_become_choices(bench):
    @tool
    def paint(colour: Colour, finish: Literal["matt", "gloss"] = "matt") -> str:
        return colour.name

    schema = bench.spec(paint).schema
    assert schema["$defs"]["Colour"]["enum"] == ["red", "blue"]
    assert schema["properties"]["finish"]["enum"] == ["matt", "gloss"]
    assert bench.call(paint, colour="blue").content == "BLUE"


def test_models_arrive_as_models(bench):
    @tool
    def weigh(item: Item) -> int:
        return sum(part.size for part in item.parts)

    assert bench.call(weigh, item={"name": "x", "parts": [{"size": 2}, {"size": 3}]}).content == "5"


def test_an_annotation_may_name_a_class_further_down(bench):
    assert bench.call(defined_early, thing={"size": 7}).content == "7"


def test_a_model_may_name_a_class_further_down(bench):
    assert bench.spec(weigh_early).schema["$defs"].keys() == {"Item", "Part"}
    assert bench.call(weigh_early, item={"name": "x", "parts": [{"size": 2}]}).content == "1"


def test_a_model_that_names_nothing_is_refused_at_first_use(bench):
    @tool
    def weigh(item: Dangling) -> int:
        return 1

    with pytest.raises(RoomError, match=r"tool weigh .*an annotation cannot be read: .*Nowhere"):
        bench.spec(weigh)


def test_two_parameters_of_one_alias_are_refused():
    with pytest.raises(RoomError, match="two parameters are called 'same' by the model; change one alias"):

        @tool
        def search(one: Annotated[int, Field(alias="same")], same: int) -> int:
            return one


def test_a_field_brings_rules_and_its_own_description(bench):
    @tool
    def search(
        limit: Annotated[int, Field(ge=1, le=9, description="from the field")], page: int = Field(1, gt=0)
    ) -> int:
        """Search.

        Args:
            limit: from the docstring
        """
        return limit + page

    assert properties(bench, search)["limit"]["description"] == "from the field"
    assert properties(bench, search)["page"] == {"type": "integer", "default": 1, "exclusiveMinimum": 0}
    assert bench.call(search, limit=2).content == "3"


def test_an_alias_is_what_the_model_sees(bench):
    @tool
    def search(from_: Annotated[str, Field(alias="from")]) -> str:
        return from_

    assert list(properties(bench, search)) == ["from"]
    assert bench.call(search, **{"from": "here"}).content == "here"


def test_names_that_pydantic_keeps_for_itself_are_fine_parameters(bench):
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        @tool
        def odd(schema: str, _hidden: int, model_config: str, json: bool, copy: float) -> list:
            return [schema, _hidden, model_config, json, copy]

    given = {"schema": "s", "_hidden": 1, "model_config": "m", "json": True, "copy": 0.5}
    assert list(properties(bench, odd)) == list(given)
    assert bench.call(odd, **given).content == '["s",1,"m",true,0.5]'


def test_a_default_that_json_lacks_is_kept_silently(bench):
    marker = object()

    @tool
    def look(at: object = marker) -> bool:
        return at is marker

    assert "default" not in properties(bench, look)["at"]
    assert bench.call(look).content == "true"


STYLES = {
    "google": """
        Search the archive
        for a text.

        Old entries are left out.

        Args:
            query: what to look for,
                in any language: even Latin
            limit (int, optional): how many

        Returns:
            The entries, newest first.

        Raises:
            KeyError: the archive is closed
        """,
    "numpy": """
        Search the archive
        for a text.

        Old entries are left out.

        Parameters
        ----------
        query : str
            what to look for,
            in any language: even Latin
        limit : int, optional
            how many

        Returns
        -------
        list
            The entries, newest first.

        Raises
        ------
        KeyError
            the archive is closed
        """,
    "rest": """
        Search the archive
        for a text.

        Old entries are left out.

        :param query: what to look for,
            in any language: even Latin
        :param int limit: how many
        :returns: The entries, newest first.
        :raises KeyError: the archive is closed
        """,
}


@pytest.mark.parametrize("style", STYLES)
def test_a_docstring_of_any_style_reaches_the_model_whole(bench, style):
    def search(query: str, limit: int = 5) -> str:
        return query

    search.__doc__ = STYLES[style]
    search = tool(search)

    described = bench.spec(search).description
    assert described.startswith("Search the archive\nfor a text.\n\nOld entries are left out.\n")
    assert "The entries, newest first." in described
    assert properties(bench, search)["query"]["description"] == "what to look for, in any language: even Latin"
    assert properties(bench, search)["limit"]["description"] == "how many"


@pytest.mark.parametrize("style", STYLES)
def test_parameters_and_exceptions_leave_the_description(style):
    described = signature.described(STYLES[style])[0]

    assert "Latin" not in described
    assert "archive is closed" not in described


@pytest.mark.parametrize(
    "odd", [": :raises`:raises:raises:raises---xExample: ::", ": :returns \n    \nParameters\n-----\n:"]
)
def test_a_docstring_that_cannot_be_parsed_is_the_description(odd):
    assert signature.described(odd)[0] == odd.strip()


def test_a_function_without_docstring_has_no_description():
    assert signature.described(None) == ("", {})
    assert (
        signature.described("""
        Args:
            query: text
        """)[0]
        == ""
    )
