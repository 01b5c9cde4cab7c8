"""Fork a run from a step in the console, as a browser does it without script, and compare the two."""

from __future__ import annotations

import re
from html import unescape

import pytest

from chordage.config.settings import load
from chordage.orchestrator import stages, views
from chordage.orchestrator.core.approvals import Action, DecisionRequest
from chordage.orchestrator.core.audit import Actor
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.inert import inert
from chordage.orchestrator.core.intents import Advance
from chordage.orchestrator.core.keys import KeyTerms
from chordage.orchestrator.core.stepping import StepRequest, Verb
from chordage.orchestrator.views.runs import ToolRound
from chordage.tasks.schema import request_from
from chordage.workers import local
from support import console_room
from support.console_room import HOSTILE, log_in, token_in, waiting_turn
from support.web_server import finish

pytestmark = pytest.mark.redis


@pytest.fixture
def settings(tmp_path, migrated_database_url, redis_url):
    room = console_room.write(tmp_path / "room")
    return load(room=room, database_url=migrated_database_url("sqlite"), redis_url=redis_url)


@pytest.fixture
def console(client, rt):
    return log_in(client, rt.store)


@pytest.fixture
def paid(rt):
    """A run with one call that a person has approved; its texts try to break out of every page."""
    return paid_by(rt)


def paid_by(rt, **fields):
    turn = waiting_turn(rt, "pay " + HOSTILE, **fields)
    (question,) = views.turn(rt.store, turn.turn_id).questions
    stages.decide(rt, [DecisionRequest(target=question.id, action=Action.RESUME, payload=True)], source="test")
    local.carry_out(rt, [Advance(run_id=turn.run_id, group=turn.group)])
    done = views.turn(rt.store, turn.turn_id)
    assert done.answer
    return done


def get(console, path, **query):
    response = console.get(f"/console{path}", params=query or None)
    assert response.status_code == 200, response.text[:2000]
    return response.text


def form_of(console, run_id, step=1):
    return get(console, f"/runs/{run_id}/fork", step=step)


def send(console, run_id, page, **fields):
    return console.post(f"/console/runs/{run_id}/fork", data={"csrf": token_in(page), "step": "1", **fields})


def forked(rt, response):
    assert response.status_code == 303, unescape(response.text)[:3000]
    turn_id = response.headers["location"].rpartition("/")[2].partition("?")[0]
    finish(rt, turn_id)
    return views.turn(rt.store, turn_id)


def fields_of(page):
    """As a browser sends the form that nobody has touched."""
    texts = re.findall(r'<textarea name="([^"]+)"[^>]*>(.*?)</textarea>', page, re.DOTALL)
    return {unescape(name): unescape(text).removeprefix("\n").replace("\n", "\r\n") for name, text in texts}


def calls_of(rt, run_id):
    rounds = [step for step in views.run(rt.store, run_id).steps if isinstance(step, ToolRound)]
    return [call for step in rounds for call in step.calls]


def test_each_step_with_calls_leads_to_its_fork(console, paid):
    page = get(console, f"/runs/{paid.run_id}")

    assert f'href="/console/runs/{paid.run_id}/fork?step=1" data-key="f"' in page
    assert f'href="/console/runs/{paid.run_id}/fork?step=0" data-key="f"' in page
    assert page.count("Fork from here") == 1, "nothing is behind the last reply"


def test_the_form_says_what_the_record_will_answer(console, paid):
    page = form_of(console, paid.run_id)

    assert "1 call can be answered from the record" in page
    assert "1 of them may have had an effect" in page
    assert "idempotent, 1 in the record" in page
    assert set(fields_of(page)) == {"text", f"arguments.{calls_ask(page)}", "instructions"}


def calls_ask(page):
    return unescape(re.findall(r'name="arguments\.([^"]+)"', page)[0])


def test_a_form_that_nobody_has_touched_edits_nothing(console, rt, paid):
    page = form_of(console, paid.run_id)

    turn = forked(rt, send(console, paid.run_id, page, **fields_of(page)))

    (call,) = calls_of(rt, turn.run_id)
    (source,) = calls_of(rt, paid.run_id)
    assert (turn.text, turn.fork_of) == (paid.text, paid.run_id)
    assert (call.answered_from, call.content, call.arguments) == (source.id, source.content, source.arguments)
    assert turn.answer == paid.answer
    assert turn.questions == ()


