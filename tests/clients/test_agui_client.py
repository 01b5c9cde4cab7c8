"""The unchanged AG-UI clients, 1.0 and 0.0.59: their reducers end with the conversation that is on record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from chordage.config.settings import load
from chordage.orchestrator import views
from chordage.orchestrator.faces.moments import Replied, StepStarted, TextGrown
from chordage.workers.bootstrap import runtime_from
from support import agui_order
from support.face_server import RecordedStreams, server_of, write_room
from support.moments import Script, any_script, reasoned, transcript
from support.node_clients import play
from support.web_server import served

CLIENTS = ("agui10", "agui0")
SEEDS = range(60)


@pytest.fixture
def rt(tmp_path, migrated_database_url):
    room = write_room(tmp_path / "room")
    runtime = runtime_from(load(room=room, database_url=migrated_database_url("sqlite")), with_redis=False)
    yield runtime
    runtime.store.close()


@pytest.fixture
def streams(rt) -> RecordedStreams:
    return RecordedStreams(rt=rt)


@pytest.fixture
def url(rt, streams) -> Iterator[str]:
    with served(server_of(rt, streams)) as client:
        yield f"{client.base_url}/agui/ada"


@pytest.fixture(params=CLIENTS)
def chat(request, url) -> Any:
    def with_client(*steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
        task = {"url": url, "client": request.param, "chats": [{"thread": "t1", "steps": steps, **fields}]}
        return play("agui.mjs", task)[0]

    with_client.is_old = request.param == "agui0"
    with_client.name = request.param
    return with_client


def spoken(chat: dict[str, Any]) -> list[dict[str, Any]]:
    return agui_order.said(message for message in chat["messages"] if message["role"] != "activity")


def on_record(rt, thread_id="api:t1") -> list[dict[str, Any]]:
    """In the form of `support.moments.transcript`."""
    said: list[dict[str, Any]] = []
    for remark in views.history(rt.store, thread_id):
        if remark.role == "user":
            said.append({"role": "user", "text": remark.text})
            continue
        calls = [{"id": call.id, "tool": call.tool, "arguments": call.arguments} for call in remark.calls]
        said.append({"role": "assistant", "text": remark.text, "calls": calls})
        said += [
            {"role": "tool", "call": call.id, "text": call.content} for call in remark.calls if call.content is not None
        ]
    return said


def in_any_order(said: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results of one round are sorted: they came as they were ready."""
    ordered: list[dict[str, Any]] = []
    for one in said:
        place = len(ordered)
        while (
            one["role"] == "tool" and ordered[place - 1]["role"] == "tool" and ordered[place - 1]["call"] > one["call"]
        ):
            place -= 1
        ordered.insert(place, one)
    return ordered


def test_conversation_with_parallel_calls_and_an_approval(chat, rt):
    result = chat({"text": "write to bob"}, {"answer": {"approved": True}}, {"text": "thanks"})

    first, second, third = result["runs"]
    assert [run.get("error") for run in result["runs"]] == [None, None, None]
    assert (first["outcome"], second["outcome"], third["outcome"]) == ("interrupt", "success", "success")
    assert [interrupt["message"] for interrupt in first["interrupts"]] == ["May bob be written to?"]
    assert first["interrupts"][0]["metadata"]["chordage"]["arguments"] == {"to": "bob"}
    assert second["interrupts"] == third["interrupts"] == []
    assert in_any_order(spoken(result)) == in_any_order(on_record(rt))
    assert spoken(result)[-1]["text"] == "You said: thanks"
    assert len([event for event in second["events"] if event["type"] == "TOOL_CALL_START"]) == 0


PICK = {
    "name": "pick",
    "description": "Have the person pick one.",
    "parameters": {"type": "object", "properties": {"of": {"type": "array"}}, "required": ["of"]},
}


