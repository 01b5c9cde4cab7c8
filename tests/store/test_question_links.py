"""A link to a question is used by one, before its end."""

from __future__ import annotations

from datetime import timedelta

from chordage.orchestrator.core.question_links import QuestionLink
from chordage.orchestrator.store import question_links
from support.race import race
from support.rows import NOW

LINK = QuestionLink(
    id="l1", hash="h", question_id="q", digest="d", made_by="ann", created_at=NOW, expires_at=NOW + timedelta(hours=1)
)


def add(store, link=LINK):
    with store.write() as tx:
        question_links.add(tx, link)


def test_of_several_who_use_it_at_once_one_does(store):
    add(store)

    won = race(store, [lambda tx, n=n: question_links.use(tx, "l1", f"d{n}", NOW) for n in range(6)])

    assert sorted(won) == [False] * 5 + [True]


def test_at_its_end_it_is_used_by_none(store):
    add(store)

    with store.write() as tx:
        assert not question_links.use(tx, "l1", "d", LINK.expires_at)
        assert question_links.by_hash(tx, "h") == LINK


def test_links_that_ended_long_ago_are_forgotten(store):
    add(store)
    later = LINK.expires_at + question_links.KEPT

    with store.write() as tx:
        question_links.add(
            tx,
            QuestionLink(
                id="l2", hash="i", question_id="q", digest="d", made_by="ann", created_at=later,
                expires_at=later + timedelta(hours=1),
            ),
        )  # fmt: skip
        assert question_links.by_hash(tx, "h") is None
        assert question_links.by_hash(tx, "i") is not None
