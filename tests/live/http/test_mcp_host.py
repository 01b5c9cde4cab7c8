"""A host of the package `mcp` speaks with agents: a conversation, a call of a tool, and what a person decides."""

from __future__ import annotations

import anyio
import httpx
import pytest

from chordage.config.settings import load
from chordage.orchestrator import views
from chordage.orchestrator.api.limits import StreamSlots
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.faces.mcp import is_settled
from support import asking_room, client_room
from support.waiting import PATIENCE, until
from support.working_server import streaming, working_server

pytestmark = pytest.mark.mcp

types = pytest.importorskip("mcp_types", reason="platform: the package mcp is an extra")
MODES = ("auto", "legacy")  # of the protocol: since 2026-07-28, and before


@pytest.fixture
def server(tmp_path, migrated_database_url):
    room = asking_room.write(tmp_path / "room")
    with (room / "script.yaml").open("a") as script:  # after each decision the agent says how far it is
        script.write('- {when: send, text: "It came to this: {results}"}\n')
    (room / "agents").mkdir()
    (room / "agents" / "bob-2.toml").write_text('name = "bob-2"\nmodel = "scripted:script.yaml"\n')
    with working_server(load(room=room, database_url=migrated_database_url("sqlite"))) as server:
        yield server


def as_host(server, work, *, mode="auto", **options):
    """What `work(client)` returns."""
    from mcp import Client

    async def run():
        async with Client(f"{server.url}/mcp", mode=mode, **options) as client:
            return await work(client)

    return anyio.run(run)


def call(name, **arguments):
    return lambda client: client.call_tool(name, arguments)


def text(result):
    return result.content[0].text


async def tools(client):
    return {tool.name: tool for tool in (await client.list_tools()).tools}


@pytest.mark.parametrize("mode", MODES)
def test_each_agent_is_a_tool(server, mode):
    offered = as_host(server, tools, mode=mode)

    assert set(offered) == {"ask_ada", "ask_bob-2", "turn_status", "turn_answer"}
    assert offered["ask_ada"].input_schema["required"] == ["message"]
    assert offered["turn_status"].annotations.read_only_hint
    assert offered["turn_answer"].annotations.destructive_hint
    assert "RUNS AT ONCE" in offered["turn_answer"].description


@pytest.mark.parametrize("mode", MODES)
def test_a_conversation_with_a_tool_call_and_an_approval(server, mode):
    async def talk(client):
        asked = await client.call_tool("ask_ada", {"message": "send it", "thread": "talk"})
        first, second = sorted(asked.structured_content["questions"], key=lambda one: one["arguments"]["to"])
        turn = asked.structured_content["turn"]
        still = await client.call_tool(
            "turn_answer", {"turn": turn, "question": first["question"], "decision": "approve"}
        )
        done = await client.call_tool(
            "turn_answer", {"turn": turn, "question": second["question"], "decision": "deny", "reason": "not eve"}
        )
        more = await client.call_tool("ask_ada", {"message": "deploy", "thread": asked.structured_content["thread"]})
        return asked, still, done, more

    asked, still, done, more = as_host(server, talk, mode=mode)

    assert 'send {"to": "bob"} (May bob be written to?)' in text(asked)
    assert (asked.structured_content["status"], asked.is_error) == ("waiting", False)
    assert [one["arguments"] for one in still.structured_content["questions"]] == [{"to": "eve"}]
    assert "not eve" in text(done)
    assert done.structured_content["status"] == "answered"
    assert more.structured_content["thread"] == done.structured_content["thread"]
    assert "fits this schema" in text(more)


def test_work_that_takes_longer_than_the_host_waits_is_read_later(server):
    server.pause_work()
    queued = as_host(server, call("ask_bob-2", message="hello", wait=0))
    turn = queued.structured_content["turn"]
    assert queued.structured_content["status"] == "queued"
    assert f"Turn {turn} has not started" in text(queued)

    server.work()
    done = as_host(server, call("turn_status", turn=turn))
    assert done.structured_content["status"] in {"answered", "failed"}


