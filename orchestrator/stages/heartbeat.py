"""Beside the line: leases of what this process has in hand are renewed, and what was cancelled is told to stop.

Work that is over before its first beat never costs a claim of its own; work that lasts is on record from that beat on.
"""

from __future__ import annotations

from collections.abc import Sequence

from chordage.orchestrator.gateways.holding import Hand
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import calls, claims, runs


def beat(rt: Runtime, *, first: float, every: float) -> None:
    """To be called about every second: looks at all that is in hand, renews what is due."""
    hands = rt.held.all()
    if not hands:
        return
    _notice_cancelled(rt, hands)
    due = [hand for hand in hands if hand.is_due(first=first, every=every)]
    if due:
        _renew(rt, due)


def _notice_cancelled(rt: Runtime, hands: Sequence[Hand]) -> None:
    """Work whose row has moved on without us: its result would be refused, so it need not be finished."""
    with rt.store.read() as tx:
        lost_runs = runs.lost(tx, {(hand.run_id, hand.epoch) for hand in hands if hand.run_id})
        lost_calls = calls.lost(tx, {hand.call_id for hand in hands if hand.call_id})
    rt.held.abort([hand for hand in hands if hand.run_id in lost_runs or hand.call_id in lost_calls])


def _renew(rt: Runtime, due: Sequence[Hand]) -> None:
    held_runs = {(hand.run_id, hand.epoch) for hand in due if hand.call_id is None and hand.run_id}
    behind = {call_id for hand in due for call_id in hand.behind}
    held_calls = {hand.call_id for hand in due if hand.call_id is not None}
    tokens = {hand.token for hand in due if hand.token}
    now = rt.now()
    until = rt.leases.until(now)
    with rt.store.write() as tx:
        if held_runs:
            claims.renew_runs(tx, held_runs, tokens, rt.worker, until)
        if held_calls:
            claims.renew_calls(tx, held_calls, tokens, rt.worker, now=now, lease_until=until)
        if behind:
            claims.renew_waiting_calls(tx, behind, lease_until=until)
    for hand in due:
        hand.renewed()
    _renew_in_redis(rt, due)


def _renew_in_redis(rt: Runtime, due: Sequence[Hand]) -> None:
    """At the first silence the rest is left for the next beat: the beat in SQL must not wait for Redis."""
    if not rt.locks.renew([hand.key for hand in due if hand.key]):
        return
    for thread_id, owner in {(hand.thread_id, f"{hand.run_id}:{hand.epoch}") for hand in due if hand.thread_id}:
        if not rt.locks.extend(thread_id, owner):
            return
