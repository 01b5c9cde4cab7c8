"""Suggestions of the search box, and searches that are saved under names."""

from __future__ import annotations

from html import unescape

import pytest

from chordage.config.settings import load
from chordage.orchestrator import stages, views
from chordage.orchestrator.core.audit import Actor
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.errors import Conflict
from chordage.orchestrator.core.keys import KeyTerms
from chordage.orchestrator.core.saved_views import PLACES, SavedView
from support import console_room
from support.console_room import HOSTILE, log_in, token_in

pytestmark = pytest.mark.redis


@pytest.fixture
def settings(tmp_path, migrated_database_url, redis_url):
    room = console_room.write(tmp_path / "room")
    return load(room=room, database_url=migrated_database_url("sqlite"), redis_url=redis_url)


@pytest.fixture
def console(client, rt):
    return log_in(client, rt.store)


def log_in_with_key(client, rt, *scopes):
    terms = KeyTerms(name="viewer", scopes=frozenset(scopes))
    key = stages.create_key(rt.store, terms, Actor(id="cli"), rt.now())
    client.cookies.clear()
    assert client.post("/console/login", data={"key": key.text}).status_code == 303
    return client


def save(console, name, query, **fields):
    csrf = token_in(console.get("/console/runs").text)
    return console.post("/console/views", data={"csrf": csrf, "name": name, "q": query, **fields})


def test_the_box_is_completed_by_the_server(console):
    answer = console.get("/console/suggest", params={"q": "status:failed agent:a"})

    assert unescape(answer.text) == '<option value="status:failed agent:ada">'
    assert 'value="status:waiting"' in console.get("/console/suggest", params={"q": "status:w"}).text
    assert console.get("/console/suggest", params={"q": HOSTILE}).text == ""
    assert 'list="suggestions"' in console.get("/console/").text


def test_a_search_is_saved_under_a_name_shown_as_a_link_and_deleted(console):
    assert save(console, "mine", "status:failed age:<1d").headers["location"].startswith("/console/runs?q=")

    page = unescape(console.get("/console/runs").text)
    assert 'href="/console/runs?q=status%3Afailed+age%3A%3C1d"' in page
    assert ">mine</a>" in page
    save(console, "mine", "status:waiting")
    assert ">mine</a>" in console.get("/console/runs", params={"q": "status:waiting"}).text

    csrf = token_in(page)
    assert console.post("/console/views", data={"csrf": csrf, "delete": "mine"}).status_code == 303
    assert ">mine</a>" not in console.get("/console/runs").text
    assert console.post("/console/views", data={"csrf": csrf, "delete": "mine"}).status_code == 404


def test_others_see_only_what_an_operator_shares(console, client, rt):
    save(console, "mine", "status:failed")
    save(console, "ours", "status:waiting", shared="1")

    other = log_in_with_key(client, rt, KeyScope.READ)
    page = other.get("/console/runs").text

    assert ">ours</a>" in page
    assert ">mine</a>" not in page
    assert "Delete the search" not in page
    assert save(other, "theirs", "status:waiting", shared="1").status_code == 403
    assert save(other, "theirs", "status:waiting").status_code == 303


def test_the_number_of_saved_searches_is_bounded(rt):
    for number in range(PLACES):
        stages.save_view(rt, SavedView(owner="x", name=str(number), query="q"))

    with pytest.raises(Conflict, match="delete one first"):
        stages.save_view(rt, SavedView(owner="x", name="more", query="q"))
    stages.save_view(rt, SavedView(owner="x", name="3", query="changed"))
    stages.delete_view(rt, "x", "4")
    stages.save_view(rt, SavedView(owner="x", name="more", query="q"))

    assert len(views.saved_views(rt.store, "x")) == PLACES


@pytest.mark.parametrize(("name", "query"), [("", "status:failed"), ("x" * 61, "status:failed"), ("x", "")])
def test_a_search_without_a_name_or_text_is_refused(console, name, query):
    assert save(console, name, query).status_code == 422


def test_names_that_would_break_out_of_a_page_stay_text(console):
    save(console, HOSTILE[:60], HOSTILE)

    assert "<script>alert" not in console.get("/console/runs").text
