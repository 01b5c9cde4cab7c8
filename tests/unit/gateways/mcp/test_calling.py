"""A server of the package `mcp`, over both transports: its tools are listed, called, and what comes back is read."""

from __future__ import annotations

import json

from mcp.types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.gateways.mcp.link import ServerState
from chordage.orchestrator.gateways.mcp.session import text_of, value_of


def test_tools_are_offered_under_the_name_of_the_server(kit):
    specs = kit.specs()

    assert {"kit_add", "kit_weather", "kit_linger_long"} <= set(specs)
    add = specs["kit_add"]
    assert add.description == "The sum of two numbers."
    assert add.schema["required"] == ["a", "b"]
    assert add.result_limit == 65_536


def test_effects_follow_the_annotations(kit):
    effects = {name: spec.effect for name, spec in kit.specs().items()}

    assert effects["kit_add"] is Effect.PURE
    assert effects["kit_pid"] is Effect.IDEMPOTENT
    assert effects["kit_fail"] is Effect.UNSAFE


def test_a_result_is_read(kit):
    assert kit.call("kit_add", a=1, b=2).content == "3"


def test_structured_result_is_returned_once(kit):
    assert json.loads(kit.call("kit_weather", city="Rome").content) == {"city": "Rome", "degrees": 21}


def test_image_is_described_by_its_type(kit):
    assert json.loads(kit.call("kit_picture").content) == [
        {"type": "text", "text": "a cat"},
        {"type": "image", "mime_type": "image/png", "bytes": 300, "note": "the bytes are left out"},
    ]


def test_failing_tool_gives_a_tool_error_with_its_message(kit):
    outcome = kit.call("kit_fail")

    assert (outcome.code, outcome.content) == ("mcp_tool_error", "ToolError: Error executing tool fail: no luck today")


def test_missing_tool_gives_a_tool_error_that_names_the_nearest(kit):
    outcome = kit.call("kit_ad", a=1, b=2)

    assert outcome.code == "unknown_tool"
    assert "There is no tool 'kit_ad'. Did you mean kit_add?" in outcome.content


def test_arguments_that_do_not_fit_never_reach_the_server(kit):
    outcome = kit.call("kit_add", a="one")

    assert outcome.code == "invalid_arguments"
    assert "- a: 'one' is not of type 'integer'" in outcome.content
    assert "- 'b' is a required property" in outcome.content


def test_progress_of_the_server_is_passed_on(kit):
    assert kit.call("kit_steps").content == "done"

    assert kit.notes[-1] == "25% one of four"


def test_the_idempotency_key_goes_along(kit):
    assert kit.call("kit_key").content == "key-1"


def test_one_connection_serves_all_calls(kit):
    assert kit.call("kit_pid").content == kit.call("kit_pid").content

    health = kit.health()
    assert health.state is ServerState.CONNECTED
    assert (health.connections, health.version, health.error) == (1, "kit 7", None)


def test_a_name_that_no_provider_takes_is_made_one(kit):
    (kit.folder / "gate").touch()

    assert kit.call("kit_linger_long").content == "the gate is open"


def test_server_that_announces_new_tools_is_listed_again(make_kit):
    kit = make_kit()
    assert "kit_late_add" not in kit.specs()

    kit.call("kit_grow")

    assert kit.call("kit_late_add", a=2, b=2).content == "4"
    assert "kit_late_add" in kit.specs()


def test_agent_toml_selects_and_describes_tools(make_kit):
    kit = make_kit("old", 'tools = ["a*", "die"]\neffect = "unsafe"\nresult_limit = 1\n[mcp.kit.effects]\ndie = "pure"')

    specs = kit.specs()

    assert {name: spec.effect for name, spec in specs.items()} == {"kit_add": Effect.UNSAFE, "kit_die": Effect.PURE}
    assert kit.call("kit_add", a=10, b=1).full == "11"
    assert kit.call("kit_pid").code == "unknown_tool"


def text(words):
    return TextContent(type="text", text=words)


def result(*blocks, **more):
    return CallToolResult(content=list(blocks), **more)


def test_texts_are_joined():
    assert value_of(result(text("one"), text("two"))) == "one\ntwo"


def test_an_answer_that_holds_nothing_is_none():
    assert value_of(result()) is None


def test_structured_result_with_equal_text_is_returned_once():
    assert value_of(result(text('{"a": 1}'), structured_content={"a": 1})) == '{"a": 1}'
    assert value_of(result(text("3"), structured_content={"result": 3})) == "3"
    assert value_of(result(text("words"), structured_content={"result": "words"})) == "words"


def test_what_is_structured_alone_is_the_answer():
    assert value_of(result(structured_content={"a": 1})) == {"a": 1}


def test_structured_result_with_other_text_is_returned_both_ways():
    assert value_of(result(text("three issues"), structured_content={"issues": [1, 2, 3]})) == {
        "content": "three issues",
        "structured": {"issues": [1, 2, 3]},
    }


def test_files_links_and_sounds_are_described_by_their_types():
    link = ResourceLink(type="resource_link", uri="file:///a.txt", name="a.txt", mime_type="text/plain")
    inline = TextResourceContents(uri="file:///b.txt", text="inside")
    blob = BlobResourceContents(uri="file:///c.bin", blob="AAAA")

    assert value_of(
        result(
            link,
            EmbeddedResource(type="resource", resource=inline),
            EmbeddedResource(type="resource", resource=blob),
            AudioContent(type="audio", data="AAA=", mime_type="audio/wav"),
        )
    ) == [
        {"type": "link", "uri": "file:///a.txt", "name": "a.txt", "mime_type": "text/plain"},
        {"type": "file", "uri": "file:///b.txt", "text": "inside"},
        {"type": "file", "uri": "file:///c.bin", "bytes": 3, "note": "the bytes are left out"},
        {"type": "audio", "mime_type": "audio/wav", "bytes": 2, "note": "the bytes are left out"},
    ]


def test_an_error_is_a_text_in_any_case():
    assert text_of(result(text("no"), is_error=True)) == "no"
    assert text_of(result(is_error=True)) == "it does not say what went wrong"
    assert text_of(result(structured_content={"code": 7}, is_error=True)) == '{"code": 7}'