def test_a_host_that_can_ask_its_person_does_so_before_anything_runs(server):
    seen = []

    async def person(_context, params):
        seen.append(params.message)
        decision = "approve" if "bob" in params.message else "deny"
        return types.ElicitResult(action="accept", content={"decision": decision, "reason": "no"})

    done = as_host(server, call("ask_ada", message="send it"), elicitation_callback=person)

    assert sorted(seen) == [
        'May this run? send {"to": "bob"} (May bob be written to?)',
        'May this run? send {"to": "eve"} (May eve be written to?)',
    ]
    assert "sent to bob" in text(done)
    assert "sent to eve" not in text(done)


@pytest.mark.parametrize("choice", ["approve", "deny"])
def test_what_a_model_passes_on_is_confirmed_by_the_person(server, choice):
    seen = []

    async def person(_context, params):
        seen.append(params.message)
        return types.ElicitResult(action="accept", content={"decision": choice})

    async def talk(client):
        asked = await client.call_tool("ask_ada", {"message": "deploy"})
        question = asked.structured_content["questions"][0]["question"]
        arguments = {"turn": asked.structured_content["turn"], "question": question, "payload": {"ok": True}}
        return await client.call_tool("turn_answer", {**arguments, "decision": "approve"})

    done = as_host(server, talk, elicitation_callback=person)
    assert seen == [
        'May this run? deploy {"env": "prod"} (May prod be\ndeployed to?) The answer would be {"ok": true}.'
    ]
    assert ("deployed to prod" in text(done)) == (choice == "approve")


def test_a_person_who_gives_no_answer_leaves_the_question_open(server):
    async def person(_context, _params):
        return types.ElicitResult(action="cancel")

    asked = as_host(server, call("ask_ada", message="send it"), elicitation_callback=person)
    assert len(asked.structured_content["questions"]) == 2
    assert len(waiting(server, asked.structured_content["turn"])) == 2


def waiting(server, turn):
    return as_host(server, call("turn_status", turn=turn)).structured_content["questions"]


def test_a_key_that_may_not_decide_is_not_offered_to_and_cannot(server):
    asked = as_host(server, call("ask_ada", message="send it")).structured_content
    server.be(scopes=frozenset({KeyScope.SUBMIT, KeyScope.READ, KeyScope.PAYLOADS}))
    question = asked["questions"][0]["question"]

    async def person(_context, _params):
        raise AssertionError("the key may not decide")

    assert "turn_answer" not in as_host(server, tools)
    refused = as_host(server, call("turn_answer", turn=asked["turn"], question=question, decision="approve"))
    assert (refused.is_error, "decide" in text(refused)) == (True, True)

    async def forged(client):
        answers = {question: types.ElicitResult(action="accept", content={"decision": "approve"})}
        return await client.session.call_tool(
            "ask_ada", {"message": "x"}, input_responses=answers, request_state=asked["turn"], allow_input_required=True
        )

    refused = as_host(server, forged, elicitation_callback=person)
    assert (refused.is_error, "decide" in text(refused)) == (True, True)
    assert len(waiting(server, asked["turn"])) == 2


def test_a_key_sees_only_its_own_turns_and_agents(server):
    asked = as_host(server, call("ask_ada", message="send it")).structured_content
    server.be(tenant="other", agents=frozenset({"bob-2"}))

    assert set(as_host(server, tools)) == {"ask_bob-2", "turn_status", "turn_answer"}
    for refused in (
        as_host(server, call("turn_status", turn=asked["turn"])),
        as_host(server, call("turn_answer", turn=asked["turn"], question="q", decision="deny")),
        as_host(server, call("ask_ada", message="hello")),
    ):
        assert refused.is_error
        assert "there is no" in text(refused)


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("ask_ada", {}, "message: is missing"),
        ("ask_ada", {"message": "x", "wait": 900}, "wait: Input should be less than or equal to 45"),
        ("ask_ada", {"message": " "}, "text"),
        ("ask_nobody", {"message": "x"}, "there is no tool 'ask_nobody'; there are: ask_ada"),
        ("turn_status", {"turn": "nope"}, "there is no turn 'nope'"),
    ],
)
def test_a_wrong_call_is_an_error_that_the_model_can_read(server, tool, arguments, words):
    refused = as_host(server, call(tool, **arguments))
    assert refused.is_error
    assert words in text(refused)


