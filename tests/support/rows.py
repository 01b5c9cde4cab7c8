"""Rows for store tests, written through the store's own functions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.records import Call, NewCall, Run
from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.store import calls, claims, runs, threads, turns
from chordage.orchestrator.store.ring import Place
from chordage.orchestrator.store.tx import Store, Tx

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=30)


def admit(tx: Tx, turn_id: str, thread_id: str = "t1", group: Group = Group.CHAT, **fields: Any) -> str:
    """As admission does it: the number in the line first, then the row."""
    arrival = threads.arrive(tx, thread_id, "ada", NOW)
    given = {
        "id": turn_id, "thread_id": thread_id, "arrival": arrival, "agent": "ada", "grp": group.value,
        "rank": group.rank, "tenant": "ada", "origin": "invoke", "channel": None, "sender": "service", "text": "hi",
        "meta": {}, "strategy": "react", "source": "test", "dedupe_key": None, "reply_target": None,
        "not_before": None, "due_at": NOW, "deadline": None, "queued_at": NOW, "nudge_at": NOW,
    }  # fmt: skip
    turns.admit(tx, {**given, **fields})
    return turn_id


def start(tx: Tx, turn_id: str, run_id: str, budget: int = 100, group: Group = Group.CHAT) -> bool:
    """As dispatch does it. False when the turn could not start."""
    tried = (
        claims.start_turn(tx, turn_id, run_id, group=group, budget=budget, now=NOW, place=place)
        for place in (Place.FITS, Place.FIRST, Place.SITS)
    )
    turn = next((turn for turn in tried if turn is not None), None)
    return turn is not None and claims.open_run(tx, turn, run_id, now=NOW, lease_until=LATER) is not None


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
        calls.open_round(tx, run, 2, [new], now=NOW, lease_until=LATER)
    return load_call(store)


def load_call(store: Store, call_id: str = "c1") -> Call:
    with store.read() as tx:
        call = calls.load(tx, call_id)
    assert call is not None
    return call
