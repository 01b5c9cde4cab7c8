"""The clients over HTTP, both: what they send, when they send it again, and what they make of the answers."""

from __future__ import annotations

from datetime import UTC, datetime

import httpx
import pytest

import chordage
from chordage.workers.client.attempts import LONGEST_PAUSE
from chordage.workers.client.models import InboxQuestion
from support.scripted_fleet import BOTH, Driven, ScriptedFleet, answer, problem, question, turn

STORED = {"turn_id": "t1", "thread_id": "api:a", "duplicate": False}
BROKEN = httpx.ConnectError("no route")
DECIDED = {"decision_id": "d", "suspension_id": "q1", "call_id": "c1", "run_id": "r1", "duplicate": False}


@pytest.fixture
def fleet():
    return ScriptedFleet()


@pytest.fixture(params=BOTH)
def client(request, fleet):
    return Driven(request.param, fleet, key="ck_1")


# What is sent


def test_a_message_is_sent_with_its_fields_and_the_key(client, fleet):
    fleet.answers = [answer(STORED, 202)]
    deadline = datetime(2026, 1, 2, tzinfo=UTC)
    submitted = client.submit("hi", agent="ada", thread="a", deadline=deadline, when_busy="reject")

    assert (submitted.turn_id, submitted.thread_id) == ("t1", "api:a")
    [request], [body] = fleet.requests, fleet.bodies
    assert request.headers["authorization"] == "Bearer ck_1"
    assert request.headers["content-type"] == "application/json"
    assert str(request.url) == "http://fleet.example/turns"
    assert body.pop("dedupe_key")
    assert body == {
        "text": "hi", "agent": "ada", "thread_id": "a", "deadline": "2026-01-02T00:00:00+00:00", "when_busy": "reject"
    }  # fmt: skip


@pytest.mark.parametrize("kind", BOTH)
def test_the_end_of_the_line_behind_a_key_is_no_part_of_it(kind, fleet):
    fleet.answers = [answer(STORED, 202)]
    Driven(kind, fleet, key="ck_1\n").submit("hi")

    assert fleet.requests[0].headers["authorization"] == "Bearer ck_1"


