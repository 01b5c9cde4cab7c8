"""The page of a link to one question: without an account, once, and only about what it shows."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import urlsplit

import pytest

from chordage.config.settings import load
from chordage.orchestrator import stages, views
from chordage.orchestrator.core.approvals import Action, DecisionRequest
from chordage.orchestrator.core.audit import CLI
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.errors import InvalidDecision
from chordage.orchestrator.core.inert import inert
from chordage.orchestrator.core.keys import KeyTerms
from chordage.orchestrator.store import approvals
from support import console_room
from support.console_room import HOSTILE, log_in, token_in, waiting_turn
from support.web_server import PROBLEM

pytestmark = pytest.mark.redis


@pytest.fixture
def settings(tmp_path, migrated_database_url, redis_url):
    room = console_room.write(tmp_path / "room")
    return load(room=room, database_url=migrated_database_url("sqlite"), redis_url=redis_url)


def question_of(rt, text="pay"):
    turn = waiting_turn(rt, text, space="api")
    (question,) = views.turn(rt.store, turn.turn_id).questions
    return question


def answer_to(rt, question):
    with rt.store.read() as tx:
        return approvals.decision_of(tx, question.id)


def make_link(client, question, **body):
    answer = client.post(f"/inbox/{question.id}/link", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def path_of(link):
    return urlsplit(link["url"]).path


def test_a_link_shows_what_would_run_and_approves_it_without_an_account(client, rt):
    question = question_of(rt)
    link = make_link(client, question, expires_in=600)
    client.cookies.clear()

    page = client.get(path_of(link))

    assert page.status_code == 200
    shown = unescape(re.sub(r"<[^>]+>", "", page.text))
    assert "Exactly this would run" in shown
    written = HOSTILE.replace("\U000e0041", "??")  # YAML has it as two halves, which no text can hold
    assert inert(written) in unescape(page.text), "the argument as it is, with hidden characters made visible"
    assert "<img" not in page.text, "what a model wrote is inert"
    assert HOSTILE not in page.text
    assert "Edit the arguments" not in shown
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert client.get(path_of(link)).status_code == 200, "to look uses nothing up"

    done = client.post(path_of(link), data={"verdict": "approve"})

    assert (done.status_code, "Approved." in done.text) == (200, True)
    state = answer_to(rt, question)
    assert state.action == "resume"
    for again in (client.get(path_of(link)), client.post(path_of(link), data={"verdict": "deny"})):
        assert again.status_code in {409, 410}
        assert "was used at" in again.text


def test_a_link_denies_with_a_reason(client, rt):
    question = question_of(rt)
    link = make_link(client, question)

    done = client.post(path_of(link), data={"verdict": "deny", "reason": "twice this week"})

    assert "Denied." in done.text
    assert answer_to(rt, question).reason == "twice this week"


def test_a_question_with_a_form_is_answered_by_it(client, rt):
    question = question_of(rt, "amount")
    link = make_link(client, question)
    page = client.get(path_of(link)).text
    fields = [unescape(name) for name in re.findall(r'<(?:input|select) name="([^"]+)"', page)]
    amount, method = (name for name in fields if name != "reason")

    wrong = client.post(path_of(link), data={"verdict": "approve", amount: "many", method: '"card"'})
    right = client.post(path_of(link), data={"verdict": "approve", amount: "12", method: '"card"'})

    assert wrong.status_code == 422
    assert 'role="alert"' in wrong.text
    assert right.status_code == 200
    assert answer_to(rt, question).payload == {"amount": 12, "method": "card"}


def test_a_link_gives_no_permission_for_later_calls(client, rt):
    question = question_of(rt)
    link = make_link(client, question)

    page = client.get(path_of(link)).text
    with pytest.raises(InvalidDecision, match="calls that come after it"):
        stages.decide_by_link(
            rt,
            path_of(link).rpartition("/")[2],
            DecisionRequest(target="", action=Action.RESUME, payload={"remember": True}),
            secret=stages.session_secret(rt.store),
        )

    assert "remember" not in page
    assert answer_to(rt, question) is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"verdict": "approve", "arguments": '{"order": "18"}'}, "cannot be changed"), ({"verdict": "maybe"}, "choose")],
)
def test_a_form_that_the_page_did_not_make_decides_nothing(client, rt, fields, words):
    question = question_of(rt)
    link = make_link(client, question)

    answer = client.post(path_of(link), data=fields)

    assert (answer.status_code, words in answer.text) == (422, True)
    assert answer_to(rt, question) is None


def test_a_page_of_another_site_cannot_send_the_form(client, rt):
    question = question_of(rt)
    link = make_link(client, question)

    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}):
        answer = client.post(path_of(link), data={"verdict": "approve"}, headers=headers)
        assert answer.status_code == 403
    assert answer_to(rt, question) is None


def test_an_address_that_was_changed_or_is_of_another_question_says_so(client, rt):
    link = make_link(client, question_of(rt))

    for path in (path_of(link)[:-1], path_of(link) + "x", "/console/ask/nonsense", "/console/ask/" + "x" * 300):
        assert client.get(path).status_code == 404
        assert client.post(path, data={"verdict": "approve"}).status_code == 404


def test_what_was_decided_meanwhile_is_said(client, rt):
    question = question_of(rt)
    first, second = make_link(client, question), make_link(client, question)
    client.post(path_of(first), data={"verdict": "approve"})

    page = client.get(path_of(second))

    assert page.status_code == 410
    assert "This question was approved at " in page.text


def test_the_inbox_makes_a_link_and_shows_it_once(client, rt):
    console = log_in(client, rt.store)
    question = question_of(rt)
    page = console.get("/console/inbox").text

    made = console.post("/console/inbox/link", data={"csrf": token_in(page), "target": question.id})

    (path,) = re.findall(r'data-copy="[^"]*(/console/ask/[^"]+)"', made.text)
    console.cookies.clear()
    assert console.get(unescape(path)).status_code == 200
    assert console.post("/console/inbox/link", data={"target": question.id}).status_code in {401, 403}


def test_a_link_wants_the_scopes_to_decide_and_to_see_and_the_questions_own_tenant(client, rt):
    question = question_of(rt)

    def status(scopes, tenant=None):
        terms = KeyTerms(name="k", tenant=tenant, scopes=frozenset(scopes))
        key = stages.create_key(rt.store, terms, CLI, rt.now()).text
        answer = client.post(f"/inbox/{question.id}/link", json={}, headers={"Authorization": f"Bearer {key}"})
        if answer.status_code != 201:
            assert answer.headers["content-type"] == PROBLEM
        return answer.status_code

    assert status({KeyScope.READ, KeyScope.PAYLOADS}) == 403
    assert status({KeyScope.READ, KeyScope.DECIDE}) == 403
    assert status({KeyScope.DECIDE, KeyScope.PAYLOADS}, tenant="globex") == 404
    assert status({KeyScope.DECIDE, KeyScope.PAYLOADS}) == 201
    assert client.post(f"/inbox/{question.id}/link", json={"expires_in": 5}).status_code == 422
