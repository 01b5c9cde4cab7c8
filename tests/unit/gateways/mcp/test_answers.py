"""What a server answers, as a model reads it."""

from __future__ import annotations

from mcp.types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from chordage.orchestrator.gateways.mcp.session import text_of, value_of


def text(words):
    return TextContent(type="text", text=words)


def result(*blocks, **more):
    return CallToolResult(content=list(blocks), **more)


def test_texts_are_joined():
    assert value_of(result(text("one"), text("two"))) == "one\ntwo"


def test_an_answer_that_holds_nothing_is_none():
    assert value_of(result()) is None


def test_what_is_structured_and_told_as_text_too_is_told_once():
    assert value_of(result(text('{"a": 1}'), structured_content={"a": 1})) == '{"a": 1}'
    assert value_of(result(text("3"), structured_content={"result": 3})) == "3"
    assert value_of(result(text("words"), structured_content={"result": "words"})) == "words"


def test_what_is_structured_alone_is_the_answer():
    assert value_of(result(structured_content={"a": 1})) == {"a": 1}


def test_what_is_structured_and_told_otherwise_is_told_both_ways():
    assert value_of(result(text("three issues"), structured_content={"issues": [1, 2, 3]})) == {
        "content": "three issues",
        "structured": {"issues": [1, 2, 3]},
    }


def test_files_links_and_sounds_are_told_as_what_they_are():
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
