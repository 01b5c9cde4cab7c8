"""How far the journal is on the bus: one row, moved only by whoever holds the claim on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Text, bindparam, cast, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from chordage.orchestrator.core.bus import Fact, Mark
from chordage.orchestrator.store.hot import Hot
from chordage.orchestrator.store.schema import journal, projection, runs
from chordage.orchestrator.store.tx import Tx

_INSERT: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
NAME = "bus"
_MINE = projection.c.name == NAME
_TOP = select(func.coalesce(func.max(journal.c.id), 0)).scalar_subquery()


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """The cursor, and what it has before it."""

    mark: Mark
    top: int  # the newest journal row that can be seen
    claim_token: str | None
    claim_worker: str | None
    lease_until: datetime | None
    failures: int
    moved_at: datetime | None
    error: str | None
    error_at: datetime | None

    def is_free(self, now: datetime) -> bool:
        return self.lease_until is None or self.lease_until <= now


_LOOK = Hot(select(projection, _TOP.label("top")).where(_MINE))


def look(tx: Tx) -> Standing | None:
    row = _LOOK.first(tx, {})
    return _standing(row) if row else None


def _standing(row: Mapping[str, Any]) -> Standing:
    mark = Mark(bus=row["bus"], generation=row["generation"], position=row["position"])
    names = ("top", "claim_token", "claim_worker", "lease_until", "failures", "moved_at", "error", "error_at")
    return Standing(mark=mark, **{name: row[name] for name in names})


def begin(tx: Tx, bus: str) -> None:
    """The first who looks at a new database gives its bus a name. Of two at once one is enough."""
    fresh = {"name": NAME, "bus": bus, "generation": 0, "position": 0, "failures": 0}
    tx.execute(_INSERT[tx.dialect.name](projection).values(fresh).on_conflict_do_nothing())


def claim(tx: Tx, token: str, worker: str, *, now: datetime, until: datetime) -> Mark | None:
    """None: somebody else is at it, or it is too early to try again."""
    claimed = (
        update(projection)
        .where(_MINE, or_(projection.c.lease_until.is_(None), projection.c.lease_until <= now))
        .values(claim_token=token, claim_worker=worker, lease_until=until)
        .returning(projection.c.bus, projection.c.generation, projection.c.position)
    )
    row = tx.execute(claimed).mappings().first()
    return Mark(**row) if row else None


def move(tx: Tx, token: str, mark: Mark, *, now: datetime, until: datetime) -> bool:
    """The bus is this far. False: the claim is somebody else's by now."""
    told = {"generation": mark.generation, "position": mark.position, "moved_at": now, "lease_until": until}
    return _change(tx, token, **told, failures=0, error=None, error_at=None)


def let_go(tx: Tx, token: str) -> None:
    _change(tx, token, claim_token=None, lease_until=None)


def fail(tx: Tx, token: str, error: str, *, now: datetime, again_at: datetime) -> bool:
    """Nobody tries before `again_at`."""
    failures = projection.c.failures + 1
    return _change(
        tx, token, claim_token=None, lease_until=again_at, failures=failures, error=error, error_at=now
    )  # fmt: skip


def _change(tx: Tx, token: str, **values: Any) -> bool:
    changed = update(projection).where(_MINE, projection.c.claim_token == token).values(**values)
    return tx.execute(changed).rowcount == 1


_FACTS = Hot(
    select(
        journal.c.id, journal.c.thread_id, journal.c.run_id, journal.c.step, journal.c.kind,
        cast(journal.c.body, Text).label("text"), journal.c.at, runs.c.turn_id, runs.c.agent, runs.c.grp.label("group"),
    )
    .select_from(journal)
    .outerjoin(runs, runs.c.id == journal.c.run_id)
    .where(journal.c.id > bindparam("after"))
    .order_by(journal.c.id)
    .limit(bindparam("as_many"))
)  # fmt: skip


def facts(tx: Tx, after: int, as_many: int) -> list[Fact]:
    return [Fact(**row) for row in _FACTS.rows(tx, {"after": after, "as_many": as_many})]


def without_gap(after: int, found: Sequence[Fact]) -> int:
    """How many of them follow each other: nothing can appear between them."""
    return next((place for place, fact in enumerate(found) if fact.id != after + 1 + place), len(found))


def first_since(tx: Tx, moment: datetime) -> int:
    """The id behind which the rows since then are, found by halving: there is no index on the time, and none is worth
    it.
    """
    low, high = 0, int(tx.execute(select(_TOP)).scalar_one())
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


def lag(tx: Tx, position: int) -> tuple[int, datetime | None]:
    """Rows that are not on the bus, and since when the oldest of them has been there."""
    behind = journal.c.id > position
    rows = int(tx.execute(select(func.count()).select_from(journal).where(behind)).scalar_one())
    oldest = tx.execute(select(journal.c.at).where(behind).order_by(journal.c.id).limit(1)).scalar()
    return rows, oldest
