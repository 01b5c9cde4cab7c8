"""From what a server lists to what the model is offered: chosen, named, and with an effect."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.gateways.mcp.offers import ListedTool, SchemaArguments, offered_name, offers_of
from chordage.orchestrator.gateways.mcp.servers import McpServer, Program
from chordage.orchestrator.gateways.tools.arguments import InvalidArguments

OBJECT = {"type": "object", "properties": {"n": {"type": "integer"}}}


def server(**said):
    return McpServer(name="kit", address=Program(command="x"), place="agent.toml:3: mcp.kit", **said)


def listed(*names, schema=OBJECT, **hints):
    return [ListedTool(name=name, schema=schema, **hints) for name in names]


def names(*tools, **said):
    return list(offers_of(server(**said), listed(*tools)).by_name)


def test_everything_is_offered_by_default():
    assert names("read", "write") == ["kit_read", "kit_write"]
    assert names("read_file", "read_dir", "write", only=("read_*",)) == ["kit_read_file", "kit_read_dir"]
    assert names("read_file", "read_all", without=("*_all",)) == ["kit_read_file"]
    assert names("read_file", "read_all", only=("read_*",), without=("read_all",)) == ["kit_read_file"]


@given(st.text(min_size=1, max_size=200))
def test_every_name_is_one_that_providers_take(tool):
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", offered_name("kit", tool))
    assert offered_name("kit", tool).startswith("kit_")


def test_long_names_that_begin_alike_stay_two():
    one, other = offered_name("kit", "a" * 80 + "1"), offered_name("kit", "a" * 80 + "2")

    assert one != other
    assert len(one) == len(other) == 64


def test_two_tools_of_one_name_are_reported():
    with pytest.raises(RoomError) as refusal:
        offers_of(server(), listed("a.b", "a/b"))

    assert str(refusal.value) == (
        "agent.toml:3: mcp.kit: tools 'a.b' and 'a/b' would both be called kit_a_b; "
        'leave one of them out with except = ["a/b"]'
    )


def test_selected_but_missing_tool_is_reported_with_its_neighbour():
    with pytest.raises(RoomError, match=r"mcp.kit.tools: the server has no tool 'serch'; did you mean search\?"):
        offers_of(server(only=("serch",)), listed("search", "other"))
    with pytest.raises(RoomError, match=r"the server has no tool 'x'; it has none"):
        offers_of(server(only=("x",)), [])


def test_setting_without_effect_is_reported():
    said = offers_of(server(without=("delete",), effects=(("list", Effect.PURE),)), listed("deleet")).remarks

    assert said == (
        "except names 'delete', and the server has no such tool; did you mean deleet?",
        "effects names 'list', and the server has no such tool; it has: deleet",
    )


@pytest.mark.parametrize(
    ("hints", "said", "effect"),
    [
        ({}, {}, Effect.UNSAFE),
        ({"read_only": True}, {}, Effect.PURE),
        ({"read_only": False, "idempotent": True}, {}, Effect.IDEMPOTENT),
        ({"read_only": True}, {"effect": Effect.UNSAFE}, Effect.UNSAFE),
        ({}, {"effect": Effect.PURE}, Effect.PURE),
        ({"read_only": True}, {"effects": (("t", Effect.IDEMPOTENT),)}, Effect.IDEMPOTENT),
        ({}, {"effect": Effect.PURE, "effects": (("t", Effect.UNSAFE),)}, Effect.UNSAFE),
    ],
)
def test_file_takes_precedence_over_the_server(hints, said, effect):
    assert offers_of(server(**said), listed("t", **hints)).by_name["kit_t"].effect is effect


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "array"}, "its arguments are no object but 'array'"),
        ({"type": "object", "properties": {"n": {"type": "wholenumber"}}}, "its schema is none: 'wholenumber' is not"),
    ],
)
def test_a_tool_no_provider_would_take_is_left_out_and_the_others_stay(schema, why):
    found = offers_of(server(), [*listed("bad", schema=schema), *listed("good")])

    assert list(found.by_name) == ["kit_good"]
    assert f"tool 'bad' is left out: {why}" in found.remarks[0]


def test_empty_schema_becomes_one_that_providers_take():
    assert offers_of(server(), listed("t", schema={})).by_name["kit_t"].schema == {"type": "object", "properties": {}}


# arguments


def test_arguments_that_fit_are_handed_on_as_they_came():
    assert SchemaArguments(OBJECT).fit({"n": 1, "more": None}) == {"arguments": {"n": 1, "more": None}}
    assert SchemaArguments(None).fit({"anything": 1}) == {"arguments": {"anything": 1}}


def test_what_does_not_fit_is_listed_line_by_line():
    schema = {"type": "object", "properties": {"at": {"type": "object", "properties": OBJECT["properties"]}}}

    with pytest.raises(InvalidArguments) as refusal:
        SchemaArguments({**schema, "required": ["b"]}).fit({"at": {"n": "x"}})

    assert sorted(str(refusal.value).splitlines()) == [
        "- 'b' is a required property",
        "- at.n: 'x' is not of type 'integer'",
    ]


def test_of_very_many_complaints_some_are_reported():
    schema = {"type": "object", "properties": {"all": {"type": "array", "items": {"type": "string"}}}}

    with pytest.raises(InvalidArguments) as refusal:
        SchemaArguments(schema).fit({"all": list(range(50)), "x": "y" * 9000})

    lines = str(refusal.value).splitlines()
    assert len(lines) == 21
    assert lines[-1] == "- and 30 more"


def test_a_reference_to_elsewhere_is_not_followed():
    elsewhere = {"type": "object", "properties": {"n": {"$ref": "http://169.254.169.254/schema"}}}

    assert SchemaArguments(elsewhere).fit({"n": 1}) == {"arguments": {"n": 1}}


def test_a_pattern_that_is_left_to_the_server_is_remarked_and_the_tool_stays():
    schema = {"type": "object", "properties": {"n": {"pattern": "(?=a)b"}, "m": {"pattern": "^a$"}}}

    found = offers_of(server(), [ListedTool(name="look", schema=schema)])

    assert len(found.by_name) == 1
    assert [remark for remark in found.remarks if "'(?=a)b' is not checked here, only by the server" in remark]


@pytest.mark.parametrize(
    ("schema", "why"),
    [({"enum": ["x" * 300_000]}, "its schema has 3000"), ({"not": {}}, "its schema is too deep")],
)
def test_a_schema_over_the_bounds_leaves_its_tool_out(schema, why):
    for _ in range(150 if "not" in schema else 0):
        schema = {"not": schema}

    found = offers_of(server(), [ListedTool(name="look", schema={"type": "object", "properties": {"n": schema}})])

    assert found.by_name == {}
    assert any(why in remark for remark in found.remarks)


@pytest.mark.parametrize("pattern", ["(", "a{99999999999}", "(" * 5000 + ")" * 5000])
def test_a_pattern_that_no_engine_reads_leaves_its_tool_out(pattern):
    schema = {"type": "object", "properties": {"n": {"pattern": pattern}}}

    found = offers_of(server(), [ListedTool(name="look", schema=schema)])

    assert found.by_name == {}
    assert any("is no regular expression" in remark for remark in found.remarks)


def test_a_pattern_that_only_the_linear_engine_reads_is_checked():
    schema = {"type": "object", "properties": {"n": {"pattern": r"^\p{L}+$"}}}

    found = offers_of(server(), [ListedTool(name="look", schema=schema)])

    assert (len(found.by_name), found.remarks) == (1, ())
    with pytest.raises(InvalidArguments):
        SchemaArguments(schema).fit({"n": "1"})
