"""Beside the line: leases of what this process has in hand are renewed, and what was cancelled is told to stop.

Work that is over before its first beat never costs a claim of its own; work that lasts is on record from that beat on.

The parent of a pool of processes beats for its children as well, because a tool may keep a child from doing so. A beat
waits for nobody: it has a connection of its own, and a row that another transaction holds is passed over and asked for
again at the next look, a second later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from chordage.orchestrator.gateways.in_flight import InFlightWork
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import approvals, calls, runs
from chordage.orchestrator.store.database import Store


def beat(
    rt: Runtime,
    *,
    first: float,
    every: float,
    of_children: Sequence[InFlightWork] = (),
    through: Store | None = None,
    aside: Callable[[Callable[[], None]], None] = lambda act: act(),
) -> list[InFlightWork]:
    """To be called about every second: looks at all that is in hand, renews what is due. Returned are the calls that
    are in another hand meanwhile, of this process and of its children. `through`: not the connection of its own.
    `aside` does what need not be waited for.
    """
    store = through or rt.heart or rt.store
    own = rt.in_flight.all()
    hands = [*own, *of_children]
    given_away = _notice_lost(rt, store, hands) if hands else []
    due = [hand for hand in hands if hand.is_due(first=first, every=every)]
    if due:
        _renew(rt, store, due)
        aside(partial(_renew_in_redis, rt, due))
    if through is None and rt.steadiness is not None and (due or rt.steadiness.is_due()):
        if not due:
            store.ping()
        rt.steadiness.answered()
    return given_away


def _notice_lost(rt: Runtime, store: Store, hands: Sequence[InFlightWork]) -> list[InFlightWork]:
    """Work whose row has moved on without us: its result would be refused, so it need not be finished. A call that a
    person is asked about goes on: its result is the answer.
    """
    held = {hand.call_id for hand in hands if hand.call_id}
    with store.read() as tx:
        lost_runs = runs.lost(tx, {(hand.run_id, hand.epoch) for hand in hands if hand.run_id})
        flying = calls.tokens_in_flight(tx, held) if held else {}
        # One call may be in two hands of a process, in that of its former holder and in that of its new one.
        gone = [hand for hand in hands if hand.call_id and flying.get(hand.call_id, "") not in {None, hand.token}]
        awaited = approvals.claims_in_question(tx, {hand.call_id for hand in gone if hand.call_id}) if gone else set()
    gone = [hand for hand in gone if hand.token not in awaited]
    rt.in_flight.abort([*gone, *(hand for hand in hands if hand.run_id in lost_runs)])
    return [hand for hand in gone if hand.call_id in flying]


def _renew(rt: Runtime, store: Store, due: Sequence[InFlightWork]) -> None:
    for worker in {hand.worker or rt.worker for hand in due}:
        _renew_of(rt, store, worker, [hand for hand in due if (hand.worker or rt.worker) == worker])


def _renew_of(rt: Runtime, store: Store, worker: str, due: Sequence[InFlightWork]) -> None:
    """Each statement is a transaction of its own: none holds a row while the next is on its way."""
    held_runs = {(hand.run_id, hand.epoch) for hand in due if hand.call_id is None and hand.run_id}
    behind = {call_id for hand in due for call_id in hand.behind}
    held_calls = {hand.call_id for hand in due if hand.call_id is not None}
    tokens = {hand.token for hand in due if hand.token}
    now = rt.now()
    until = rt.leases.until(now)
    renewed: set[str] = set()
    with store.single() as tx:
        if held_runs:
            renewed |= runs.renew(tx, held_runs, tokens, worker, until)
        if held_calls:
            renewed |= calls.renew(tx, held_calls, tokens, worker, now=now, lease_until=until)
        if behind:
            calls.renew_waiting(tx, behind, lease_until=until)
    for hand in due:
        holds = hand.call_id or hand.run_id
        if not holds or holds in renewed:
            hand.renewed()


def _renew_in_redis(rt: Runtime, due: Sequence[InFlightWork]) -> None:
    """At the first silence the rest is left for the next beat."""
    if not rt.locks.renew([hand.key for hand in due if hand.key]):
        return
    for thread_id, owner in {(hand.thread_id, f"{hand.run_id}:{hand.epoch}") for hand in due if hand.thread_id}:
        if not rt.locks.extend(thread_id, owner):
            return
