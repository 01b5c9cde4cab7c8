"""Behind the truth: copy the journal to the bus in its order, and then let what is due be delivered.

One process copies at a time: the cursor is claimed, with a lease. A process that dies in between has written a batch to
Redis and not moved the cursor; the next begins where the cursor is, and Redis passes over what it has. A claim that ran
out moves nothing. While Redis is away nothing is copied; the cursor records why, and until when nothing is tried. When
Redis was emptied, or is back as it was some time ago, its cursor shows it, and the bus is built anew or continued
there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog

from chordage.orchestrator.core.bus import BusCursor, Fact, entries_of
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
    mark: BusCursor


def project(rt: Runtime) -> list[Intent]:
    """Copy what is new. Follows: more of it, and a delivery, where one is due."""
    if rt.bus is None:
        return []
    more = _copy(rt, rt.bus)
    with rt.store.read() as tx:
        standing = projection.load(tx)
        due = standing is not None and bool(outbox.due_receivers(tx, rt.now()))
    return [*([Project()] if more else []), *([Deliver()] if due else [])]


def rebuild_bus(rt: Runtime) -> BusCursor:
    """Throw the bus away and begin anew, from the truth alone. What `project` does from here on fills it again."""
    if rt.bus is None:
        raise Conflict("there is no Redis, so there is no bus: set CHORDAGE_REDIS_URL, or start `chordage dev`")
    claim = _claim(rt)
    if claim is None:
        raise Conflict("the bus is being written at this moment: try again in a few seconds")
    try:
        made = _anew(rt, rt.bus, claim, rt.bus.cursor())
    except Unavailable as error:
        _fail(rt, claim, error, failures=0)
        raise
    _let_go(rt, claim)
    if made is None:
        raise Conflict("somebody else has taken the bus over meanwhile: try again")
    return made.mark


def _copy(rt: Runtime, bus: Bus) -> bool:
    """Whether there is more."""
    now = rt.now()
    with rt.store.read() as tx:
        standing = projection.load(tx)
    if standing is not None and not standing.is_free(now):
        return False
    try:
        if standing is not None and _is_up_to_date(standing, bus.cursor()):
            return False
    except Unavailable as error:
        _note_failure(rt, standing, error)
        return False
    claim = _claim(rt)
    return False if claim is None else _copy_claimed(rt, bus, claim, standing)


def _is_up_to_date(standing: ProjectionState, found: BusCursor | None) -> bool:
    return found == standing.mark and standing.mark.generation > 0 and standing.top <= standing.mark.position


def _copy_claimed(rt: Runtime, bus: Bus, claim: _Claim, standing: ProjectionState | None) -> bool:
    held: _Claim | None = claim
    try:
        for _ in range(BATCHES):
            assert held is not None
            claim = held
            held, count = _one_batch(rt, bus, claim)
            if held is None:
                return False
            claim = held
            if count == 0:
                break
        _let_go(rt, claim)
    except Unavailable as error:
        _fail(rt, claim, error, failures=standing.failures if standing else 0)
        return False
    return count > 0


def _one_batch(rt: Runtime, bus: Bus, claim: _Claim) -> tuple[_Claim | None, int]:
    """The claim as it is afterwards, and how many rows were copied. No claim: it is somebody else's."""
    found = bus.cursor()
    if found is None or not _is_ours(claim.mark, found) or _is_ahead(rt, claim.mark, found):
        return _anew(rt, bus, claim, found), 1
    if found.position < claim.mark.position:  # it is back as it was some time ago
        log.warning("the bus has lost its last entries", position=claim.mark.position, has=found.position)
        return _move(rt, claim, found), 1
    facts = _settled_facts(rt, claim.mark.position)
    if not facts:
        return claim, 0
    to = facts[-1].id
    entries = [entry for fact in facts for entry in entries_of(fact)]
    wanted = replace(claim.mark, position=to)
    reached = bus.publish(claim.mark, to, entries)
    if reached is None or not _is_ours(wanted, reached) or reached.position < to:
        return claim, 1  # looked at once more: it has changed under our hands
    return _move(rt, claim, wanted), len(facts)


