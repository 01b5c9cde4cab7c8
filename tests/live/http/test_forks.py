"""A new thread that begins with the history of another: what it has and has not, and that nothing happens again."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import CALLERS
from chordage.orchestrator.core.transcript import build
from chordage.orchestrator.store import journal
from chordage.workers import local, web
from chordage.workers.cli import show
from support import asking_room
from support.web_server import PROBLEM, as_caller, finish, mounted, served, with_database

pytestmark = pytest.mark.redis


@pytest.fixture
def settings(settings, database_url):
    """On SQLite and on PostgreSQL."""
    return with_database(settings, database_url)


@pytest.fixture
def client(settings):
    with served(web.wired(settings)) as client:
        yield client


@pytest.fixture
def asking(settings):
    (settings.room_path / "agent.toml").unlink()
    asking_room.write(settings.room_path)


def say(client, rt, text, thread_id="t"):
    turn = client.post("/turns", json={"text": text, "thread_id": thread_id}).json()["turn_id"]
    finish(rt, turn)
    return client.get(f"/turns/{turn}").json()


def fork(client, source="api:t", **body):
    return client.post(f"/threads/{quote(source, safe='')}/fork", json=body)


def remarks(client, thread_id):
    return client.get(f"/threads/{quote(thread_id, safe='')}/history").json()["data"]


def texts(client, thread_id):
    return [remark["text"] for remark in remarks(client, thread_id)]


def as_the_model_reads_it(rt, thread_id):
    with rt.store.read() as tx:
        history = journal.history(tx, thread_id)
    return build(history.entries, history.calls)


def test_a_fork_has_the_whole_history_and_both_go_their_own_way(client, rt):
    say(client, rt, "one"), say(client, rt, "please add")

    answer = fork(client)
    new = answer.json()["thread_id"]
    say(client, rt, "more", new), say(client, rt, "else", "t")

    assert (answer.status_code, answer.json()["forked_from"], answer.json()["entries"]) == (201, "api:t", 5)
    assert answer.headers["Location"] == f"/threads/{quote(new, safe='')}"
    assert texts(client, new) == ["one", "You said: one", "please add", "Let me add.", "Sums: 3\n34",
                                  "more", "You said: more"]  # fmt: skip
    assert texts(client, "api:t")[-2:] == ["else", "You said: else"]


def test_the_model_reads_on_the_fork_what_it_has_read_on_the_thread(client, rt):
    say(client, rt, "please add"), say(client, rt, "fail"), say(client, rt, "two")

    new = fork(client).json()["thread_id"]

    assert as_the_model_reads_it(rt, new) == as_the_model_reads_it(rt, "api:t")


def test_a_fork_leaves_at_an_entry(client, rt):
    say(client, rt, "one"), say(client, rt, "two")
    first_reply = remarks(client, "api:t")[1]

    new = fork(client, upto=first_reply["id"], thread_id="from-one").json()["thread_id"]

    assert new == "api:from-one"
    assert texts(client, new) == ["one", "You said: one"]


def test_a_fork_leaves_at_a_step_of_a_run_with_the_results_of_its_calls(client, rt):
    run_id = say(client, rt, "please add")["run_id"]

    new = fork(client, run_id=run_id, step=1).json()["thread_id"]

    said = remarks(client, new)
    assert [remark["text"] for remark in said] == ["please add", "Let me add."]
    assert [call["content"] for call in said[1]["calls"]] == ["3", "34"]
    assert {call["id"] for call in said[1]["calls"]}.isdisjoint(
        call["id"] for call in remarks(client, "api:t")[1]["calls"]
    )


def test_a_fork_starts_no_run_and_counts_for_nothing(client, rt):
    say(client, rt, "please add")
    before = client.get("/groups/chat").json()

    new = fork(client).json()["thread_id"]

    thread = client.get(f"/threads/{quote(new, safe='')}").json()
    assert (thread["turns"], thread["queued"], thread["open_run"], thread["agent"]) == (0, 0, None, "ada")
    assert client.get("/groups/chat").json() == before
    copy = remarks(client, new)[-1]["run_id"]
    run = client.get(f"/runs/{copy}").json()
    assert (run["status"], run["usage"]["input_tokens"], run["thread_id"]) == ("done", 0, new)
    assert stages.rescue(rt) is not None
    assert client.get(f"/runs/{copy}").json() == run


@pytest.mark.usefixtures("asking")
def test_a_call_that_waits_is_carried_out_on_its_own_thread_alone(client, rt):
    asking_room.waiting_turn(rt, "send", space=CALLERS, thread_id="t")

    new = fork(client).json()["thread_id"]

    (_, asked) = remarks(client, new)
    assert {(call["status"], call["code"]) for call in asked["calls"]} == {("cancelled", "forked")}
    assert {question["thread_id"] for question in client.get("/inbox").json()["data"]} == {"api:t"}
    assert len(views.inbox(rt.store)) == 2


def test_a_run_that_was_rolled_back_is_not_in_the_fork(client, rt):
    say(client, rt, "one")
    queued = client.post("/turns", json={"text": "wrong", "thread_id": "t"}).json()["turn_id"]
    local.begin(rt, views.turn(rt.store, queued))
    client.post("/turns", json={"text": "two", "thread_id": "t", "when_busy": "rollback"})

    new = fork(client).json()["thread_id"]

    assert texts(client, new) == ["one", "You said: one"]


def test_a_fork_of_a_fork_has_all_of_it(client, rt):
    say(client, rt, "please add")
    first = fork(client).json()["thread_id"]
    second = fork(client, first).json()["thread_id"]

    assert texts(client, second) == texts(client, "api:t")
    assert as_the_model_reads_it(rt, second) == as_the_model_reads_it(rt, "api:t")


def test_a_summary_comes_with_what_it_does_not_replace(client, rt, settings):
    file = settings.room_path / "agent.toml"
    file.write_text(f"{file.read_text()}[compaction]\nkeep = 1\n")
    say(client, rt, "one"), say(client, rt, "two")
    stages.ask_to_compact(rt, "api:t")
    say(client, rt, "three")
    before = as_the_model_reads_it(rt, "api:t")

    new = fork(client).json()["thread_id"]

    assert "[Summary of the conversation" in before[0].text
    assert as_the_model_reads_it(rt, new) == before


NO_PLACES = [
    ({"upto": 1_000_000}, 404),
    ({"run_id": "nothing", "step": 1}, 404),
    ({"run_id": "x"}, 422),
    ({"step": 1}, 422),
    ({"upto": 1, "run_id": "x", "step": 1}, 422),
    ({"upto": 0}, 422),
    ({"thread_id": "a\nb"}, 422),
    ({"thread_id": ""}, 422),
    ({"thread_id": "x" * 201}, 422),
    ({"thread_id": "t"}, 409),
]


def test_a_place_that_is_not_there_and_a_name_that_is_taken_are_refused(client, rt):
    say(client, rt, "one")
    before = client.get("/threads").json()

    for body, status in NO_PLACES:
        answer = fork(client, **body)

        assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM), body
        assert client.get("/threads").json() == before


def test_a_thread_that_is_not_there_has_no_fork(client):
    assert fork(client, "api:nothing").status_code == 404


# a fork that runs


def calls_of(client, run_id):
    return client.get(f"/runs/{run_id}/calls").json()["data"]


def run_on(client, rt, source="api:t", **body):
    answer = fork(client, source, run=True, **body)
    assert answer.status_code == 201, answer.text
    finish(rt, answer.json()["turn_id"])
    return client.get(f"/turns/{answer.json()['turn_id']}").json()


def test_a_fork_runs_on_from_a_step_and_is_answered_from_the_record(client, rt):
    say(client, rt, "one")
    source = say(client, rt, "please add")

    turn = run_on(client, rt, run_id=source["run_id"], step=1, thread_id="mine")

    assert (turn["thread_id"], turn["fork_of"], turn["text"]) == ("api:mine", source["run_id"], "please add")
    assert (turn["disposition"], turn["answer"]) == ("answered", source["answer"])
    recorded = [(call["id"], call["content"]) for call in calls_of(client, source["run_id"])]
    forked = calls_of(client, turn["run_id"])
    assert [(call["answered_from"], call["content"]) for call in forked] == recorded
    assert {call["worker"] for call in forked} == {None}
    assert texts(client, "api:mine") == texts(client, "api:t")
    run = client.get(f"/runs/{turn['run_id']}").json()
    assert (run["fork_of"], [step.get("is_repeated") for step in run["steps"]]) == (
        source["run_id"],
        [True, None, False],
    )


def test_edits_are_of_the_new_run_alone(client, rt):
    source = say(client, rt, "please add")
    (first, _) = calls_of(client, source["run_id"])
    edits = {"text": "please add more", "arguments": {first["ask_id"]: {**first["arguments"], "a": 40}}}

    turn = run_on(client, rt, run_id=source["run_id"], step=1, edits=edits)

    assert turn["text"] == "please add more"
    assert calls_of(client, turn["run_id"])[0]["arguments"]["a"] == 40
    assert client.get(f"/turns/{source['turn_id']}").json() == source
    assert calls_of(client, source["run_id"])[0] == first


NO_FORKS = [
    ({"step": None}, 422, "give run_id and step, and no upto"),
    ({"run_id": None}, 422, "give run_id and step, and no upto"),
    ({"upto": 1}, 422, "give run_id and step, and no upto"),
    ({"run": False, "edits": {"text": "x"}}, 422, "of a fork that runs: give run true"),
    ({"run": False, "effects": ["add"]}, 422, "of a fork that runs: give run true"),
    ({"edits": {"model": "other"}}, 422, "names no model 'other'; choose from"),
    ({"edits": {"arguments": {"x": {}}}}, 422, "asked for no call 'x'; its calls: "),
    ({"edits": {"arguments": {"x": 1}}}, 422, "edits.arguments.x"),
    ({"edits": {"text": " "}}, 422, "text is blank"),
    ({"edits": {"text": "x" * 5000}}, 413, "text has 5000 bytes"),
    ({"edits": {"instructions": "\x00"}}, 422, "NUL"),
    ({"edits": {"other": 1}}, 422, "other"),
    ({"effects": [str(n) for n in range(201)]}, 422, "effects"),
    ({"step": 99}, 404, "has no step 99"),
    ({"step": 3}, 409, "nothing comes behind it"),
    ({"run_id": "nothing"}, 404, "there is no run 'nothing'"),
    ({"thread_id": "t"}, 409, "there is a thread 'api:t' already"),
]


def test_a_fork_that_cannot_run_is_refused_and_nothing_is_made(client, rt):
    source = say(client, rt, "please add")
    before = client.get("/threads").json()

    for body, status, words in NO_FORKS:
        answer = fork(client, **{"run": True, "run_id": source["run_id"], "step": 1, **body})

        assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM), body
        assert words in answer.text
        assert client.get("/threads").json() == before


def test_a_run_of_another_thread_is_not_forked(client, rt):
    source = say(client, rt, "please add", "t")
    say(client, rt, "one", "u")

    answer = fork(client, "api:u", run=True, run_id=source["run_id"], step=1)

    assert answer.status_code == 404
    assert "is not one of thread 'api:u'" in answer.json()["detail"]


@pytest.mark.usefixtures("asking")
def test_a_call_that_waits_is_not_run_in_the_fork_and_asks_nobody(client, rt):
    turn = asking_room.waiting_turn(rt, "deploy", space=CALLERS, thread_id="t")

    forked = run_on(client, rt, run_id=turn.run_id, step=1)

    assert {call["code"] for call in calls_of(client, forked["run_id"])} == {"not_run_in_fork"}
    assert {question["thread_id"] for question in client.get("/inbox").json()["data"]} == {"api:t"}


def test_a_fork_is_not_retried(client, rt):
    source = say(client, rt, "please add")
    turn = fork(client, run=True, run_id=source["run_id"], step=1).json()["turn_id"]
    client.post(f"/turns/{turn}/cancel", json={})

    answer = client.post(f"/turns/{turn}/retry", json={})

    assert answer.status_code == 409
    assert f"fork run {source['run_id']} once more" in answer.json()["detail"]


def test_commands_say_what_was_answered_from_the_record(client, rt):
    source = say(client, rt, "please add")
    turn = run_on(client, rt, run_id=source["run_id"], step=1)

    lines = list(show.run_lines(views.run(rt.store, turn["run_id"])))

    (call, *_) = calls_of(client, source["run_id"])
    assert f"  a fork of run {source['run_id']}" in lines
    assert any("repeated from the run that this is a fork of" in line for line in lines)
    assert any(line.endswith(f"it did not run: the result is that of call {call['id']}") for line in lines)


# keys

CALLERS_OF_THE_TEST = {
    "all": Caller(id="all"),
    "operator": Caller(id="operator", scopes=frozenset({KeyScope.OPERATE, KeyScope.READ})),
    "bobs": Caller(id="bobs", agents=frozenset({"bob"})),
    "tasks": Caller(id="tasks", groups=frozenset({Group.TASK})),
}


@pytest.mark.parametrize("name", ["operator", "bobs", "tasks"])
def test_a_fork_runs_only_for_who_may_send_such_a_turn(settings, rt, name):
    with served(mounted(settings, CALLERS_OF_THE_TEST)) as client:
        with as_caller(client, "all") as sender:
            source = say(sender, rt, "please add")
        with as_caller(client, name) as other:
            copied = fork(other, run_id=source["run_id"], step=1)
            refused = fork(other, run_id=source["run_id"], step=1, run=True)

    assert (copied.status_code, refused.status_code) == (201, 403)


def test_a_run_is_compared_with_another_over_http(client, rt, settings):
    first, second = say(client, rt, "one"), say(client, rt, "please add", "u")

    answer = client.get(f"/runs/{second['run_id']}/compare", params={"with": first["run_id"]})
    rows = answer.json()["rows"]
    assert (rows[0]["kind"], rows[0]["is_first"], rows[0]["differs"]) == ("message", True, ["message"])
    assert [rows[0][side]["text"] for side in ("first", "second")] == ["one", "please add"]

    none = client.get(f"/runs/{second['run_id']}/compare")
    assert (none.status_code, none.headers["content-type"]) == (404, PROBLEM)
    assert "with=RUN" in none.json()["detail"]
    assert client.get(f"/runs/{second['run_id']}/compare", params={"with": "no-such-run"}).status_code == 404

    reader = {"reader": Caller(id="reader", scopes=frozenset({KeyScope.READ}))}
    with served(mounted(settings, reader)) as server, as_caller(server, "reader") as other:
        rows = other.get(f"/runs/{second['run_id']}/compare", params={"with": first["run_id"]}).json()["rows"]
    assert {(row["first"] or {}).get("text") for row in rows} == {None}, "without the scope payloads no text is seen"
