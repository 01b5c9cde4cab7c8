"""The clients against a real server with a fleet behind it: a conversation, an approval, and a stepped turn."""

from __future__ import annotations

import anyio
import httpx
import pytest

import chordage
from chordage.config.settings import load
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.stepping import Standing
from support import asking_room, client_room
from support.waiting import PATIENCE
from support.working_server import working_server


@pytest.fixture
def settings(tmp_path, migrated_database_url, request):
    room = getattr(request, "param", client_room).write(tmp_path / "room")
    with (room / "script.yaml").open("a") as script:  # after each decision the agent says how far it is
        script.write('- {when: send, text: "It came to this: {results}"}\n')
    return load(room=room, database_url=migrated_database_url("sqlite"))


@pytest.fixture
def server(settings):
    with working_server(settings) as server:
        yield server


@pytest.fixture
def client(server):
    with chordage.Client(server.url) as client:
        yield client


def run(server, work):
    async def main():
        async with chordage.AsyncClient(server.url) as client:
            return await work(client)

    return anyio.run(main)


def test_a_conversation(client):
    first = client.ask("add these", PATIENCE, thread="sums")
    second = client.ask("hello", PATIENCE, thread=first.thread_id)

    assert (first.ok, first.answer, first.rounds) == (True, "Sums: 3\n34", 1)
    assert second.answer == "You said: hello"
    assert [thread.thread_id for thread in client.threads()] == [first.thread_id]
    said = list(client.history("sums"))
    assert [message.text for message in reversed(said)][0::2] == ["add these", "Sums: 3\n34", "You said: hello"]
    assert {one.turn_id for one in client.turns(thread_id="sums")} == {first.turn_id, second.turn_id}
    assert client.run(first.run_id).status == "done"
    assert {one.run_id for one in client.runs()} == {first.run_id, second.run_id}


def test_a_message_sent_twice_is_one_turn(client):
    first, again = (client.submit("hello", dedupe_key="k") for _ in range(2))
    assert (again.turn_id, first.duplicate, again.duplicate) == (first.turn_id, False, True)


def test_the_page_of_a_list_is_no_limit(client, server, monkeypatch):
    monkeypatch.setattr("chordage.workers.client.calls.PAGE", 2)
    server.pause_work()
    sent = [client.submit(f"hello {number}").turn_id for number in range(5)]

    assert [one.turn_id for one in client.turns()] == sent[::-1]
    assert [one.turn_id for one in client.turns(limit=3)] == sent[:1:-1]


def test_a_turn_can_be_cancelled(client, server):
    server.pause_work()
    turn = client.submit("hello")
    client.cancel(turn, "asked by mistake")
    assert client.turn(turn).disposition == "cancelled"


def test_refusals_are_the_exceptions_of_chordage(client, server):
    with pytest.raises(chordage.UnknownAgent, match="nobody"):
        client.submit("hello", agent="nobody")
    with pytest.raises(chordage.InvalidMessage) as refused:
        client.submit("hello", no_such_field=1)
    assert refused.value.field == "no_such_field"
    with pytest.raises(chordage.InvalidMessage) as refused:
        client.submit(" ")
    assert refused.value.field == "text"
    with pytest.raises(chordage.NotFound):
        client.turn("nope")
    server.be(scopes=frozenset({KeyScope.READ}))
    with pytest.raises(chordage.Forbidden) as forbidden:
        client.submit("hello")
    assert forbidden.value.scope == "submit"


def test_a_key_without_payloads_sees_states_and_no_texts(client, server):
    turn = client.ask("hello", PATIENCE)
    server.be(scopes=frozenset({KeyScope.READ}))
    shown = client.turn(turn)
    assert (shown.status, shown.text, shown.answer) == ("done", None, None)
    assert [message.text for message in client.history(turn.thread_id)] == [None, None]


def calls_of(client, turn):
    steps = client.run(client.turn(turn).run_id).steps
    return [call for step in steps if step["kind"] == "tool_round" for call in step["calls"]]