def _is_ours(mark: BusCursor, found: BusCursor) -> bool:
    if found.bus != mark.bus:
        raise Unavailable(
            "the bus in Redis belongs to another database: give each its own CHORDAGE_PREFIX, "
            "or take it over with `chordage bus rebuild`"
        )
    return found.generation == mark.generation and mark.generation > 0


def _is_ahead(rt: Runtime, mark: BusCursor, found: BusCursor) -> bool:
    """The truth was put back to an older state: what it writes now has ids that are on the bus already."""
    if found.position <= mark.position:
        return False
    with rt.store.read() as tx:
        standing = projection.load(tx)
    return standing is not None and found.position > standing.top


def _settled_facts(rt: Runtime, after: int) -> list[Fact]:
    with rt.store.read() as tx:
        facts = projection.facts(tx, after, rt.bus_rules.batch)
    close = projection.without_gap(after, facts)
    if close == len(facts):
        return facts
    if not projection.no_open_writers(rt.store):
        return facts[:close]
    with rt.store.read() as tx:
        again = projection.facts(tx, after, rt.bus_rules.batch)
    return [fact for fact in again if fact.id <= facts[-1].id]


def _anew(rt: Runtime, bus: Bus, claim: _Claim, found: BusCursor | None) -> _Claim | None:
    """SQL first: whoever believes in the generation before is refused from here on."""
    generation = 1 + max(claim.mark.generation, found.generation if found and found.bus == claim.mark.bus else 0)
    with rt.store.read() as tx:
        start = projection.first_since(tx, rt.now() - timedelta(seconds=rt.bus_rules.keep_seconds))
    mark = BusCursor(bus=claim.mark.bus, generation=generation, position=start)
    log.info("the bus is built anew", generation=generation, position=start)
    moved = _move(rt, claim, mark)
    if moved is not None:
        bus.begin(mark)
    return moved


def _claim(rt: Runtime) -> _Claim | None:
    now, token = rt.now(), rt.new_id()
    with Unit(rt) as unit:
        mark = projection.claim(unit.tx, token, rt.worker, now=now, until=_until(rt, now))
        if mark is None and projection.load(unit.tx) is None:
            projection.begin(unit.tx, rt.new_id())
            mark = projection.claim(unit.tx, token, rt.worker, now=now, until=_until(rt, now))
    return _Claim(token=token, mark=mark) if mark else None


def _until(rt: Runtime, now: datetime) -> datetime:
    return now + timedelta(seconds=min(LEASE, 2 * rt.leases.seconds))


def _move(rt: Runtime, claim: _Claim, mark: BusCursor) -> _Claim | None:
    now = rt.now()
    with Unit(rt, rt.store.single) as unit:
        moved = projection.move(unit.tx, claim.token, mark, now=now, until=_until(rt, now))
    return replace(claim, mark=mark) if moved else None


def _let_go(rt: Runtime, claim: _Claim) -> None:
    with Unit(rt, rt.store.single) as unit:
        projection.release(unit.tx, claim.token)


def _note_failure(rt: Runtime, standing: ProjectionState | None, error: Unavailable) -> None:
    claim = _claim(rt)
    if claim is not None:
        _fail(rt, claim, error, failures=standing.failures if standing else 0)


def _fail(rt: Runtime, claim: _Claim, error: Unavailable, *, failures: int) -> None:
    now = rt.now()
    pause = BACKOFF.delay(failures + 1)
    log.warning("the bus stands still", error=str(error), again_in=pause)
    with Unit(rt, rt.store.single) as unit:
        projection.fail(unit.tx, claim.token, str(error), now=now, again_at=now + timedelta(seconds=pause))
