"""Rows for store tests, written through the store's own functions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.records import Call, Checkpoint, NewCall, Run
from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.core.transcript import message_of
from chordage.orchestrator.store import calls, journal, runs, threads, turns
from chordage.orchestrator.store import starts as run_starts
from chordage.orchestrator.store.database import Store, Tx
from chordage.orchestrator.store.fairness import StartRule
from chordage.orchestrator.store.starts import Start

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=30)


def admit(tx: Tx, turn_id: str, thread_id: str = "t1", group: Group = Group.CHAT, **fields: Any) -> str:
    """As admission does it: the number in the line first, then the row."""
    threads.arrive(tx, thread_id, "ada", NOW)
    given = {
        "id": turn_id, "thread_id": thread_id, "agent": "ada", "grp": group.value,
        "rank": group.rank, "tenant": "ada", "origin": "invoke", "channel": None, "sender": "service", "text": "hi",
        "meta": {}, "strategy": "react", "source": "test", "dedupe_key": None, "reply_target": None,
        "not_before": None, "due_at": NOW, "deadline": None, "queued_at": NOW, "nudge_at": NOW,
    }  # fmt: skip
    turns.admit(tx, {**given, **fields})
    return turn_id


def start(
    tx: Tx,
    turn_id: str,
    run_id: str,
    budget: int = 100,
    *,
    rules: Sequence[StartRule] = (StartRule.ALL_FIT, StartRule.FIRST, StartRule.HAS_SLOT),
    now: datetime = NOW,
) -> bool:
    """As dispatch does it. False when the turn could not start."""
    turn = turns.load(tx, turn_id)
    assert turn is not None
    words = journal.entry(turn.thread_id, run_id, 0, Checkpoint.USER_MESSAGE, message_of(turn), now)
    starts = (
        Start(turn=turn, run_id=run_id, words=words, rule=rule, budget=budget, now=now, lease_until=LATER, worker="h:1")
        for rule in rules
    )
    return any(run_starts.opened_run(one, run_starts.send(tx, one)) is not None for one in starts)


def a_run(store: Store, run_id: str = "r1", turn_id: str = "a", thread_id: str = "t1") -> Run:
    with store.write() as tx:
        admit(tx, turn_id, thread_id)
        assert start(tx, turn_id, run_id)
    return load_run(store, run_id)


def load_run(store: Store, run_id: str = "r1") -> Run:
    with store.read() as tx:
        run = runs.load(tx, run_id)
    assert run is not None
    return run


def a_call(store: Store, effect: Effect = Effect.UNSAFE) -> Call:
    run = a_run(store)
    new = NewCall(
        id="c1", place=0, ask_id="ask", generation=1, tool="x", arguments={}, effect=effect, status=CallStatus.NEW
    )
    with store.write() as tx:
        calls.insert(tx, run, 2, [new], now=NOW, lease_until=LATER)
    return load_call(store)


def load_call(store: Store, call_id: str = "c1") -> Call:
    with store.read() as tx:
        call = calls.load(tx, call_id)
    assert call is not None
    return call