@pytest.mark.parametrize("key", ["ck_1\nck_2", "ck_1 ck_2", "ck_é"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(key):
    with pytest.raises(chordage.ConfigError, match="a character that no key has") as refusal:
        chordage.Client("http://fleet.example", key=key)
    assert "ck_" not in str(refusal.value)


def test_what_is_no_json_is_refused_before_it_is_sent(client, fleet):
    with pytest.raises(chordage.InvalidMessage, match="object at"):
        client.submit("hi", meta={"x": object()})
    assert fleet.requests == []


def test_half_a_surrogate_pair_is_sent_so_that_the_server_can_name_the_field(client, fleet):
    fleet.answers = [problem(422, "invalid", "text: half of a surrogate pair", field="text")]
    with pytest.raises(chordage.InvalidMessage, match="surrogate"):
        client.submit("\ud800")


def test_address_and_key_come_from_the_environment(monkeypatch, fleet):
    monkeypatch.setenv("CHORDAGE_URL", "https://there.example/base/")
    monkeypatch.setenv("CHORDAGE_KEY", "ck_env")
    fleet.answers = [answer(turn())]
    http = httpx.Client(transport=httpx.MockTransport(fleet.handle))
    with chordage.Client(http=http) as client:
        client.turn("t1")

    assert str(fleet.requests[0].url) == "https://there.example/base/turns/t1"
    assert fleet.requests[0].headers["authorization"] == "Bearer ck_env"
    assert not http.is_closed, "it belongs to the program"


def test_an_address_without_a_scheme_is_refused(client):
    with pytest.raises(chordage.ConfigError, match="http://"):
        chordage.Client("fleet.example:8630")


def test_the_key_is_not_shown(client):
    assert "ck_1" not in repr(vars(client.client))


def test_ids_cannot_leave_their_place_in_the_path(client, fleet):
    fleet.answers = [answer(turn())]
    client.turn("../keys?x=1")
    assert fleet.requests[0].url.raw_path == b"/turns/..%2Fkeys%3Fx%3D1"


# Again


def test_a_repeated_message_has_the_same_key_and_is_no_duplicate_of_its_caller(client, fleet):
    fleet.answers = [
        BROKEN,
        httpx.ReadTimeout("late"),
        problem(503, "unavailable"),
        answer({**STORED, "duplicate": True}),
    ]
    submitted = client.submit("hi")

    assert not submitted.duplicate
    assert len({body["dedupe_key"] for body in fleet.bodies}) == 1
    assert len(fleet.pauses) == 3


def test_a_key_of_the_caller_is_sent_and_a_duplicate_is_reported(client, fleet):
    fleet.answers = [answer({**STORED, "duplicate": True})]
    assert client.submit("hi", dedupe_key="mine").duplicate
    assert fleet.bodies[0]["dedupe_key"] == "mine"


def test_two_messages_have_two_keys(client, fleet):
    fleet.answers = [answer(STORED)]
    client.submit("hi")
    client.submit("hi")
    assert len({body["dedupe_key"] for body in fleet.bodies}) == 2


def test_a_repeated_decision_has_the_same_key(client, fleet):
    fleet.answers = [BROKEN, answer({"decisions": [DECIDED]})]
    client.decide("q1", "approve")

    first, second = fleet.bodies
    assert first == second
    assert first["decisions"][0]["decision_key"]


def test_the_server_says_how_long_to_pause(client, fleet):
    fleet.answers = [problem(429, "too_many_requests", headers={"Retry-After": "7"}), answer(turn())]
    client.turn("t1")
    assert fleet.pauses == [7.0]


def test_pauses_grow_and_are_random_within_bounds(fleet):
    fleet.answers = [BROKEN] * 6
    client = Driven("sync", fleet, retries=5)
    with pytest.raises(chordage.Unavailable):
        client.turn("t1")
    assert [pause <= most for pause, most in zip(fleet.pauses, [0.2, 0.4, 0.8, 1.6, 3.2], strict=True)] == [True] * 5
    assert len(set(fleet.pauses)) == 5


def test_a_longer_pause_than_anyone_waits_is_left_to_the_caller(client, fleet):
    fleet.answers = [problem(429, "queue_full", headers={"Retry-After": str(int(LONGEST_PAUSE) + 1)})]
    with pytest.raises(chordage.QueueFull) as refused:
        client.submit("hi")
    assert (refused.value.retry_after, fleet.pauses) == (31.0, [])


def test_the_last_attempt_says_which_address_was_tried(fleet):
    fleet.answers = [BROKEN]
    with pytest.raises(chordage.Unavailable, match=r"http://fleet.example/turns/t1 cannot be reached.*no route"):
        Driven("sync", fleet, retries=2).turn("t1")
    assert len(fleet.requests) == 3


def test_a_room_that_is_broken_is_not_asked_again(client, fleet):
    fleet.answers = [problem(503, "broken_room", "agent.toml:3 is wrong")]
    with pytest.raises(chordage.Unavailable, match="agent.toml:3"):
        client.submit("hi")
    assert fleet.pauses == []


# Errors


@pytest.mark.parametrize(
    ("refusal", "error", "facts"),
    [
        (problem(422, "invalid", field="text"), chordage.InvalidMessage, {"field": "text", "too_large": False}),
        (problem(400, "bad_request"), chordage.InvalidMessage, {}),
        (problem(415, "unsupported_media_type"), chordage.InvalidMessage, {}),
        (problem(413, "too_large", field="text"), chordage.InvalidMessage, {"too_large": True}),
        (problem(404, "unknown_agent", field="agent"), chordage.UnknownAgent, {}),
        (problem(404, "not_found"), chordage.NotFound, {}),
        (problem(409, "conflict"), chordage.Conflict, {}),
        (
            problem(409, "step_refused", code="not_allowed", rev=3, standing="done"),
            chordage.StepRefused,
            {"code": "not_allowed", "rev": 3, "standing": "done"},
        ),
        (problem(412, "stale", code="stale_rev", rev=4), chordage.StepRefused, {"code": "stale_rev", "rev": 4}),
        (problem(401, "unauthenticated"), chordage.Unauthenticated, {}),
        (problem(403, "forbidden", scope="decide"), chordage.Forbidden, {"scope": "decide"}),
        (problem(421, "misdirected"), chordage.UserError, {}),
        (problem(500, "internal"), chordage.Unavailable, {}),
    ],
    ids=lambda value: value.json()["type"].rpartition(":")[2] if isinstance(value, httpx.Response) else "",
)
def test_a_refusal_is_the_exception_of_chordage(client, fleet, refusal, error, facts):
    fleet.answers = [refusal]
    with pytest.raises(error, match="because") as raised:
        client.turn("t1")
    assert type(raised.value) is error
    assert {name: getattr(raised.value, name) for name in facts} == facts
    assert fleet.pauses == []


def test_an_invalid_decision_is_told_from_an_invalid_message(client, fleet):
    fleet.answers = [problem(422, "invalid", field="decisions.0.payload")]
    with pytest.raises(chordage.InvalidDecision) as refused:
        client.decide("q1", "approve")
    assert refused.value.field == "decisions.0.payload"


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (httpx.Response(200, text="<html>hello"), "not as a server of chordage answers"),
        (answer({"hello": 1}), "not as a server of chordage answers"),
        (answer([1]), "not as a server of chordage answers"),
        (httpx.Response(500, text="proxy\nis sad"), "HTTP 500 Internal Server Error: proxy is sad"),
    ],
)
def test_an_answer_of_something_else_is_named_as_that(client, fleet, page, words):
    fleet.answers = [page]
    with pytest.raises(chordage.Unavailable, match=words):
        client.turn("t1")


