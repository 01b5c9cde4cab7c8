"""AG-UI over HTTP: what is taken, what is refused, and how a client comes back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from chordage.config.settings import load
from chordage.orchestrator import views
from chordage.orchestrator.core.callers import LOCAL, KeyScope
from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.faces.moments import StepStarted
from chordage.workers.bootstrap import runtime_from
from support.face_server import RecordedStreams, server_of, write_room
from support.moments import Script
from support.sse import events_in
from support.web_server import served


@pytest.fixture
def settings(tmp_path, migrated_database_url):
    return load(room=write_room(tmp_path / "room"), database_url=migrated_database_url("sqlite"))


@pytest.fixture
def rt(settings):
    runtime = runtime_from(settings, with_redis=False)
    yield runtime
    runtime.store.close()


@pytest.fixture
def streams(rt) -> RecordedStreams:
    return RecordedStreams(rt=rt)


@pytest.fixture
def client(rt, streams) -> Iterator[httpx.Client]:
    with served(server_of(rt, streams)) as one:
        yield one


def given(text: str = "hello", **fields: Any) -> dict[str, Any]:
    usual = {"threadId": "t1", "runId": "r1", "protocolVersion": "1.0", "tools": [], "context": [], "state": {}}
    return {**usual, "messages": [{"id": "u1", "role": "user", "content": text}], **fields}


def run(client: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    return events_in(client.post("/agui/ada", json=given(**fields)))


def answers(*entries: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"interruptId": name, "status": "resolved", "payload": payload} for name, payload in entries]


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def interrupt_in(events: list[dict[str, Any]]) -> str:
    (interrupt,) = events[-1]["outcome"]["interrupts"]
    return interrupt["id"]


def test_run_is_a_turn_of_the_callers_thread(client, rt):
    events = run(client)
    (line,) = views.turns(rt.store)
    turn = views.turn(rt.store, line.turn_id)

    assert (events[0]["threadId"], events[0]["runId"], events[0]["protocolVersion"]) == ("t1", "r1", "1.0")
    assert (turn.thread_id, turn.source, turn.text, turn.answer) == ("api:t1", "agui", "hello", "You said: hello")


def test_stream_is_not_kept_by_proxies(client):
    headers = client.post("/agui/ada", json=given()).headers

    assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-store", "no")


def test_unknown_members_are_no_error(client):
    message = {"id": "u1", "role": "user", "content": "hello", "name": "Bob", "metadata": {"x": 1}}

    assert run(client, messages=[message], forwardedProps="anything", new=1)[-1]["type"] == "RUN_FINISHED"


def test_text_in_parts_is_text(client, rt):
    content = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    run(client, messages=[{"id": "u1", "role": "user", "content": content}])

    assert views.turn(rt.store, views.turns(rt.store)[0].turn_id).text == "hello"


def test_forwarded_properties_reach_the_turn(client, rt):
    run(client, forwardedProps={"chordage": {"group": "task", "limits": {"max_rounds": 3}}, "other": 1})

    assert views.turns(rt.store)[0].group == "task"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"threadId": None}, 422),
        ({"threadId": "x" * 201}, 422),
        ({"threadId": "a\x00b"}, 422),
        ({"runId": ""}, 422),
        ({"messages": [{"id": "u1", "role": "wizard", "content": "x"}]}, 422),
        ({"messages": "hello"}, 422),
        ({"messages": []}, 422),
        ({"messages": [{"id": "u1", "role": "user", "content": [{"type": "image", "url": "x"}]}]}, 422),
        ({"messages": [{"id": "u1", "role": "user"}]}, 422),
        ({"messages": [{"id": "a1", "role": "assistant", "content": "x"}]}, 422),
        ({"resume": [{"interruptId": "s1", "status": "perhaps"}]}, 422),
        ({"messages": [], "resume": [{"interruptId": "s1", "status": "cancelled"}]}, 422),
        ({"forwardedProps": {"chordage": {"when_busy": "never"}}}, 422),
        ({"forwardedProps": {"chordage": {"limits": {"max_rounds": 0}}}}, 422),
        ({"text": "x" * 300_000}, 413),
    ],
)
def test_what_cannot_be_taken_is_refused_before_the_stream_as_plain_json(client, fields, status):
    response = client.post("/agui/ada", json=given(**fields))

    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.json()["detail"]


def test_refusals_before_the_endpoint_are_plain_json_too(client):
    refused = [
        client.post("/agui/ada", content="x", headers={"Content-Type": "text/plain"}),
        client.post("/agui/ada", content="{", headers={"Content-Type": "application/json"}),
        client.post("/agui/ada", json=given(), headers={"Origin": "https://evil.example"}),
        client.post("/agui/nobody", json=given()),
        client.get("/agui/ada/runs/r9"),
        client.get("/agui/nobody/capabilities"),
        client.get("/agui/ada"),
    ]

    assert [response.status_code for response in refused] == [415, 400, 403, 404, 404, 404, 405]
    assert {response.headers["content-type"] for response in refused} == {"application/json"}


def test_other_paths_keep_problem_documents(client):
    assert client.get("/turns/nothing").headers["content-type"] == "application/problem+json"


def test_same_run_again_attaches_to_the_turn(client, rt):
    assert kinds(run(client)) == kinds(run(client))
    assert len(views.turns(rt.store)) == 1


def test_run_id_of_another_thread_is_refused(client):
    run(client)

    assert client.post("/agui/ada", json=given(threadId="t2")).status_code == 409


def test_message_that_is_known_is_not_sent_again(client):
    run(client)
    response = client.post("/agui/ada", json=given(runId="r2"))

    assert response.status_code == 422
    assert "nothing to do" in response.json()["detail"]


def test_agent_that_is_not_there_is_said_first(client):
    run(client)

    assert client.post("/agui/nobody", json=given(runId="r2")).status_code == 404


def test_messages_behind_a_failed_run_are_taken_without_it(client, rt):
    run(client, text="fail")
    history = [{"id": "u1", "role": "user", "content": "fail"}, {"id": "u2", "role": "user", "content": "hello"}]
    run(client, runId="r2", messages=history)

    assert [line.text for line in views.turns(rt.store)] == ["hello", "fail"]


def test_several_new_messages_are_one_turn(client, rt):
    history = [{"id": f"u{number}", "role": "user", "content": f"part {number}"} for number in (1, 2)]
    run(client, messages=history)

    assert views.turn(rt.store, views.turns(rt.store)[0].turn_id).text == "part 1\n\npart 2"


def test_answer_continues_the_turn_and_may_be_repeated(client, rt):
    interrupt = interrupt_in(run(client, text="write"))
    resume = {"messages": [], "resume": answers((interrupt, {"approved": True}))}
    first, again = run(client, runId="r2", **resume), run(client, runId="r2", **resume)

    assert kinds(first) == kinds(again)
    assert first[-1]["outcome"] == {"type": "success"}
    assert first[0]["runId"] == "r2"
    assert len([event for event in first if event["type"] == "TOOL_CALL_RESULT"]) == 1
    assert "TOOL_CALL_START" not in kinds(first)
    assert len(views.turns(rt.store)) == 1


def test_edited_arguments_replace_those_of_the_call(client):
    interrupt = interrupt_in(run(client, text="write"))
    payload = {"approved": True, "editedArgs": {"to": "eve"}}
    events = run(client, runId="r2", messages=[], resume=answers((interrupt, payload)))
    (result,) = [event for event in events if event["type"] == "TOOL_CALL_RESULT"]

    assert result["content"] == "sent to eve: True"


@pytest.mark.parametrize(
    ("payload", "status"),
    [({"approved": True, "editedArgs": {"wrong": 1}}, 422), ({"approved": True, "editedArgs": "x"}, 422)],
)
def test_answer_that_does_not_fit_changes_nothing(client, rt, payload, status):
    interrupt = interrupt_in(run(client, text="write"))
    response = client.post("/agui/ada", json=given(runId="r2", messages=[], resume=answers((interrupt, payload))))

    assert response.status_code == status
    assert len(views.inbox(rt.store)) == 1


def test_answers_to_unknown_interrupts_are_skipped(client):
    interrupt = interrupt_in(run(client, text="write"))
    entries = answers(("unknown", {"approved": True}), (interrupt, {"approved": True}))

    assert run(client, runId="r2", messages=[], resume=entries)[-1]["outcome"] == {"type": "success"}


def test_interrupt_that_was_answered_otherwise_is_a_conflict(client):
    interrupt = interrupt_in(run(client, text="write"))
    run(client, runId="r2", messages=[], resume=answers((interrupt, {"approved": True})))
    late = given(runId="r3", messages=[], resume=answers((interrupt, {"approved": False})))

    assert client.post("/agui/ada", json=late).status_code == 409


def test_interrupt_that_was_answered_may_be_cancelled_or_answered_again_to_go_on(client, rt):
    """The clients keep their interrupts until a run succeeds, and the newest wants an expired one to be cancelled."""
    interrupt = interrupt_in(run(client, text="write"))
    run(client, runId="r2", messages=[], resume=answers((interrupt, {"approved": True})))
    cancelled = [{"interruptId": interrupt, "status": "cancelled"}]
    new = [{"id": "u2", "role": "user", "content": "hello"}]

    assert run(client, runId="r3", messages=[], resume=cancelled)[-1]["outcome"] == {"type": "success"}
    otherwise = answers((interrupt, {"approved": False}))
    assert run(client, runId="r4", messages=new, resume=otherwise)[-1]["outcome"] == {"type": "success"}
    assert [line.text for line in views.turns(rt.store)] == ["hello", "write"]


def test_interrupt_of_another_thread_is_unknown(client, rt):
    interrupt = interrupt_in(run(client, text="write"))
    other = given(threadId="t2", runId="r2", messages=[], resume=answers((interrupt, {"approved": True})))

    assert client.post("/agui/ada", json=other).status_code == 422
    assert len(views.inbox(rt.store)) == 1


def test_answer_and_a_new_message_are_one_run(client, rt):
    interrupt = interrupt_in(run(client, text="write"))
    entries = answers((interrupt, {"approved": True}))
    new = [{"id": "u2", "role": "user", "content": "thanks"}]
    events = run(client, runId="r2", messages=new, resume=entries)

    assert len([event for event in events if event["type"] == "TOOL_CALL_RESULT"]) == 1
    assert [event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT"][-1] == "You said: thanks"
    assert [turn.disposition for turn in views.turns(rt.store)] == ["answered", "answered"]


def test_client_comes_back_to_the_whole_conversation(client):
    run(client, text="before")
    run(client, runId="r2", messages=[{"id": "u2", "role": "user", "content": "hello"}])
    events = events_in(client.get("/agui/ada/runs/r2"))

    assert kinds(events)[:3] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STEP_STARTED"]
    assert (events[0]["threadId"], events[0]["runId"]) == ("t1", "r2")
    assert [message.get("content") for message in events[1]["messages"]] == ["before", "You said: before", "hello"]
    assert kinds(events)[-1] == "RUN_FINISHED"


def test_client_that_comes_back_finds_calls_and_results_in_the_conversation(client):
    interrupt = interrupt_in(run(client, text="write"))
    run(client, runId="r2", messages=[], resume=answers((interrupt, {"approved": True})))
    run(client, runId="r3", messages=[{"id": "u2", "role": "user", "content": "hello"}])
    snapshot = events_in(client.get("/agui/ada/runs/r3"))[1]["messages"]

    assert [message["role"] for message in snapshot] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "tool",
        "assistant",
        "user",
    ]
    assert len(snapshot[1]["toolCalls"]) == 3


def test_dialect_of_a_client_that_comes_back(client, streams):
    cancelled = Script().started().ended("cancelled", "cancelled").moments
    streams.scripts["cancel"] = lambda: cancelled
    run(client, text="cancel")

    assert events_in(client.get("/agui/ada/runs/r1"))[-1]["type"] == "RUN_FINISHED"
    assert events_in(client.get("/agui/ada/runs/r1?protocolVersion=0.0.59"))[-1]["code"] == "cancelled"


def test_old_client_is_known_by_the_version_it_does_not_send(client, streams):
    cancelled = Script().started().ended("cancelled", "cancelled").moments
    streams.scripts["cancel"] = lambda: cancelled
    body = given("cancel")
    del body["protocolVersion"]
    events = events_in(client.post("/agui/ada", json=body))

    assert "protocolVersion" not in events[0]
    assert (events[-1]["type"], events[-1]["code"]) == ("RUN_ERROR", "cancelled")


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (RuntimeError("boom"), "stream_lost"),
        (Unavailable("boom.example does not answer"), "unavailable"),
        (None, "stream_lost"),
    ],
)
def test_stream_that_breaks_off_ends_with_an_error(client, streams, failure, code):
    def moments():
        if failure is not None:
            raise failure
        return Script().started().say(StepStarted(step=1)).moments

    streams.scripts["break"] = moments
    events = run(client, text="break")

    assert (events[-1]["type"], events[-1]["code"]) == ("RUN_ERROR", code)
    assert "boom" not in str(events)


def test_capabilities(client):
    shown = client.get("/agui/ada/capabilities").json()

    assert shown["identity"]["name"] == "ada"
    assert shown["transport"]["streaming"]
    assert shown["transport"]["resumable"]
    assert shown["tools"] == {"supported": True, "parallelCalls": True, "clientProvided": True}
    assert shown["humanInTheLoop"]["approveWithEdits"]


def test_without_streams_nothing_is_taken(rt):
    with served(server_of(rt, None)) as client:
        response = client.post("/agui/ada", json=given())

    assert response.status_code == 503
    assert views.turns(rt.store) == []


@pytest.mark.parametrize("missing", [KeyScope.SUBMIT, KeyScope.READ, KeyScope.PAYLOADS])
def test_each_scope_is_needed(rt, streams, missing):
    caller = replace(LOCAL, scopes=frozenset(KeyScope) - {missing})
    with served(server_of(rt, streams, caller=caller)) as client:
        response = client.post("/agui/ada", json=given())

    assert (response.status_code, response.headers["content-type"]) == (403, "application/json")


def test_answers_need_the_scope_to_decide(rt, streams, client):
    interrupt = interrupt_in(run(client, text="write"))
    caller = replace(LOCAL, scopes=frozenset(KeyScope) - {KeyScope.DECIDE})
    with served(server_of(rt, streams, caller=caller)) as other:
        refused = other.post("/agui/ada", json=given(messages=[], resume=answers((interrupt, {"approved": True}))))

    assert refused.status_code == 403
    assert len(views.inbox(rt.store)) == 1


def test_agent_that_a_key_does_not_address_is_refused(rt, streams):
    with served(server_of(rt, streams, caller=replace(LOCAL, agents=frozenset({"bob"})))) as client:
        assert client.post("/agui/ada", json=given()).status_code == 403
        assert client.get("/agui/ada/capabilities").status_code == 403
        assert client.post("/agui/bob", json=given()).status_code == 200


def test_group_that_a_key_does_not_use_is_refused(rt, streams):
    with served(server_of(rt, streams, caller=replace(LOCAL, groups=frozenset({Group.TASK})))) as client:
        assert client.post("/agui/ada", json=given()).status_code == 403
        assert run(client, forwardedProps={"chordage": {"group": "task"}})[-1]["type"] == "RUN_FINISHED"


def test_tenants_do_not_meet(rt, streams, client):
    """The same names of runs, threads and interrupts are others for another tenant."""
    interrupt = interrupt_in(run(client, text="write"))
    with served(server_of(rt, streams, caller=replace(LOCAL, tenant="acme"))) as other:
        stolen = other.post("/agui/ada", json=given(messages=[], resume=answers((interrupt, {"approved": True}))))
        assert stolen.status_code == 422
        assert other.get("/agui/ada/runs/r1").status_code == 404
        assert run(other)[-1]["outcome"] == {"type": "success"}

    assert {line.thread_id for line in views.turns(rt.store)} == {"api:t1", "api@acme:t1"}
    assert len(views.inbox(rt.store)) == 1