def test_edited_arguments_are_not_carried_out(console, rt, paid):
    page = form_of(console, paid.run_id)
    fields = fields_of(page)
    fields[f"arguments.{calls_ask(page)}"] = '{"order": "99", "amount": 1}'

    turn = forked(rt, send(console, paid.run_id, page, **fields))

    (call,) = calls_of(rt, turn.run_id)
    assert (call.arguments, call.code) == ({"order": "99", "amount": 1}, "not_run_in_fork")


def test_an_allowed_tool_runs_as_any_other_and_asks_for_permission(console, rt, paid):
    page = form_of(console, paid.run_id)
    fields = fields_of(page)
    fields[f"arguments.{calls_ask(page)}"] = '{"order": "99", "amount": 1}'

    response = send(console, paid.run_id, page, **fields, effects="pay")

    turn_id = response.headers["location"].rpartition("/")[2].partition("?")[0]
    local.begin(rt, views.turn(rt.store, turn_id))
    local.carry_out(rt, [Advance(run_id=views.turn(rt.store, turn_id).run_id, group=paid.group)])
    (question,) = views.turn(rt.store, turn_id).questions
    assert question.tool == "pay"


def test_the_run_of_a_fork_says_so_and_leads_to_the_comparison(console, rt, paid):
    page = form_of(console, paid.run_id)
    response = send(console, paid.run_id, page, **fields_of(page))
    turn = forked(rt, response)

    at_once = console.get(response.headers["location"])
    shown = get(console, f"/runs/{turn.run_id}")

    assert at_once.headers["location"] == f"/console/runs/{turn.run_id}?done=forked"
    assert f'A fork of <a href="/console/runs/{paid.run_id}">' in shown
    assert f'href="/console/runs/{turn.run_id}/compare"' in shown
    assert '<span class="tag">from the record</span>' in shown
    assert '<span class="tag">repeated</span>' in shown
    assert 'data-key="r"' not in shown, "a retry would be a plain turn"


def test_two_runs_that_are_the_same_do_not_differ(console, rt, paid):
    page = form_of(console, paid.run_id)
    turn = forked(rt, send(console, paid.run_id, page, **fields_of(page)))

    shown = get(console, f"/runs/{turn.run_id}/compare")

    assert "The two do not differ" in shown
    assert "first-difference" not in shown


def test_the_first_difference_is_marked(console, rt, paid):
    page = form_of(console, paid.run_id)
    fields = fields_of(page)
    fields[f"arguments.{calls_ask(page)}"] = '{"order": "99", "amount": 1}'
    turn = forked(rt, send(console, paid.run_id, page, **fields))

    shown = get(console, f"/runs/{turn.run_id}/compare")

    assert "call in round 1 (arguments, result)" in shown
    assert shown.count('id="first-difference"') == 1
    assert "<b>First difference</b>: arguments, result" in shown
    assert get(console, f"/runs/{paid.run_id}/compare", **{"with": turn.run_id})


def test_texts_are_inert_in_the_form_and_in_the_comparison(console, rt, paid):
    form = form_of(console, paid.run_id)
    refused = send(console, paid.run_id, form, **{**fields_of(form), "model": HOSTILE, "instructions": HOSTILE})
    turn = forked(rt, send(console, paid.run_id, form, **{**fields_of(form), "text": f"pay other {HOSTILE}"}))
    pages = [form, refused.text, get(console, f"/runs/{turn.run_id}/compare"), get(console, f"/runs/{turn.run_id}")]

    assert refused.status_code == 422
    assert fields_of(refused.text)["instructions"] == inert(HOSTILE), "what was written is still there"
    for page in pages:
        for text in ("<script>alert", "<img", "<hx-", "</textarea></script>", "<b onclick"):
            assert text not in page


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": "other"}, "names no model 'other'"),
        ({"arguments": "{"}, "give JSON"),
        ({"arguments": "[1]"}, "give a JSON object"),
        ({"arguments": '{"order": "\\u0000"}'}, "hold a NUL character"),
        ({"step": "the last"}, "nothing comes behind it"),
    ],
)
def test_what_is_refused_leaves_the_form_as_it_was(console, rt, paid, fields, words):
    page = form_of(console, paid.run_id)
    if "arguments" in fields:
        fields = {f"arguments.{calls_ask(page)}": fields["arguments"]}
    if "step" in fields:
        fields = {"step": str(views.run(rt.store, paid.run_id).steps[-1].number)}

    response = send(console, paid.run_id, page, **{**fields_of(page), **fields})

    assert response.status_code == 422
    assert words in unescape(response.text)
    assert 'class="fault" role="alert"' in response.text
    assert len(views.turns(rt.store)) == 1