@pytest.mark.redis
def test_a_host_is_told_what_the_agent_does(tmp_path, migrated_database_url, redis_url):
    room = client_room.write(tmp_path / "room")
    settings = load(room=room, database_url=migrated_database_url("sqlite"), redis_url=redis_url)
    news = []

    async def note(_progress, _total, message):
        news.append(message)

    async def ask(client):
        return await client.call_tool("ask_ada", {"message": "add these"}, progress_callback=note)

    with working_server(settings, streaming(settings)) as server:
        done = as_host(server, ask)

    assert text(done) == "Sums: 3\n34"
    assert news == ["thinking", "calls add, add", "thinking"]


class LateStreams:
    """Show a turn once more as it was before its decision. The fleet works when a turn is read as it is."""

    def __init__(self, rt):
        self.rt = rt
        self.before = None
        self.work = lambda: None

    async def follow(self, turn_id, **_more):
        before, self.before = self.before, None
        if before is not None:
            yield before
            return
        self.work()
        moment = await anyio.to_thread.run_sync(self._settled, turn_id)
        self.before = moment
        yield moment

    def _settled(self, turn_id):
        from chordage.orchestrator.api.mcp_server import moment_of

        def look():
            return moment_of(views.turn(self.rt.store, turn_id))

        until(lambda: is_settled(look()), "the turn waits or has ended", pause=0.01)
        return look()


def test_a_host_that_has_decided_waits_for_what_comes_of_it(tmp_path, migrated_database_url):
    settings = load(room=asking_room.write(tmp_path / "room"), database_url=migrated_database_url("sqlite"))
    made = []

    async def talk(client):
        asked = await client.call_tool("ask_ada", {"message": "deploy"})
        state = asked.structured_content
        server.pause_work()
        arguments = {"turn": state["turn"], "question": state["questions"][0]["question"], "payload": {"ok": True}}
        return await client.call_tool("turn_answer", {**arguments, "decision": "approve"})

    with working_server(settings, lambda rt: {"streams": made.append(LateStreams(rt)) or made[0]}) as server:
        made[0].work = server.work
        done = as_host(server, talk)

    assert done.structured_content["status"] == "answered"


def test_a_host_whose_key_has_no_stream_left_is_answered_at_once(tmp_path, migrated_database_url):
    room = asking_room.write(tmp_path / "room")
    settings = load(room=room, database_url=migrated_database_url("sqlite"))
    with working_server(settings, lambda _rt: {"stream_slots": StreamSlots(0)}) as server:
        server.be(id="some-key")
        server.pause_work()
        asked = as_host(server, call("ask_ada", message="send it"))
    assert asked.structured_content["status"] == "queued"


def test_a_key_of_a_group_or_an_agent_is_for_nothing_else(server):
    server.be(groups=frozenset({Group.CHORE}))
    refused = as_host(server, call("ask_ada", message="hello"))
    assert (refused.is_error, "may not use group" in text(refused)) == (True, True)


def test_a_request_without_a_valid_key_is_refused_before_the_protocol(tmp_path, migrated_database_url):
    from chordage.orchestrator.core.errors import Unauthenticated
    from support.web_server import raising, served, server_with

    with served(server_with(authenticate=raising(Unauthenticated("give a key")))) as client:
        response = client.post("/mcp", json={})

    assert (response.status_code, response.json()["type"]) == (401, "urn:chordage:problem:unauthenticated")
    assert response.headers["www-authenticate"].startswith("Bearer")


def test_what_is_no_request_of_the_protocol_is_refused_by_it(server):
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        response = client.post("/mcp", json={"hello": 1}, headers={"Accept": "application/json, text/event-stream"})
        assert response.status_code == 400
        assert client.get("/mcp").status_code == 405


@pytest.mark.parametrize("tool", ["turn_status", "turn_answer"])
def test_what_cannot_be_a_turn_is_not_looked_for(server, tool):
    arguments = {"turn": "a\0b"} | ({"question": "q", "decision": "deny"} if tool == "turn_answer" else {})

    result = as_host(server, call(tool, **arguments))

    assert result.is_error
    assert text(result) == "there is no turn 'a\\x00b'"


def test_a_fault_of_the_server_is_not_told_to_the_host(server, monkeypatch):
    def fail(*_about, **_more):
        raise RuntimeError("SELECT secret FROM turns")

    monkeypatch.setattr("chordage.orchestrator.api.mcp_server._check_turn_id", fail)

    result = as_host(server, call("turn_status", turn="t"))

    assert result.is_error
    assert text(result) == "The server failed; its log says why. The cause is not shown here."
