"""The scripted server: what it sends is what real adapters read, what it got can be looked at."""

from __future__ import annotations

import json

import pytest

from chordage.orchestrator.core.errors import ModelFailed, RoomError
from chordage.orchestrator.core.model import AssistantSays, ToolSays
from chordage.orchestrator.gateways.models.catalog import ModelCatalog
from support import scripted_server
from support.fake_providers import WIRES, Calm, a_prompt, a_script, an_agent, catalog_at, serving

ROUNDS = """
- text: Adding.
  tool_calls: [{name: add, arguments: {a: 1}}, {name: add, arguments: {a: 2}}]
- text: "It is {results}, {user}. ({turn})"
"""


def two_rounds(complete):
    first = complete(a_prompt("Ann"))
    results = tuple(ToolSays(ask_id=ask.id, name=ask.name, content=str(n)) for n, ask in enumerate(first.asks))
    return first, complete(a_prompt("Ann", AssistantSays(text=first.text, asks=first.asks), *results))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("wire", WIRES)
def test_script_has_the_same_replies_over_http_as_in_the_process(tmp_path, wire, stream):
    agent = an_agent(f"{wire}:m", stream=stream)
    with serving(tmp_path, ROUNDS) as server, catalog_at(server.url) as remote:
        over_http = two_rounds(lambda prompt: remote.complete(agent, prompt, abort=Calm()))
    local = ModelCatalog(environ={}, scripts=tmp_path)
    script = an_agent("scripted:script.yaml")
    inside = two_rounds(lambda prompt: local.complete(script, prompt, abort=Calm()))
    assert over_http[1].text == "It is 0\n1, Ann. (1)"
    for one, other in zip(over_http, inside, strict=True):
        assert (one.text, one.asks, one.stop, one.usage) == (other.text, other.asks, other.stop, other.usage)


def test_requests_are_counted_and_kept_in_memory_and_in_a_file(tmp_path):
    log = tmp_path / "requests.jsonl"
    server = scripted_server.serve(a_script(tmp_path, "[hello]"), log=log)
    with catalog_at(server.url) as catalog:
        for text in ("one", "two"):
            catalog.complete(an_agent("anthropic:m"), a_prompt(text), abort=Calm())
    server.close()
    assert server.calls == 2
    assert [one.body["messages"][0]["content"][0]["text"] for one in server.requests] == ["one", "two"]
    assert server.requests[0].headers["x-api-key"] == "sk-two"
    assert [json.loads(line) for line in log.read_text().splitlines()] == [one.body for one in server.requests]


def test_a_broken_script_is_not_served(tmp_path):
    with pytest.raises(RoomError, match=r"script\.yaml:1: 'txt' is unknown"):
        scripted_server.serve(a_script(tmp_path, "[{txt: a}]"))


def test_a_script_that_runs_out_refuses_with_its_reason(tmp_path):
    script, words = "[{when: never, text: a}]", "rejected .*the script has no reply number 1"
    with (
        serving(tmp_path, script) as server,
        catalog_at(server.url) as catalog,
        pytest.raises(ModelFailed, match=words),
    ):
        catalog.complete(an_agent("openai:m"), a_prompt("hi"), abort=Calm())


def test_a_client_that_does_not_count_its_attempts_is_counted_by_what_it_sends(tmp_path):
    with serving(tmp_path, "[hello]") as server:
        attempts = [server.record("/v1/messages", {}, body) for body in (b"{}", b'{"a": 1}', b"{}")]
        assert attempts == [1, 1, 2]
        assert server.record("/v1/messages", {"x-retry-count": "4"}, b"{}") == 5


def test_a_server_closes_while_calls_hang_in_it(tmp_path):
    with serving(tmp_path, "[{fail: timeout}]") as server, catalog_at(server.url) as catalog:
        with pytest.raises(ModelFailed, match="timeout"):
            catalog.complete(an_agent("openai:m", model_timeout=0.2), a_prompt("hi"), abort=Calm())
        server.close()
        assert server.closing.is_set()