@pytest.mark.parametrize("step", ["x", "-1", "", "99999999999", "9" * 5000])
def test_a_step_that_is_no_number_is_not_found(console, paid, step):
    page = form_of(console, paid.run_id)

    assert send(console, paid.run_id, page, step=step).status_code == 404


def test_a_form_without_its_token_forks_nothing(console, rt, paid):
    response = console.post(f"/console/runs/{paid.run_id}/fork", data={"step": "1"})

    assert response.status_code == 403
    assert len(views.turns(rt.store)) == 1


def test_a_run_that_is_no_fork_wants_another_to_be_compared_with(console, paid):
    response = console.get(f"/console/runs/{paid.run_id}/compare")

    assert response.status_code == 404
    assert "?with=RUN" in response.text


def test_the_console_does_not_retry_a_fork(console, rt, paid):
    page = form_of(console, paid.run_id)
    turn = forked(rt, send(console, paid.run_id, page, **fields_of(page)))

    response = console.post(f"/console/runs/{turn.run_id}/retry", data={"csrf": token_in(page)})

    assert response.status_code == 409
    assert "fork once more" in response.text


# keys


def logged_in(client, rt, *scopes, **fields):
    key = stages.create_key(
        rt.store, KeyTerms(name="k", scopes=frozenset(scopes), **fields), Actor(id="cli"), rt.now()
    ).text  # fmt: skip
    assert client.post("/console/login", data={"key": key}).status_code == 303
    return client


def test_without_payloads_a_fork_is_made_and_no_text_is_shown(client, rt):
    paid = paid_by(rt, space="api")
    browser = logged_in(client, rt, KeyScope.READ, KeyScope.OPERATE, KeyScope.SUBMIT)
    form = form_of(browser, paid.run_id)
    turn = forked(rt, send(browser, paid.run_id, form, **fields_of(form)))

    pages = [form, get(browser, f"/runs/{turn.run_id}/compare"), get(browser, f"/runs/{turn.run_id}")]

    assert turn.text == paid.text
    for page in pages:
        for text in ("alert(1)", "paid", "123456789"):
            assert text not in page


@pytest.mark.parametrize("scope", [KeyScope.OPERATE, KeyScope.SUBMIT])
def test_a_fork_wants_operate_and_submit(client, rt, scope):
    paid = paid_by(rt, space="api")
    browser = logged_in(client, rt, KeyScope.READ, scope)
    page = get(browser, f"/runs/{paid.run_id}")

    assert "/fork?step=" not in page
    assert browser.get(f"/console/runs/{paid.run_id}/fork").status_code == 403
    assert send(browser, paid.run_id, get(browser, "/inbox")).status_code == 403
    assert len(views.turns(rt.store)) == 1


def test_a_run_of_another_tenant_is_not_found(client, rt):
    paid = paid_by(rt, space="api")
    browser = logged_in(client, rt, *KeyScope, tenant="acme")
    token = token_in(get(browser, "/inbox"))

    answers = [
        browser.get(f"/console/runs/{paid.run_id}/fork"),
        browser.get(f"/console/runs/{paid.run_id}/compare"),
        browser.post(f"/console/runs/{paid.run_id}/fork", data={"csrf": token, "step": "1"}),
    ]

    assert [answer.status_code for answer in answers] == [404, 404, 404]
    for answer in answers:
        assert f"there is no run {paid.run_id!r}" in unescape(answer.text), "in the words of an id that does not exist"
        assert paid.turn_id not in answer.text


def test_a_fork_of_an_agent_that_the_key_is_not_for_is_refused(client, rt):
    paid = paid_by(rt, space="api")
    browser = logged_in(client, rt, *KeyScope, agents=frozenset({"bob"}))

    response = send(browser, paid.run_id, get(browser, "/inbox"))

    assert response.status_code == 403
    assert len(views.turns(rt.store)) == 1


def test_a_run_that_cannot_be_repeated_says_so_before_a_form_is_filled_in(console, rt):
    turn_id = stages.admit(rt, request_from({"text": "echo", "control": "step"}, source="test", space="api"))[0].turn_id
    stages.step(rt, StepRequest(target=turn_id, verb=Verb.RUN))
    finish(rt, turn_id)
    run_id = views.turn(rt.store, turn_id).run_id

    refused = console.get(f"/console/runs/{run_id}/fork", params={"step": 1})

    assert refused.status_code == 409
    assert "held its reply for its consumer" in refused.text
    assert "fork at step 0 or before" in refused.text
    assert "Fork and run" not in refused.text
    assert "Fork and run" in form_of(console, run_id, step=0)
