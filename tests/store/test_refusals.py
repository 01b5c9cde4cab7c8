"""Whether an answer was refused already is asked of the journal: of this run, and since its last message."""

from __future__ import annotations

from datetime import UTC, datetime

from chordage.orchestrator.core.records import Checkpoint
from chordage.orchestrator.store import journal

NOW = datetime(2026, 1, 1, tzinfo=UTC)
USER, ANSWER, REFUSED = Checkpoint.USER_MESSAGE, Checkpoint.ASSISTANT_TURN, Checkpoint.OUTPUT_REFUSED


def was_refused(store, *kinds, run="r"):
    with store.write() as tx:
        journal.append(tx, [journal.entry("t", run, step, kind, {}, NOW) for step, kind in enumerate(kinds)])
    with store.read() as tx:
        return journal.was_refused(tx, "r")


def test_refusal_counts_whatever_came_since(store):
    assert was_refused(store, USER, ANSWER, REFUSED, ANSWER, ANSWER)


def test_before_there_is_one_it_does_not(store):
    assert not was_refused(store, USER, ANSWER)


def test_further_message_of_the_run_starts_from_zero(store):
    assert not was_refused(store, USER, ANSWER, REFUSED, USER, ANSWER)


def test_that_of_another_run_does_not_count(store):
    was_refused(store, USER, ANSWER, REFUSED, run="other")
    assert not was_refused(store, USER, ANSWER)
