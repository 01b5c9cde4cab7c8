"""The projection: how far the journal has been copied to the bus. One row, moved only by the holder of its claim.
How far the spans of ended runs were sent is a row of the same kind. How far the journal was counted is one without a
claim (store/metrics.py).

A journal row may be copied once no row can appear before it. PostgreSQL hands out ids before rows become visible, so a
row may commit after others with greater ids. Failure: a reader that has passed the greater id never sees it. Mechanism:
a transaction that inserts into the journal holds a lock on the table from before it takes an id until it is over. So
rows without a gap in their ids can be copied; those behind a gap once every transaction is over that held the lock when
the greatest of them was read. CREATE INDEX CONCURRENTLY does the same. Transaction ids are not compared: another
application's long transaction delays nothing unless it writes into the journal, and neither does a vacuum, which locks
the table in another mode.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeVar

from sqlalchemy import and_, bindparam, case, func, null, or_, select, text, update

from chordage.orchestrator.core.bus import BusCursor, Fact
from chordage.orchestrator.core.records import Checkpoint
from chordage.orchestrator.store.contents import json_text
from chordage.orchestrator.store.database import Store, Tx
from chordage.orchestrator.store.predicates import has
from chordage.orchestrator.store.schema import journal, projection, runs, turns
from chordage.orchestrator.store.statements import PreparedStatement, insert_or

NAME = "bus"
TRACES = "traces"
_MINE = projection.c.name == bindparam("cursor")
_TOP = select(func.coalesce(func.max(journal.c.id), 0)).scalar_subquery()


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectionState:
    """The cursor, its claim, and the newest journal row."""

    mark: BusCursor
    top: int  # the newest visible journal row
    claim_token: str | None
    claim_worker: str | None
    lease_until: datetime | None
    failures: int
    moved_at: datetime | None
    error: str | None
    error_at: datetime | None

    def is_free(self, now: datetime) -> bool:
        return self.lease_until is None or self.lease_until <= now


_LOAD = PreparedStatement(select(projection, _TOP.label("top")).where(_MINE))


def load(tx: Tx, name: str = NAME) -> ProjectionState | None:
    row = _LOAD.first(tx, {"cursor": name})
    return _state(row) if row else None


def _state(row: Mapping[str, Any]) -> ProjectionState:
    mark = BusCursor(bus=row["bus"], generation=row["generation"], position=row["position"])
    names = ("top", "claim_token", "claim_worker", "lease_until", "failures", "moved_at", "error", "error_at")
    return ProjectionState(mark=mark, **{name: row[name] for name in names})


def begin(tx: Tx, bus: str, name: str = NAME, position: int = 0) -> None:
    """Name the bus of a new database. Of two that do so at once, the first counts."""
    fresh = {"name": name, "bus": bus, "generation": 0, "position": position, "failures": 0}
    tx.execute(insert_or(tx.dialect.name, projection).values(fresh).on_conflict_do_nothing())


_CLAIM = PreparedStatement(
    update(projection)
    .where(_MINE, or_(projection.c.lease_until.is_(None), projection.c.lease_until <= bindparam("now")))
    .values(claim_token=bindparam("token"), claim_worker=bindparam("worker"), lease_until=bindparam("until"))
    .returning(projection.c.bus, projection.c.generation, projection.c.position)
)


def claim(tx: Tx, token: str, worker: str, *, now: datetime, until: datetime, name: str = NAME) -> BusCursor | None:
    """None: another process has the claim, or it is too early to try again."""
    row = _CLAIM.first(tx, {"cursor": name, "token": token, "worker": worker, "now": now, "until": until})
    return BusCursor(**row) if row else None


_MOVE = PreparedStatement(
    update(projection)
    .where(_MINE, projection.c.claim_token == bindparam("token"))
    .values(
        generation=bindparam("new_generation"), position=bindparam("new_position"), moved_at=bindparam("now"),
        claim_token=bindparam("holder"), lease_until=bindparam("until"), failures=0, error=None, error_at=None,
    )
)  # fmt: skip


def move(tx: Tx, token: str, mark: BusCursor, *, now: datetime, until: datetime | None, name: str = NAME) -> bool:
    """The bus is this far. False: another process has the claim by now. `until` None: the claim is released too."""
    holder = None if until is None else token
    moved = {"new_generation": mark.generation, "new_position": mark.position, "now": now}
    return _MOVE.changed(tx, {**moved, "cursor": name, "token": token, "holder": holder, "until": until}) == 1


def release(tx: Tx, token: str, name: str = NAME) -> None:
    _change(tx, name, token, claim_token=None, lease_until=None)


def fail(tx: Tx, token: str, error: str, *, now: datetime, again_at: datetime, name: str = NAME) -> bool:
    """No process tries again before `again_at`."""
    failures = projection.c.failures + 1
    return _change(
        tx, name, token, claim_token=None, lease_until=again_at, failures=failures, error=error, error_at=now
    )  # fmt: skip


def _change(tx: Tx, name: str, token: str, **values: Any) -> bool:
    changed = update(projection).where(projection.c.name == name, projection.c.claim_token == token).values(**values)
    return tx.execute(changed).rowcount == 1


class EndedRun(NamedTuple):
    """A journal row, and the run that ended with it, if one did."""

    id: int
    run_id: str | None


_ENDS = PreparedStatement(
    select(journal.c.id, case((turns.c.run_id == journal.c.run_id, journal.c.run_id), else_=null()).label("run_id"))
    .select_from(journal)
    .outerjoin(runs, and_(runs.c.id == journal.c.run_id, has(journal.c.kind, Checkpoint.RUN_FINISHED)))
    .outerjoin(turns, turns.c.id == runs.c.turn_id)  # the turn of a copy in a fork has another run
    .where(journal.c.id > bindparam("after"))
    .order_by(journal.c.id)
    .limit(bindparam("as_many"))
)


def ended_runs(tx: Tx, after: int, as_many: int) -> list[EndedRun]:
    return [EndedRun(**row) for row in _ENDS.rows(tx, {"after": after, "as_many": as_many})]


_FACTS = PreparedStatement(
    select(
        journal.c.id, journal.c.thread_id, journal.c.run_id, journal.c.step, journal.c.kind,
        json_text(journal.c.body).label("text"), journal.c.at, runs.c.turn_id, runs.c.agent, runs.c.grp.label("group"),
    )
    .select_from(journal)
    .outerjoin(runs, runs.c.id == journal.c.run_id)
    .where(journal.c.id > bindparam("after"))
    .order_by(journal.c.id)
    .limit(bindparam("as_many"))
)  # fmt: skip


def facts(tx: Tx, after: int, as_many: int) -> list[Fact]:
    return [Fact(**row) for row in _FACTS.rows(tx, {"after": after, "as_many": as_many})]


class _Numbered(Protocol):
    @property
    def id(self) -> int: ...


RowOfJournal = TypeVar("RowOfJournal", bound=_Numbered)


def without_gap(after: int, rows: Sequence[_Numbered]) -> int:
    """How many of them have consecutive ids: no row can appear between them."""
    return next((place for place, row in enumerate(rows) if row.id != after + 1 + place), len(rows))


def settled_rows(
    store: Store, read: Callable[[Tx, int, int], list[RowOfJournal]], after: int, most: int
) -> tuple[list[RowOfJournal], bool]:
    """Rows behind which no row can appear any more, and whether they are all there were: what comes meanwhile is read
    with what comes until the next look. `read`: as `facts`.
    """
    with store.read() as tx:
        rows = read(tx, after, most)
    are_all = len(rows) < most
    close = without_gap(after, rows)
    if close == len(rows):
        return rows, are_all
    settled, last = rows[:close], rows[-1].id
    if not no_open_writers(store):
        return settled, True
    with store.read() as tx:
        again = read(tx, settled[-1].id if settled else after, most - close)
    return settled + [row for row in again if row.id <= last], are_all


def newest(tx: Tx) -> int:
    """The newest journal row that has ever been, as far as rows tell."""
    return int(tx.execute(select(_TOP)).scalar_one())


def first_since(tx: Tx, moment: datetime) -> int:
    """The id before the first row since then, by binary search: an index on the time would cost every insert."""
    low, high = 0, newest(tx)
    while low < high:
        middle = (low + high) // 2
        row = tx.execute(
            select(journal.c.id, journal.c.at).where(journal.c.id > middle).order_by(journal.c.id).limit(1)
        ).first()
        if row is None or row.at >= moment:
            high = middle
        else:
            low = row.id
    return low


def oldest_behind(tx: Tx, position: int) -> datetime | None:
    """The time of the oldest row that is not on the bus."""
    behind = select(journal.c.at).where(journal.c.id > position).order_by(journal.c.id).limit(1)
    at: datetime | None = tx.execute(behind).scalar()
    return at


def lag(tx: Tx, position: int) -> tuple[int, datetime | None]:
    """How many rows are not on the bus, and the time of the oldest of them."""
    behind = journal.c.id > position
    rows = int(tx.execute(select(func.count()).select_from(journal).where(behind)).scalar_one())
    return rows, oldest_behind(tx, position)


PAUSES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)

_WRITERS = text(
    "SELECT virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND granted AND pid <> pg_backend_pid() "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND relation = 'journal'::regclass AND mode = 'RowExclusiveLock'"
)


def no_open_writers(store: Store) -> bool:
    """Whether every transaction is over that may have had an unseen row at the call. False: one takes long."""
    if not store.is_postgres:
        return True  # one writer at a time, so ids become visible in their order
    left = _writers(store)
    for pause in PAUSES:
        if not left:
            return True
        time.sleep(pause)
        left &= _writers(store)
    return not left


def _writers(store: Store) -> set[str]:
    with store.read() as tx:
        return set(tx.execute(_WRITERS).scalars())