def test_a_redirection_says_where_to(client, fleet):
    fleet.answers = [httpx.Response(308, headers={"Location": "https://fleet.example/turns/t1"})]
    with pytest.raises(chordage.UserError, match="redirected to https://fleet.example/turns/t1"):
        client.turn("t1")


# Answers


def test_fields_of_a_newer_server_are_passed_over_and_missing_ones_have_defaults(client, fleet):
    fleet.answers = [answer(turn(status="frozen", from_tomorrow={"x": 1}))]
    state = client.turn("t1")
    assert (state.status, state.is_done, state.answer, state.usage.input_tokens) == ("frozen", False, None, 0)


def test_a_question_has_its_schema(client, fleet):
    fleet.answers = [answer(turn(questions=[question()]))]
    state = client.turn("t1")
    assert state.is_waiting
    assert state.questions[0].answer_schema == {"type": "boolean"}
    assert state.questions[0].arguments == {"env": "prod"}


def test_the_inbox_is_read_page_by_page(client, fleet):
    fleet.answers = [
        answer({"data": [question(1), question(2)], "next": "q2"}),
        answer({"data": [question(3)], "next": None}),
    ]
    assert [one.id for one in client.inbox(agent="ada")] == ["q1", "q2", "q3"]
    assert [dict(request.url.params).get("after") for request in fleet.requests] == [None, "q2"]
    assert {request.url.params["agent"] for request in fleet.requests} == {"ada"}


def test_no_more_is_read_of_a_list_than_is_wanted(client, fleet):
    fleet.answers = [answer({"data": [question(1), question(2)], "next": "q2"})]
    assert [one.id for one in client.inbox(limit=2)] == ["q1", "q2"]
    assert [request.url.params["limit"] for request in fleet.requests] == ["2"]
    assert client.inbox(limit=0) == []


def test_a_denial_has_a_reason_and_no_payload(client, fleet):
    fleet.answers = [answer({"decisions": [DECIDED]})]
    client.decide(InboxQuestion.model_validate(question()), "deny", reason="too late")
    client.decide("q1", "approve", {"ok": 1}, edited_args={"env": "test"})

    denied, approved = (body["decisions"][0] for body in fleet.bodies)
    del denied["decision_key"], approved["decision_key"]
    assert denied == {"target": "q1", "action": "cancel", "reason": "too late"}
    assert approved == {"target": "q1", "action": "resume", "payload": {"ok": 1}, "edited_args": {"env": "test"}}


# Waiting


def test_a_wait_ends_with_the_turn(client, fleet):
    fleet.answers = [answer(turn()), answer(turn(status="done", disposition="answered", answer="4"))]
    state = client.wait("t1")
    assert (state.answer, state.ok, len(fleet.requests)) == ("4", True, 2)


def test_a_wait_ends_with_a_question_unless_others_decide(client, fleet):
    asking, done = answer(turn(questions=[question()])), answer(turn(status="done"))
    fleet.answers = [asking]
    assert client.wait("t1").is_waiting

    fleet.answers = [asking, done]
    assert client.wait("t1", stop_at_questions=False).is_done


def test_a_server_that_does_not_wait_is_not_asked_without_a_pause(client, fleet):
    fleet.answers = [answer(turn()), answer(turn()), answer(turn(status="done"))]
    client.wait("t1")
    assert fleet.pauses == [1.0, 1.0]


def test_a_wait_has_a_limit_and_says_of_which_turn(client, fleet):
    fleet.answers = [answer(turn(status="queued"))]
    with pytest.raises(TimeoutError, match="turn t1 is queued after 0 s"):
        client.wait("t1", 0)


