"""Bulk jobs in the console: a count first, then a job that the page follows. All by forms, without a script."""

from __future__ import annotations

import re
from html import unescape

import pytest

from chordage.config.settings import load
from chordage.orchestrator import stages, views
from chordage.orchestrator.core.audit import Actor
from chordage.orchestrator.core.bulk import BulkState
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.keys import KeyTerms
from chordage.orchestrator.core.status import Disposition
from support import console_room
from support.console_room import log_in, stream, token_in, waiting_turn

pytestmark = pytest.mark.redis


@pytest.fixture
def settings(tmp_path, migrated_database_url, redis_url):
    room = console_room.write(tmp_path / "room")
    return load(room=room, database_url=migrated_database_url("sqlite"), redis_url=redis_url)


@pytest.fixture
def console(client, rt):
    return log_in(client, rt.store)


def page(console, path, status=200, **query):
    response = console.get(f"/console{path}", params=query or None)
    assert response.status_code == status, response.text[:2000]
    return unescape(response.text)


def send(console, shown):
    """The form of a page that asks for a confirmation, as a browser sends it."""
    form = re.search(r'<form[^>]* action="([^"]+/bulk)">(.*?)</form>', shown, re.DOTALL)
    fields = re.findall(r'name="([^"]+)" value="([^"]*)"', form[2])
    data = {}
    for name, value in fields:
        data.setdefault(name, []).append(value)
    return console.post(form[1], data=data)


def work(rt, job_id):
    while views.bulk_job(rt.store, job_id).is_open:
        stages.continue_bulk(rt, job_id)
    return views.bulk_job(rt.store, job_id)


def waiting(rt, number):
    return [waiting_turn(rt, "pay", thread_id=f"t{one}").turn_id for one in range(number)]


def dispositions(rt, turns):
    return [views.turn(rt.store, turn).disposition for turn in turns]


def test_all_that_fit_are_counted_and_then_cancelled_by_a_worker(console, rt):
    turns = waiting(rt, 4)
    assert "Cancel all that fit" in page(console, "/runs", q="status:waiting")

    asked = page(console, "/bulk/new", action="cancel", q="status:waiting")
    assert "Cancel 4 turns?" in asked
    assert "what has taken effect stays" in asked
    response = send(console, asked)

    assert dispositions(rt, turns) == [None] * 4, "nothing is done in the request"
    job_id = response.headers["location"].rpartition("/")[2]
    assert work(rt, job_id).done == 4
    assert dispositions(rt, turns) == [Disposition.CANCELLED] * 4
    shown = page(console, f"/bulk/{job_id}")
    assert "4 done" in shown
    assert "of 4 counted" in shown


def test_selected_turns_alone_are_cancelled_and_refusals_say_why(console, rt):
    first, second, third = waiting(rt, 3)
    stages.cancel_turn(rt, second)
    assert page(console, "/runs").count('form="chosen"') == 3

    job_id = send(console, page(console, "/bulk/new", action="cancel", id=[first, second])).headers["location"][14:]
    job = work(rt, job_id)

    assert (job.done, job.refused) == (1, 1)
    assert dispositions(rt, [first, third]) == [Disposition.CANCELLED, None]
    assert "it was done before" in page(console, f"/bulk/{job_id}")
    assert "Bulk jobs" in page(console, "/bulk")


def test_a_confirmation_that_is_sent_twice_is_one_job(console, rt):
    waiting(rt, 1)
    asked = page(console, "/bulk/new", action="cancel", q="status:waiting")

    assert send(console, asked).headers["location"] == send(console, asked).headers["location"]
    assert len(views.bulk_jobs(rt.store)) == 1


def test_turns_are_retried_by_a_search(console, rt):
    turns = waiting(rt, 2)
    for turn in turns:
        stages.cancel_turn(rt, turn)

    asked = page(console, "/bulk/new", action="retry", q="status:cancelled")
    assert "Retry 2 turns?" in asked
    assert work(rt, send(console, asked).headers["location"][14:]).done == 2
    assert len(views.turns(rt.store, limit=9)) == 4


@pytest.mark.parametrize(
    ("action", "query", "fault"),
    [
        ("cancel", "", "turns that are not done"),
        ("cancel", "status:answered", "turns that are not done"),
        ("cancel", "status:waiting status:nonsense", "status:nonsense"),
        ("cancel", "deadbeef", "an id is no search"),
        ("retry", "status:waiting", "turns that ended without an answer"),
        ("delete", "status:waiting", "choose to cancel"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_with_what_to_do(console, action, query, fault):
    assert fault in page(console, "/bulk/new", 422, action=action, q=query)


def test_a_job_is_stopped_once(console, rt):
    turns = waiting(rt, 2)
    job_id = send(console, page(console, "/bulk/new", action="cancel", q="status:waiting")).headers["location"][14:]
    csrf = token_in(page(console, f"/bulk/{job_id}"))

    assert console.post(f"/console/bulk/{job_id}/stop", data={"csrf": csrf}).status_code == 303
    again = console.post(f"/console/bulk/{job_id}/stop", data={"csrf": csrf})

    assert again.status_code == 409
    assert "It is over" in again.text
    assert work(rt, job_id).state is BulkState.STOPPED
    assert dispositions(rt, turns) == [None, None]


def test_the_page_of_a_job_follows_it_and_ends(console, rt):
    waiting(rt, 2)
    job_id = send(console, page(console, "/bulk/new", action="cancel", q="status:waiting")).headers["location"][14:]
    with stream(console, f"/console/bulk/{job_id}/live") as messages:
        next(messages)
        work(rt, job_id)
        rest = list(messages)

    update = next(message for message in rest if "2 done" in message)
    assert 'hx-target="#bulk-actions"' in update
    assert "Stop this job" not in update
    assert rest[-1] == "event: over\nover"


def test_a_tenant_sees_its_own_jobs_and_turns(console, client, rt):
    waiting(rt, 1)
    theirs = send(console, page(console, "/bulk/new", action="cancel", q="status:waiting")).headers["location"][14:]
    scopes = frozenset(KeyScope) - {KeyScope.ADMIN}
    key = stages.create_key(rt.store, KeyTerms(name="acme", tenant="acme", scopes=scopes), Actor(id="cli"), rt.now())
    client.cookies.clear()
    assert client.post("/console/login", data={"key": key.text}).status_code == 303

    page(client, f"/bulk/{theirs}", 404)
    assert theirs not in page(client, "/bulk")
    assert "Cancel 0 turns?" in page(client, "/bulk/new", action="cancel", q="status:waiting")


def test_a_key_without_operate_asks_for_nothing(client, rt):
    scopes = frozenset({KeyScope.READ})
    key = stages.create_key(rt.store, KeyTerms(name="viewer", scopes=scopes), Actor(id="cli"), rt.now())
    assert client.post("/console/login", data={"key": key.text}).status_code == 303

    page(client, "/bulk/new", 403, action="cancel", q="status:waiting")
    assert "data-pick" not in page(client, "/runs")


def test_names_that_would_break_out_of_a_page_stay_text(console, rt):
    waiting(rt, 1)
    response = console.get("/console/bulk/new", params={"action": "cancel", "q": 'status:waiting text:"<script>x"'})

    assert response.status_code == 200
    assert "<script>x" not in response.text