def test_frontend_tool(chat, rt):
    result = chat({"text": "choose"}, {"result": "red"}, {"text": "thanks"}, tools=[PICK])

    first, second, _ = result["runs"]
    pending = [call["id"] for one in result["messages"] for call in one.get("toolCalls", ())][1:]
    assert [run.get("error") for run in result["runs"]] == [None, None, None]
    assert [run["outcome"] for run in result["runs"]] == ["success"] * 3
    finished = first["events"][-1]["outcome"]
    assert finished == ({"type": "success"} if chat.is_old else {"type": "success", "pendingToolCallIds": pending})
    assert [event for event in second["events"] if event["type"] in {"TOOL_CALL_START", "TOOL_CALL_RESULT"}] == []
    assert in_any_order(spoken(result)) == in_any_order(on_record(rt))
    assert [one["text"] for one in spoken(result) if one["role"] == "assistant"][1].startswith("So it is: 3")


def test_frontend_tool_beside_an_approval(chat, rt):
    result = chat({"text": "everything"}, {"answer": {"approved": True}, "result": "red"}, tools=[PICK])

    assert [run.get("error") for run in result["runs"]] == [None, None]
    assert [run["outcome"] for run in result["runs"]] == ["interrupt", "success"]
    assert len(result["runs"][0]["interrupts"]) == 1
    assert in_any_order(spoken(result)) == in_any_order(on_record(rt))


def test_call_that_is_cancelled_is_denied(chat, rt):
    result = chat({"text": "write to bob"}, {"cancel": True})

    assert result["runs"][1]["outcome"] == "success"
    assert in_any_order(spoken(result)) == in_any_order(on_record(rt))
    assert any("denied" in one["text"] for one in spoken(result) if one["role"] == "tool")


def test_text_of_a_dead_worker_is_not_in_the_conversation(chat, streams):
    script = Script().started().replied("The whole.", dropped="The who").ended()
    streams.scripts["reset"] = lambda: script.moments
    result = chat({"text": "reset"})

    assert result["runs"][0].get("error") is None
    assert spoken(result)[1:] == transcript(script.moments)


def test_cancelled_turn(chat, streams):
    script = Script().started().replied("So far.").ended("cancelled", "cancelled", detail="stopped by bob")
    streams.scripts["cancel"] = lambda: script.moments
    (run,) = chat({"text": "cancel"})["runs"]

    if chat.is_old:
        assert (run["code"], run["message"]) == ("cancelled", "stopped by bob")
    else:
        assert run["outcome"] == "cancelled"


def test_failed_turn(chat, rt):
    (run,) = chat({"text": "fail"})["runs"]

    assert "outcome" not in run
    assert run["message"]
    assert run["code"]


def test_stream_that_breaks_off_is_an_error_and_not_a_success(chat, streams):
    unfinished = Script().started().say(StepStarted(step=1), TextGrown(step=1, attempt=1, text="Half a")).replied("x")
    streams.scripts["break"] = lambda: [one for one in unfinished.moments if not isinstance(one, Replied)]
    (run,) = chat({"text": "break"})["runs"]

    assert run["code"] == "stream_lost"


def test_same_run_again_attaches_to_the_turn_and_is_the_same_conversation(chat, rt):
    result = chat({"text": "hello", "run": "r1"}, {"again": True, "run": "r1"})

    assert [run.get("error") for run in result["runs"]] == [None, None]
    assert spoken(result) == on_record(rt)
    assert len(views.turns(rt.store)) == 1


def test_only_new_messages_become_the_next_turn(chat, rt):
    chat({"text": "hello"}, {"text": "and again"})

    assert [one["text"] for one in on_record(rt) if one["role"] == "user"] == ["hello", "and again"]


def test_refusal_is_read_as_json_by_the_client(chat):
    (run,) = chat({"text": " "})["runs"]

    assert "422" in run["error"]
    assert run["payload"]["field"] == "text"


def test_any_turn_ends_as_the_conversation_that_its_moments_tell(chat, streams, url):
    """Sixty turns of every kind, each through the official reducer."""
    scripts = {f"seed {seed}": any_script(seed).moments for seed in SEEDS}
    streams.scripts.update({text: lambda moments=moments: moments for text, moments in scripts.items()})
    chats = [{"thread": text.replace(" ", "-"), "steps": [{"text": text}]} for text in scripts]
    results = play("agui.mjs", {"url": url, "client": chat.name, "chats": chats})

    for (text, moments), result in zip(scripts.items(), results, strict=True):
        assert result["runs"][0].get("error") is None, text
        assert spoken(result)[1:] == transcript(moments), text
        assert agui_order.reasoned(result["messages"]) == reasoned(moments), text
