"""6. Copy the journal to the bus in its order, then deliver what is due.

One process copies at a time: the cursor is claimed, with a lease. A process that dies in between has written a batch to
Redis and not moved the cursor; the next begins where the cursor is, and Redis passes over what it has. A claim that ran
out moves nothing. While Redis is away nothing is copied; the cursor records why, and until when nothing is tried. When
Redis was emptied, or is back as it was some time ago, its cursor shows it, and the bus is rebuilt or continued
there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

import structlog

from chordage.orchestrator.core.bus import BusCursor, entries_of
from chordage.orchestrator.core.errors import Conflict, Unavailable
from chordage.orchestrator.core.intents import Deliver, Intent, Project
from chordage.orchestrator.core.retry import Backoff
from chordage.orchestrator.gateways.ports import Bus
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import outbox, projection
from chordage.orchestrator.store.projection import ProjectionState

log = structlog.get_logger()

LEASE = 20.0  # seconds, of one batch: a round trip to Redis and one to SQL
BATCHES = 10  # at one go
BACKOFF = Backoff(first=0.5, longest=5.0)  # while Redis is away


@dataclass(frozen=True, kw_only=True, slots=True)
class _Claim:
    token: str
    cursor: BusCursor
    actual: BusCursor | None = None  # the cursor in Redis, as it was read since the claim


def project(rt: Runtime) -> list[Intent]:
    """Copy what is new. Follows: more of it, and a delivery, where one is due."""
    if rt.bus is None:
        return []
    more = _copy(rt, rt.bus)
    with rt.store.read() as tx:
        state = projection.load(tx)
        due = state is not None and bool(outbox.due_receivers(tx, rt.now()))
    return [*([Project()] if more else []), *([Deliver()] if due else [])]


def rebuild_bus(rt: Runtime) -> BusCursor:
    """Empty the bus and begin anew, from the database alone. `project` fills it again."""
    if rt.bus is None:
        raise Conflict("there is no Redis, so there is no bus: set CHORDAGE_REDIS_URL, or start `chordage dev`")
    claim = _take(rt)
    if claim is None:
        raise Conflict("the bus is being written at this moment: try again in a few seconds")
    try:
        rebuilt = _rebuild(rt, rt.bus, claim, rt.bus.cursor())
    except Unavailable as error:
        _fail(rt, claim, error, failures=0)
        raise
    _release(rt, claim)
    if rebuilt is None:
        raise Conflict("another process has taken the bus over meanwhile: try again")
    return rebuilt.cursor


def _copy(rt: Runtime, bus: Bus) -> bool:
    """Whether there is more."""
    with rt.store.read() as tx:
        state = projection.load(tx)
    failures = 0 if state is None else state.failures
    if state is not None and not state.is_free(rt.now()):
        return False
    try:
        if state is not None and state.top <= state.mark.position and _is_whole(state, bus.cursor()):
            return False
    except Unavailable as error:
        if (claim := _take(rt)) is not None:
            _fail(rt, claim, error, failures=failures)
        return False
    claim = _take(rt)
    if claim is None:
        return False
    try:
        claim = replace(claim, actual=bus.cursor())
        for _ in range(BATCHES):
            moved = _copy_batch(rt, bus, claim)
            if moved is None:
                return False
            claim = moved
        _release(rt, claim)
    except Unavailable as error:
        _fail(rt, claim, error, failures=failures)
        return False
    return True


def _is_whole(state: ProjectionState, actual: BusCursor | None) -> bool:
    return actual == state.mark and state.mark.generation > 0


def _copy_batch(rt: Runtime, bus: Bus, claim: _Claim) -> _Claim | None:
    """The claim as it is afterwards, or None: it was released with the last row, or another process has it."""
    cursor, actual = claim.cursor, claim.actual
    if actual is None or not _is_ours(cursor, actual) or _is_ahead(rt, cursor, actual):
        return _rebuild(rt, bus, claim, actual)
    if actual.position < cursor.position:  # Redis is back as it was some time ago
        log.warning("the bus has lost its last entries", position=cursor.position, has=actual.position)
        return _move(rt, claim, actual)
    facts, are_all = projection.settled_rows(rt.store, projection.facts, cursor.position, rt.bus_rules.batch)
    if not facts:
        _release(rt, claim)
        return None
    to = facts[-1].id
    wanted = replace(cursor, position=to)
    reached = bus.publish(cursor, to, [entry for fact in facts for entry in entries_of(fact)])
    if reached is None or not _is_ours(wanted, reached) or reached.position < to:
        return replace(claim, actual=reached)  # it has changed meanwhile: look again
    return _move(rt, replace(claim, actual=reached), wanted, is_last=are_all)


def _is_ours(cursor: BusCursor, actual: BusCursor) -> bool:
    if actual.bus != cursor.bus:
        raise Unavailable(
            "the bus in Redis belongs to another database: give each its own CHORDAGE_PREFIX, "
            "or take it over with `chordage bus rebuild`"
        )
    return actual.generation == cursor.generation and cursor.generation > 0


def _is_ahead(rt: Runtime, cursor: BusCursor, actual: BusCursor) -> bool:
    """The database was restored from an older backup: the ids it gives out now are on the bus already."""
    if actual.position <= cursor.position:
        return False
    with rt.store.read() as tx:
        state = projection.load(tx)
    return state is not None and actual.position > state.top


def _rebuild(rt: Runtime, bus: Bus, claim: _Claim, actual: BusCursor | None) -> _Claim | None:
    """SQL first: from here on a writer of the generation before is refused."""
    before = claim.cursor
    generation = 1 + max(before.generation, actual.generation if actual and actual.bus == before.bus else 0)
    with rt.store.read() as tx:
        start = projection.first_since(tx, rt.now() - timedelta(seconds=rt.bus_rules.keep_seconds))
    cursor = BusCursor(bus=before.bus, generation=generation, position=start)
    log.info("the bus is rebuilt", generation=generation, position=start)
    moved = _move(rt, claim, cursor)
    if moved is not None:
        bus.begin(cursor)
    return moved and replace(moved, actual=cursor)


def _take(rt: Runtime) -> _Claim | None:
    token = rt.new_id()
    with Unit(rt, rt.store.single) as unit:
        claim = partial(projection.claim, unit.tx, token, rt.worker, now=unit.now, until=_until(unit))
        cursor = claim()
        if cursor is None and projection.load(unit.tx) is None:
            projection.begin(unit.tx, rt.new_id())
            cursor = claim()
    return _Claim(token=token, cursor=cursor) if cursor else None


def _until(unit: Unit) -> datetime:
    return unit.now + timedelta(seconds=min(LEASE, 2 * unit.rt.leases.seconds))


def _move(rt: Runtime, claim: _Claim, cursor: BusCursor, *, is_last: bool = False) -> _Claim | None:
    """`is_last`: the claim is released with it."""
    with Unit(rt, rt.store.single) as unit:
        until = None if is_last else _until(unit)
        moved = projection.move(unit.tx, claim.token, cursor, now=unit.now, until=until)
    return replace(claim, cursor=cursor) if moved and not is_last else None


def _release(rt: Runtime, claim: _Claim) -> None:
    with Unit(rt, rt.store.single) as unit:
        projection.release(unit.tx, claim.token)


def _fail(rt: Runtime, claim: _Claim, error: Unavailable, *, failures: int) -> None:
    pause = BACKOFF.delay(failures + 1)
    log.warning("nothing is copied to the bus", error=str(error), again_in=pause)
    with Unit(rt, rt.store.single) as unit:
        again_at = unit.now + timedelta(seconds=pause)
        projection.fail(unit.tx, claim.token, str(error), now=unit.now, again_at=again_at)
