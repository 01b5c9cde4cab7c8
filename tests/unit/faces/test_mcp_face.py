"""What a host of MCP is offered and reads: names of tools, what a key may call, and words for each state of a turn."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.model import Usage
from chordage.orchestrator.faces import mcp
from chordage.orchestrator.faces.moments import QuestionAsked, Queued, Started, TurnEnded, Waiting

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ALL = frozenset(KeyScope)


def question(schema=None):
    return QuestionAsked(
        id="q1", call_id="c1", tool="deploy", arguments={"env": "prüf"}, why="tool", prompt="May I?", schema=schema,
        digest="", created_at=NOW, expires_at=NOW, on_expiry="deny", run_id="r1",
    )  # fmt: skip


def ended(disposition="answered", **more):
    fields = {"reason": None, "code": None, "detail": None, "text": None, "output": None, **more}
    return TurnEnded(disposition=disposition, usage=Usage(), at=NOW, **fields)


def result(moment):
    return mcp.result(moment, turn_id="t1", thread_id="api:a")


def test_names_of_tools_are_those_that_hosts_accept_and_differ():
    named = mcp.agents_by_tool(["ada", "Ümit & co", "a.b", "a b", "a/b", "x" * 90, "x" * 91])

    assert named["ask_ada"] == "ada"
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") for name in named)
    assert all(len(name) <= 64 for name in named)
    assert len(named) == len(set(named.values())) == 7
    assert [name for name in named if name.startswith("ask_a_b")] == ["ask_a_b", "ask_a_b_2", "ask_a_b_3"]


def test_an_agent_cannot_take_the_name_of_another_tool():
    assert not {mcp.STATUS, mcp.ANSWER} & mcp.agents_by_tool(["turn_status", "turn_answer"]).keys()


@pytest.mark.parametrize(
    ("scopes", "names"),
    [
        (ALL, {"ask_ada", "turn_status", "turn_answer"}),
        (ALL - {KeyScope.DECIDE}, {"ask_ada", "turn_status"}),
        (ALL - {KeyScope.SUBMIT}, {"turn_status", "turn_answer"}),
        (ALL - {KeyScope.PAYLOADS}, set()),
    ],
)
def test_a_key_is_offered_what_it_may_call(scopes, names):
    assert {tool["name"] for tool in mcp.tools(["ada"], scopes)} == names


def test_an_answer_is_text_and_a_structure_with_the_thread_to_continue():
    answered = result(ended(text="4", output={"n": 4}))
    assert [part["text"] for part in answered["content"]] == ["4", "(thread api:a)"]
    assert answered["structuredContent"] == {
        "turn": "t1", "thread": "api:a", "status": "answered", "answer": "4", "output": {"n": 4}
    }  # fmt: skip
    assert not answered["isError"]


def test_a_turn_without_an_answer_is_an_error_that_says_why():
    failed = result(ended("failed", code="auth", detail="the key is wrong"))
    assert failed["isError"]
    assert failed["content"][0]["text"] == "There is no answer: the turn ended as failed (auth: the key is wrong)."


def test_a_question_is_shown_as_what_would_run():
    waiting = result(Waiting(questions=(question({"type": "boolean"}),), usage=Usage()))
    text = waiting["content"][0]["text"]

    assert 'question q1: deploy {"env": "prüf"} (May I?)' in text
    assert '{"type": "boolean"}' in text
    assert "Nothing of this has run yet" in text
    assert waiting["structuredContent"]["questions"][0]["arguments"] == {"env": "prüf"}
    assert not waiting["isError"]


@pytest.mark.parametrize(
    ("moment", "status"),
    [
        (Queued(turn_id="t1", thread_id="api:a", why="budget full"), "queued"),
        (Started(turn_id="t1", run_id="r1", thread_id="api:a", agent="ada", at=NOW, text="hi"), "running"),
    ],
)
def test_a_turn_that_is_not_over_says_how_to_read_it_later(moment, status):
    later = result(moment)
    assert later["structuredContent"]["status"] == status
    assert "Read it later with turn_status; do not ask again." in later["content"][0]["text"]


@pytest.mark.parametrize(
    ("form", "choice"),
    [
        ({"action": "accept", "content": {"decision": "approve"}}, ("approve", None)),
        ({"action": "accept", "content": {"decision": "deny", "reason": "no"}}, ("deny", "no")),
        ({"action": "decline"}, ("deny", None)),
        ({"action": "cancel"}, None),
        ({"action": "accept", "content": {}}, None),
        ({"action": "accept", "content": {"decision": "maybe"}}, None),
        ({"action": "accept", "content": {"decision": True}}, None),
        ({}, None),
    ],
)
def test_only_a_clear_choice_of_the_person_is_a_decision(form, choice):
    assert mcp.decision_in(form) == choice
