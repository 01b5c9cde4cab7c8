"""The first minute: on an empty database one button sends a turn that ends with a question, which is approved."""

from __future__ import annotations

import re
import sys
from html import unescape

import pytest

from chordage.config.settings import load
from chordage.orchestrator import stages, views
from chordage.orchestrator.core.audit import Actor
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.intents import Advance
from chordage.orchestrator.core.keys import KeyTerms
from chordage.orchestrator.core.status import Disposition
from chordage.workers import example_room, local
from support.console_room import log_in, token_in

pytestmark = pytest.mark.redis

EMPTY_PAGES = ("/", "/runs", "/inbox")


@pytest.fixture
def agent_file():
    """How a test changes the room: from the text of its agent.toml to another."""
    return lambda text: text


@pytest.fixture
def settings(tmp_path, migrated_database_url, redis_url, monkeypatch, agent_file):
    room = tmp_path / "room"
    room.mkdir()
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "day_out", raising=False)  # of another room
    example_room.copy_to(room)
    (room / "agent.toml").write_text(agent_file((room / "agent.toml").read_text()))
    return load(room=room, database_url=migrated_database_url("sqlite"), redis_url=redis_url)


@pytest.fixture
def console(client, rt):
    return log_in(client, rt.store)


def press(console, page):
    """The button of the empty page."""
    form = re.search(r'<form method="post" action="([^"]+)" class="first">(.*?)</form>', page, re.DOTALL)
    fields = {name: unescape(value) for name, value in re.findall(r'name="([^"]+)" value="([^"]*)"', form[2])}
    return console.post(form[1], data=fields)


@pytest.mark.parametrize("path", EMPTY_PAGES)
def test_one_button_leads_to_a_question_and_its_approval_to_the_end(console, rt, path):
    page = console.get(f"/console{path}").text
    assert "so the call waits for you before it runs" in page

    turn_id = press(console, page).headers["location"].rpartition("/")[2]
    local.carry_out(rt, local.begin(rt, views.turn(rt.store, turn_id)))
    (question,) = views.turn(rt.store, turn_id).questions
    inbox = console.get("/console/inbox").text
    assert question.tool == "book_table"
    assert f"question-{question.id}" in inbox

    form = {"csrf": token_in(inbox), "target": question.id, "verdict": "approve"}
    assert console.post("/console/inbox", data=form).status_code == 303
    turn = views.turn(rt.store, turn_id)
    local.carry_out(rt, [Advance(run_id=turn.run_id, group=turn.group)])

    done = views.turn(rt.store, turn_id)
    assert (done.disposition, "Booked: a table for 2" in done.answer) == (Disposition.ANSWERED, True)
    assert all('class="first"' not in console.get(f"/console{each}").text for each in EMPTY_PAGES)


@pytest.mark.parametrize("agent_file", [lambda text: text.replace('ask = ["book_table"]', "ask = []")], ids=["none"])
def test_where_no_tool_asks_the_button_promises_no_question(console):
    page = console.get("/console/runs").text

    assert "It has no tool that asks a person" in page
    assert "a turn that asks you" not in page
    assert press(console, page).status_code == 303


@pytest.mark.parametrize("agent_file", [lambda _: "name ="], ids=["broken"])
def test_where_the_agent_is_broken_there_is_no_button(console):
    assert all('class="first"' not in console.get(f"/console{path}").text for path in EMPTY_PAGES)


def test_a_key_that_may_not_send_gets_no_button(client, rt):
    terms = KeyTerms(name="viewer", scopes=frozenset({KeyScope.READ}))
    key = stages.create_key(rt.store, terms, Actor(id="cli"), rt.now())
    assert client.post("/console/login", data={"key": key.text}).status_code == 303

    assert all('class="first"' not in client.get(f"/console{path}").text for path in EMPTY_PAGES)
