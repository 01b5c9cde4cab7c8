"""A link to one question: it decides once, about what it was made for, while others decide and processes die."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import update

from chordage.orchestrator import stages
from chordage.orchestrator.core.approvals import Action, DecisionRequest, Question, Why
from chordage.orchestrator.core.audit import Actor
from chordage.orchestrator.core.errors import Conflict, InvalidDecision, NotFound
from chordage.orchestrator.store import audit, schema
from support.fakes import rounds_of
from support.world import Died

ANN = Actor(id="ann")
SECRET = b"of all servers"
YES = DecisionRequest(target="", action=Action.RESUME, payload=True)
NO = DecisionRequest(target="", action=Action.CANCEL, reason="not today")


def once(question):
    """The tool asks the first time."""
    left = [question]
    return lambda order: left.pop() if left else None


@pytest.fixture
def question(world):
    world.models.script = rounds_of(1)
    world.tools.asks = once(Question(why=Why.TOOL, prompt="May it?"))
    world.submit()
    world.run_dry()
    (row,) = world.inbox()
    return row["id"]


def link(world, question, **more):
    given = {"by": ANN, "now": world.clock(), "link_id": world.runtime.new_id(), "secret": SECRET, **more}
    return stages.make_question_link(world.store, question, **given).token


def decide(world, token, request=YES):
    with world.as_another_process():
        decided, intents = stages.decide_by_link(world.runtime, token, request, secret=SECRET, address="192.0.2.9")
    world.pending += intents
    return decided


def test_a_link_decides_once_and_is_recorded_as_who_decided(world, question):
    token = link(world, question)

    decide(world, token)
    world.run_dry()

    (made,) = world.rows("question_links")
    (decision,) = world.rows("decisions")
    assert (decision["decided_by"], decision["source"]) == (f"link:{made['id']}", "link")
    assert (made["decision_id"], made["made_by"]) == (decision["id"], "ann")
    assert world.row("turns")["disposition"] == "answered"
    with world.store.read() as tx:
        entries = [(entry.action, entry.actor, entry.address) for entry in audit.newest(tx, limit=9)]
    assert entries == [("decided", f"link:{made['id']}", "192.0.2.9"), ("link_made", "ann", None)]
    with pytest.raises(Conflict, match="this link was used at"):
        decide(world, token)
    assert len(world.rows("decisions")) == 1


def test_a_denial_has_its_reason(world, question):
    decide(world, link(world, question), NO)

    (decision,) = world.rows("decisions")
    assert (decision["action"], decision["reason"]) == ("cancel", "not today")


def test_only_a_hash_of_the_address_is_stored(world, question):
    token = link(world, question)

    stored = repr([world.rows(table) for table in ("question_links", "caller_audit", "journal")])
    assert token not in stored
    assert token.partition(".")[0] not in stored


def test_a_link_that_expired_decides_nothing(world, question):
    token = link(world, question, lasts=timedelta(minutes=5))
    world.clock.pass_by(300)

    with pytest.raises(Conflict, match="this link expired at"):
        decide(world, token)
    assert world.rows("decisions") == []


def test_a_link_ends_with_its_question(world):
    world.models.script = rounds_of(1)
    world.tools.asks = lambda order: Question(why=Why.TOOL, prompt="May it?", expires_in=120)
    world.submit()
    world.run_dry()
    (row,) = world.inbox()

    link(world, row["id"], lasts=timedelta(days=2))

    assert world.row("question_links")["expires_at"] <= row["expires_at"]


@pytest.mark.parametrize("at", [0, 10, -1, "swap"])
def test_an_address_that_was_changed_is_not_known(world, question, at):
    token = link(world, question)
    if at == "swap":  # the token of one link with the signature of another
        token = f"{token.partition('.')[0]}.{link(world, question).partition('.')[2]}"
    else:
        token = token[:at] + ("A" if token[at] != "A" else "B") + (token[at + 1 :] if at != -1 else "")

    with pytest.raises(NotFound, match="not known here"):
        decide(world, token)
    assert world.rows("decisions") == []


@pytest.mark.parametrize("changed", ["question_id", "digest", "expires_at"])
def test_a_row_that_was_changed_does_not_fit_its_signature(world, question, changed):
    token = link(world, question)
    values = {"question_id": "other", "digest": "0" * 64, "expires_at": world.clock() + timedelta(days=9)}
    with world.store.write() as tx:
        tx.execute(update(schema.question_links).values({changed: values[changed]}))

    with pytest.raises(NotFound, match="not known here"):
        decide(world, token)


def test_a_link_is_for_the_arguments_it_was_made_for(world, question):
    token = link(world, question)
    with world.store.write() as tx:
        tx.execute(update(schema.calls).values(arguments={"n": 999}))

    with pytest.raises(Conflict, match="made for other arguments"):
        decide(world, token)
    with pytest.raises(InvalidDecision, match="cannot be changed"):
        decide(world, token, DecisionRequest(target="", action=Action.RESUME, payload=True, edited_args={"n": 2}))
    assert world.rows("decisions") == []


def test_a_question_that_was_decided_otherwise_is_not_decided_again(world, question):
    token, other = link(world, question), link(world, question)
    decide(world, other)

    with pytest.raises(Conflict, match="^this question was approved at .* by link:.* \\(link\\)$"):
        decide(world, token)
    (unused,) = world.rows("question_links", used_at=None)
    assert unused["decision_id"] is None


def test_an_answer_that_is_refused_leaves_the_link_as_it_was(world):
    schema_ = {"type": "object", "required": ["ok"]}
    world.models.script = rounds_of(1)
    world.tools.asks = once(Question(why=Why.TOOL, prompt="?", schema=schema_))
    world.submit()
    world.run_dry()
    token = link(world, world.inbox()[0]["id"])

    with pytest.raises(InvalidDecision, match="does not fit"):
        decide(world, token)

    decide(world, token, DecisionRequest(target="", action=Action.RESUME, payload={"ok": 1}))
    assert world.row("question_links")["used_at"] is not None


def test_a_link_that_is_used_between_look_and_write_decides_nothing(world, question, monkeypatch):
    """Two people open it, and both press a button."""
    token, globals_ = link(world, question), stages.decide_by_link.__globals__
    check, seen = globals_["approvals"].check_decisions, []

    def check_and_be_overtaken(*args, **more):
        asked = check(*args, **more)
        if not seen:
            seen.append(True)
            decide(world, token)
        return asked

    monkeypatch.setattr(globals_["approvals"], "check_decisions", check_and_be_overtaken)
    with pytest.raises(Conflict):
        decide(world, token, NO)

    (decision,) = world.rows("decisions")
    assert decision["action"] == "resume"


@pytest.mark.parametrize("before", [True, False])
def test_a_process_that_dies_at_the_commit_has_decided_all_or_nothing(world, question, before):
    token = link(world, question)
    world.die_at, world.die_before = world.commits + 1, before
    with pytest.raises(Died):
        stages.decide_by_link(world.runtime, token, YES, secret=SECRET)
    world.revive()

    used = [row for row in world.rows("question_links") if row["used_at"] is not None]
    assert len(used) == len(world.rows("decisions")) == (0 if before else 1)
    if before:
        decide(world, token)
    world.recover()
    assert world.row("turns")["disposition"] == "answered"


def test_a_link_of_another_installation_is_not_known(world, question):
    token = link(world, question, secret=b"of others")

    with pytest.raises(NotFound, match="not known here"):
        decide(world, token)


def test_what_cannot_have_a_link_is_refused(world, question):
    with pytest.raises(NotFound, match="there is no suspension"):
        link(world, "nowhere")
    with pytest.raises(NotFound, match="there is no suspension"):
        link(world, question, space="api.acme")
    with pytest.raises(InvalidDecision, match="from a minute to 30 days"):
        link(world, question, lasts=timedelta(seconds=5))
    decide(world, link(world, question))
    with pytest.raises(Conflict, match="^this question was approved at "):
        link(world, question)
