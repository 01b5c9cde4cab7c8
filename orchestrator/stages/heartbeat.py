"""Not in the line of a turn: renew the leases of the work this process holds, and stop work that is no longer wanted.

Work that is over before its first beat never costs a claim of its own; work that lasts is on record from that beat on.

The parent of a pool of processes beats for its children as well, because a tool may keep a child from doing so. A beat
never waits: it has a connection of its own, and a row that another transaction holds is passed over and asked for again
at the next look, a second later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from chordage.orchestrator.gateways.in_flight import InFlightWork
from chordage.orchestrator.run.unit import Unit
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
    """To be called about every second: looks at all work in flight and renews what is due. Returns the calls that
    another worker holds meanwhile, of this process and of its children. `through`: not the connection of its own.
    `aside` does what need not be waited for.
    """
    store = through or rt.heart or rt.store
    in_flight = [*rt.in_flight.all(), *of_children]
    given_away = _stop_lost(rt, store, in_flight) if in_flight else []
    due = [work for work in in_flight if work.is_due(first=first, every=every)]
    if due:
        for worker in {work.worker or rt.worker for work in due}:
            _renew(rt, store, worker, [work for work in due if (work.worker or rt.worker) == worker])
        aside(partial(_renew_in_redis, rt, due))
    if through is None and rt.steadiness is not None and (due or rt.steadiness.is_due()):
        if not due:
            store.ping()
        rt.steadiness.answered()
    return given_away


def _stop_lost(rt: Runtime, store: Store, in_flight: Sequence[InFlightWork]) -> list[InFlightWork]:
    """Abort work whose row has moved on without us: its result would be refused. A call that a person is asked about
    continues: its result is the answer.
    """
    held = {work.call_id for work in in_flight if work.call_id}
    with store.read() as tx:
        lost_runs = runs.lost(tx, {(work.run_id, work.epoch) for work in in_flight if work.run_id})
        tokens = calls.tokens_in_flight(tx, held) if held else {}
        # A process may hold one call twice, as its former holder and as its new one.
        lost = [work for work in in_flight if work.call_id and tokens.get(work.call_id, "") not in {None, work.token}]
        asked = approvals.claims_in_question(tx, {work.call_id for work in lost if work.call_id}) if lost else set()
    lost = [work for work in lost if work.token not in asked]
    rt.in_flight.abort([*lost, *(work for work in in_flight if work.run_id in lost_runs)])
    return [work for work in lost if work.call_id in tokens]


def _renew(rt: Runtime, store: Store, worker: str, due: Sequence[InFlightWork]) -> None:
    """Each statement is a transaction of its own: none holds a row while the next is on its way."""
    held_runs = {(work.run_id, work.epoch) for work in due if work.call_id is None and work.run_id}
    held_calls = {work.call_id for work in due if work.call_id is not None}
    behind = {call_id for work in due for call_id in work.behind}
    tokens = {work.token for work in due if work.token}
    renewed: set[str] = set()
    with Unit(rt, store.single) as unit:
        if held_runs:
            renewed |= runs.renew(unit.tx, held_runs, tokens, worker, unit.lease())
        if held_calls:
            renewed |= calls.renew(unit.tx, held_calls, tokens, worker, now=unit.now, lease_until=unit.lease())
        if behind:
            calls.renew_waiting(unit.tx, behind, lease_until=unit.lease())
    for work in due:
        holds = work.call_id or work.run_id
        if not holds or holds in renewed:
            work.renewed()


def _renew_in_redis(rt: Runtime, due: Sequence[InFlightWork]) -> None:
    """If Redis does not answer, the rest is left for the next beat."""
    if not rt.locks.renew({work.key: work.worker or rt.worker for work in due if work.key}):
        return
    for thread_id, owner in {(work.thread_id, f"{work.run_id}:{work.epoch}") for work in due if work.thread_id}:
        rt.locks.extend(thread_id, owner)