def test_asking_is_submitting_and_waiting(client, fleet):
    fleet.answers = [answer(STORED, 202), answer(turn(status="done", answer="4"))]
    assert client.ask("2 + 2?", thread="a").answer == "4"
    assert fleet.requests[1].url.path == "/turns/t1"


# How much is read


def endless(request):
    def sent():
        while True:
            fed.append(1)
            yield b"x" * 1000

    async def asent():
        for part in sent():
            yield part

    fed = []
    stream = type("Endless", (httpx.SyncByteStream, httpx.AsyncByteStream), {
        "__iter__": lambda _self: sent(), "__aiter__": lambda _self: asent()
    })()  # fmt: skip
    return httpx.Response(200, stream=stream, headers={"Content-Type": "text/event-stream"})


@pytest.mark.parametrize("kind", BOTH)
def test_an_answer_without_an_end_is_read_up_to_the_bound_and_not_asked_for_again(kind, fleet):
    fleet.answers = [endless]
    client = Driven(kind, fleet, max_bytes=5000)

    with pytest.raises(chordage.AnswerTooLarge, match="GET http://fleet.example/turns/t1 has more than 5000 bytes"):
        client.turn("t1")
    with pytest.raises(chordage.AnswerTooLarge, match="an event of the stream has more than 5000 bytes"):
        client.stream("t1")

    assert (len(fleet.requests), fleet.pauses) == (2, [])


@pytest.mark.parametrize("kind", BOTH)
def test_an_answer_that_says_that_it_is_too_large_is_not_read_and_one_of_the_bound_is(kind, fleet):
    body = turn(text="x" * 500)
    size = len(httpx.Response(200, json=body).content)
    fleet.answers = [answer(body)]

    assert Driven(kind, fleet, max_bytes=size).turn("t1").turn_id == "t1"
    with pytest.raises(chordage.AnswerTooLarge):
        Driven(kind, fleet, max_bytes=size - 1).turn("t1")


@pytest.mark.parametrize("kind", BOTH)
def test_a_refusal_without_an_end_is_bounded_as_well(kind, fleet):
    fleet.answers = [lambda _request: httpx.Response(400, content=b"x" * 6000)]

    with pytest.raises(chordage.AnswerTooLarge):
        Driven(kind, fleet, max_bytes=5000).turn("t1")


# Forks


FORKED = {"thread_id": "api:new", "forked_from": "api:a", "upto": 7, "entries": 3, "turn_id": "t2"}


def test_a_fork_is_asked_for_with_what_was_given_alone(client, fleet):
    fleet.answers = [answer(FORKED, 201)]
    forked = client.fork("api:a", run_id="r1", step=2, run=True, edits={"model": "small"}, effects={"send", "add"})
    client.fork("api:a b")

    assert (forked.thread_id, forked.turn_id, forked.entries) == ("api:new", "t2", 3)
    paths = [request.url.raw_path for request in fleet.requests]
    assert paths == [b"/threads/api%3Aa/fork", b"/threads/api%3Aa%20b/fork"]
    whole = {"run_id": "r1", "step": 2, "run": True, "edits": {"model": "small"}, "effects": ["add", "send"]}
    assert fleet.bodies == [whole, {}]


@pytest.mark.parametrize("failure", [BROKEN, httpx.Response(502), httpx.Response(504)])
def test_a_fork_that_may_have_been_made_is_not_asked_for_again(client, fleet, failure):
    fleet.answers = [failure, answer(FORKED, 201)]
    with pytest.raises(chordage.Unavailable):
        client.fork("api:a")

    assert len(fleet.requests) == 1


def test_a_fork_that_was_refused_for_now_is_asked_for_again(client, fleet):
    fleet.answers = [httpx.Response(503), answer(FORKED, 201)]

    assert client.fork("api:a").thread_id == "api:new"


def test_a_comparison_has_its_first_difference(client, fleet):
    same = {"kind": "message", "number": 0, "first": {"step": 0, "name": "message", "text": None}, "second": None}
    other = {**same, "kind": "reply", "number": 1, "differs": ["text", "end"], "is_first": True, "unknown": 1}
    fleet.answers = [answer({"rows": [same, other]})]
    comparison = client.compare("r2", "r1")

    assert fleet.requests[0].url.raw_path == b"/runs/r2/compare?with=r1"
    assert comparison.first_difference is comparison.rows[1]
    assert (comparison.rows[0].first.name, comparison.rows[0].first.text) == ("message", None)
    assert comparison.rows[1].differs == ("text", "end")