@pytest.mark.parametrize("settings", [asking_room], indirect=True)
def test_an_approval(client):
    turn = client.ask("send it", PATIENCE)
    first, second = sorted(client.inbox(thread_id=turn.thread_id), key=lambda question: question.arguments["to"])

    assert turn.is_waiting
    assert [first.arguments, second.arguments] == [{"to": "bob"}, {"to": "eve"}]
    client.decide(first, "approve")
    client.decide(second, "deny", reason="not eve")
    done = client.wait(turn, PATIENCE, stop_at_questions=False)
    assert (done.ok, list(client.inbox())) == (True, [])
    assert {call["arguments"]["to"]: call["status"] for call in calls_of(client, turn)} == {
        "bob": "succeeded", "eve": "cancelled"
    }  # fmt: skip
    with pytest.raises(chordage.ChordageError):
        client.decide(second, "approve")


@pytest.mark.parametrize("settings", [asking_room], indirect=True)
def test_an_approval_by_the_async_client(server):
    async def work(client):
        turn = await client.ask("send it", PATIENCE)
        async for question in client.inbox():
            await client.decide(question.id, "approve")
        return await client.wait(turn, PATIENCE, stop_at_questions=False)

    assert run(server, work).ok


def test_the_runner_drives_a_turn_over_http(client):
    runner = client.runner("add these", thread_id="steps", timeout=PATIENCE, max_iterations=5)
    seen = []
    for message in runner:
        results = runner.generate_tool_response()
        seen.append((message.text, len(message.asks), results and [one["content"] for one in results]))
        if message.asks:
            runner.steer("Be brief.")

    assert seen == [("Let me add.", 2, ["3", "34"]), ("You said: Be brief.", 0, None)]
    assert (runner.done().text, runner.done().ok) == ("You said: Be brief.", True)
    assert [message.text for message in client.history("steps", limit=1)] == ["You said: Be brief."]


def test_a_run_that_was_left_is_continued_by_another_client(client, server):
    runner = client.runner("add these", timeout=PATIENCE)
    for _ in runner:
        break
    assert runner.standing == Standing.PARKED

    with chordage.Client(server.url) as other:
        assert other.runner(run_id=runner.run_id, timeout=PATIENCE).until_done().text == "Sums: 3\n34"
    with pytest.raises(chordage.StepRefused) as refused:
        runner.steer("too late")
    assert (refused.value.code, refused.value.standing) == ("not_allowed", "done")


def test_a_runner_needs_a_key_that_sees_replies(client, server):
    turn = client.runner("hello", timeout=PATIENCE).turn_id
    server.be(scopes=frozenset({KeyScope.SUBMIT, KeyScope.READ}))
    with pytest.raises(chordage.Forbidden) as refused:
        client.runner(run_id=turn)
    assert refused.value.scope == "payloads"


def test_a_wrong_step_is_refused_with_its_reason(client):
    runner = client.runner("hello", timeout=PATIENCE)
    with pytest.raises(chordage.InvalidMessage, match="no option"):
        runner.set_options(no_such=1)
    with pytest.raises(chordage.InvalidMessage):
        client.runner("hello", max_iterations=0)
    with pytest.raises(TypeError, match="the text of a new turn, or the run_id"):
        client.runner()


def test_a_lost_answer_to_a_step_does_not_apply_it_twice(server):
    class Losing(httpx.HTTPTransport):
        lost = 0

        def handle_request(self, request):
            response = super().handle_request(request)
            if request.url.path.endswith("/steps") and self.lost < 3:
                Losing.lost += 1
                response.read()
                raise httpx.ReadError("lost")
            return response

    with (
        httpx.Client(transport=Losing(), timeout=PATIENCE) as http,
        chordage.Client(server.url, http=http, sleep=lambda _: None) as client,
    ):
        runner = client.runner("hello", timeout=PATIENCE)
        runner.steer("once")
        assert Losing.lost == 3
        assert runner.look()["steers"] == ["once"]


def test_the_async_runner_drives_a_turn(server):
    async def work(client):
        runner = await client.runner("add these", timeout=PATIENCE)
        seen = []
        async for message in runner:
            results = await runner.generate_tool_response()
            seen.append((message.text, results and len(results)))
        return seen, await runner.done(), await runner.standing()

    seen, outcome, standing = run(server, work)
    assert seen == [("Let me add.", 2), ("Sums: 3\n34", None)]
    assert (outcome.text, standing) == ("Sums: 3\n34", Standing.DONE)


def test_the_async_runner_leaves_the_event_loop_free(server):
    """The fleet is at work only when the event loop says so, while the runner waits in it."""
    server.pause_work()

    async def work(client):
        runner = await client.runner("add these", timeout=PATIENCE)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runner.until_done)
            await client.turn(runner.turn_id)
            server.work()
        return await runner.done()

    assert run(server, work).ok
