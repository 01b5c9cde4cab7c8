"""What the database refuses of turns that are the same work, and how it finds them however many there are."""

from __future__ import annotations

import pytest
from sqlalchemy import text, update
from sqlalchemy.exc import IntegrityError

from chordage.orchestrator.core.errors import LostRace
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.store import schema, turns
from support.explaining import explained
from support.rows import admit, start

KEYED = {"coalesce_key": "k"}
WILL = {"origin": "will", "group": Group.WILL}
FOUND = {"agent": "ada", "group": "chat", "key": "k"}


def test_a_second_queued_turn_of_a_key_is_refused_by_the_index(store):
    with store.write() as tx:
        admit(tx, "a", "t1", **KEYED)

    with pytest.raises(LostRace), store.write() as tx:
        admit(tx, "b", "t2", **KEYED)


def test_second_will_of_an_agent_is_refused_by_the_index_while_one_is_active(store):
    with store.write() as tx:
        admit(tx, "a", "t1", **WILL)
        assert start(tx, "a", "r1")

    with pytest.raises(LostRace), store.write() as tx:
        admit(tx, "b", "t2", **WILL)


def test_coalesce_key_is_unique_per_agent_and_group_among_queued_turns(store):
    with store.write() as tx:
        admit(tx, "a", "t1", **KEYED)
        admit(tx, "b", "t2", agent="bob", **KEYED)
        admit(tx, "c", "t3", group=Group.TASK, **KEYED)
        assert start(tx, "a", "r1")
        admit(tx, "d", "t4", **KEYED)

        found = turns.queued_work(tx, "ada", Group.CHAT, "k")
    assert found is not None
    assert (found.id, found.thread_id) == ("d", "t4")


@pytest.mark.parametrize(
    "wrong", [{"disposition": "merged", "into_turn": None}, {"disposition": "answered", "into_turn": "b"}]
)
def test_merged_turn_names_the_turn_it_was_merged_into_and_no_other_does(store, wrong):
    with store.write() as tx:
        admit(tx, "a")
        done = {"status": "done", "done_at": same_work_time(tx), **wrong}
    with pytest.raises(IntegrityError, match="merged_says_into"), store.write() as tx:
        tx.execute(update(schema.turns).where(schema.turns.c.id == "a").values(done))


def same_work_time(tx):
    return tx.execute(schema.turns.select()).first().queued_at


@pytest.mark.parametrize(
    ("statement", "binds", "index"),
    [(turns._QUEUED_WORK, FOUND, "uq_turns_coalesce"), (turns._OPEN_WILL, {"agent": "ada"}, "uq_turns_will")],
    ids=["key", "will"],
)
def test_the_same_work_is_found_by_its_index(store, statement, binds, index):
    with store.write() as tx:
        admit(tx, "a", **KEYED)
        if store.is_postgres:
            tx.execute(text("SET LOCAL enable_seqscan = off"))
        told = explained(tx, statement, binds, "EXPLAIN" if store.is_postgres else "EXPLAIN QUERY PLAN")
        plan = " ".join(str(row) for row in told)

    assert index in plan
