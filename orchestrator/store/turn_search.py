"""Turns by many conditions, newest first, in a time that does not grow with the table.

Ids grow with time, so the primary key orders the list. Conditions that no index answers are checked on a bounded number
of turns, `LOOKED_AT` for each page: the caller learns how far back it has looked and can go on from there. Open turns
are found by partial indexes, those that failed by one too, and those of a space by an index of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, RowMapping, and_, exists, func, literal_column, or_, select, text, union_all

from chordage.orchestrator.core.approvals import Why
from chordage.orchestrator.core.bulk import BEGINNING, EXACT, BulkCount, estimate
from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.model import COUNTS
from chordage.orchestrator.core.status import Disposition, RunStatus, TurnStatus
from chordage.orchestrator.store.contents import beginning, is_encrypted
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.predicates import (
    OPEN_RUNS,
    QUEUED_IN_GROUP,
    STILL_OPEN_SUSPENSION,
    has,
    is_of_space,
    turns_in_space,
)
from chordage.orchestrator.store.schema import calls, runs, suspensions, turns

LOOKED_AT = 20_000  # turns for one page
ENCRYPTED = (
    "q: words of a message cannot be searched here, because CHORDAGE_CIPHER encrypts what is stored; search by agent, "
    "group, thread, tool, state, time, tokens or cost"
)
AT_ONCE = 4_000
EXCERPT = 160  # characters of a message


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnConditions:
    """None: any. Several values of one field: one of them."""

    statuses: frozenset[TurnStatus] = frozenset()
    run_statuses: frozenset[RunStatus] = frozenset()  # of the open run
    dispositions: frozenset[Disposition] = frozenset()
    agent: str | None = None
    group: Group | None = None
    tenant: str | None = None
    tool: str | None = None  # that its run has called
    text: str | None = None  # part of its message
    thread_id: str | None = None
    more_tokens: int | None = None
    fewer_tokens: int | None = None
    dearer_than: int | None = None  # nano-dollars, of what is known of its cost
    cheaper_than: int | None = None  # only turns of which the whole cost is known
    since: datetime | None = None
    until: datetime | None = None
    space: str | None = None

    @property
    def is_open(self) -> bool:
        """Only turns that are not done: few, whatever the size of the table."""
        return not self.dispositions and bool(self.statuses or self.run_statuses) and (
            TurnStatus.DONE not in self.statuses
        )  # fmt: skip

    @property
    def is_in_order(self) -> bool:
        """An index holds the turns in question, and no others, in the order of their ids."""
        others = replace(self, space=None)
        return others == TurnConditions() or (self.space is None and self == _FAILED)


# A database that sees the primary key would rather walk along it, past all turns that are done.
_ID_BESIDE_THE_KEY = turns.c.id.concat(literal_column("''"))
_QUEUED = turns.alias("queued")
_FAILED = TurnConditions(dispositions=frozenset({Disposition.FAILED}))
TurnSummary = RowMapping

_RUN_COLUMNS = ("status", "reason", "code", "rounds", "started_at", "ended_at", *COUNTS)
_OF_RUN = [
    select(runs.c[name]).where(runs.c.id == turns.c.run_id).scalar_subquery().label(f"run_{name}")
    for name in _RUN_COLUMNS
]
_TOKENS = select(runs.c.input_tokens + runs.c.output_tokens).where(runs.c.id == turns.c.run_id).scalar_subquery()
_COST = select(runs.c.cost_nanos).where(runs.c.id == turns.c.run_id).scalar_subquery()
_KNOWN_COST = select(runs.c.cost_nanos).where(runs.c.id == turns.c.run_id, runs.c.unpriced == 0).scalar_subquery()
_SUMMARY = select(
    turns.c.id.label("turn_id"),
    *(
        turns.c[name]
        for name in (
            "thread_id", "agent", "tenant", "origin", "channel", "sender", "status", "disposition", "run_id",
            "queued_at", "started_at", "done_at", "parent_run", "path", "not_before", "deadline",
        )
    ),
    turns.c.grp.label("group"),
    beginning(turns.c.text, EXCERPT).label("text"),
    *_OF_RUN,
    select(func.count())
    .select_from(suspensions)
    .where(suspensions.c.run_id == turns.c.run_id, STILL_OPEN_SUSPENSION, suspensions.c.why != Why.CHILD.value)
    .scalar_subquery()
    .label("open_questions"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundTurns:
    rows: Sequence[TurnSummary]
    looked_to: tuple[str, datetime] | None  # the last turn that was looked at, if there may be more behind it


def matching(tx: Tx, wanted: TurnConditions, *, limit: int, before: str | None = None) -> FoundTurns:
    """Up to `limit` turns, newest first, before the turn `before`."""
    key = _ID_BESIDE_THE_KEY if wanted.is_open else turns.c.id
    page = _SUMMARY.where(*_conditions(tx, wanted)).order_by(key.desc())
    if wanted.is_open or wanted.is_in_order:
        page = page if before is None else page.where(key < before)
        rows = tx.execute(page.limit(limit + 1)).mappings().all()
        more = len(rows) > limit
        rows = rows[:limit]
        return FoundTurns(rows=rows, looked_to=(rows[-1]["turn_id"], rows[-1]["queued_at"]) if more else None)
    rows, looked, lowest = [], 0, before
    last: tuple[str, datetime] | None = None
    while len(rows) < limit and looked < LOOKED_AT:
        last = _last_of(tx, wanted.space, lowest)
        if last is None:
            return FoundTurns(rows=rows, looked_to=None)
        window = page.where(turns.c.id >= last[0])
        window = window if lowest is None else window.where(turns.c.id < lowest)
        rows += tx.execute(window.limit(limit - len(rows))).mappings().all()
        looked, lowest = looked + AT_ONCE, last[0]
        if wanted.since is not None and last[1] < wanted.since:
            return FoundTurns(rows=rows, looked_to=_position(rows[-1]) if len(rows) == limit else None)
    if len(rows) == limit:
        return FoundTurns(rows=rows, looked_to=_position(rows[-1]))
    return FoundTurns(rows=rows, looked_to=last if _last_of(tx, wanted.space, lowest) is not None else None)


def _position(row: TurnSummary) -> tuple[str, datetime]:
    return row["turn_id"], row["queued_at"]


def _last_of(tx: Tx, space: str | None, before: str | None) -> tuple[str, datetime] | None:
    """The lowest id of the next `AT_ONCE` turns, and when that turn came. Reads an index alone."""
    ids = select(turns.c.id).order_by(turns.c.id.desc()).limit(AT_ONCE)
    ids = ids if before is None else ids.where(turns.c.id < before)
    ids = ids if space is None else ids.where(turns_in_space(space))
    near = ids.subquery()
    lowest = select(func.min(near.c.id)).scalar_subquery()
    row = tx.execute(select(turns.c.id, turns.c.queued_at).where(turns.c.id == lowest)).first()
    return None if row is None else (row.id, row.queued_at)


def count_open(tx: Tx, wanted: TurnConditions, *, limit: int) -> int:
    """How many open turns fit, up to `limit`."""
    assert wanted.is_open
    ids = select(turns.c.id).where(*_conditions(tx, wanted)).limit(limit).subquery()
    return int(tx.execute(select(func.count()).select_from(ids)).scalar() or 0)


def count(tx: Tx, wanted: TurnConditions) -> BulkCount:
    """How many turns fit: exactly up to `EXACT`, or estimated from the newest `LOOKED_AT` turns."""
    if wanted.is_open and (number := count_open(tx, wanted, limit=EXACT + 1)) <= EXACT:
        return BulkCount(number=number)
    fitting, looked, lowest = 0, 0, None
    is_whole = False
    while not is_whole and looked < LOOKED_AT:
        last = _last_of(tx, None, lowest)
        if last is None:
            is_whole = True
            break
        fitting += _count_between(tx, wanted, last[0], lowest)
        looked, lowest = looked + AT_ONCE, last[0]
        is_whole = wanted.since is not None and last[1] < wanted.since
    if is_whole or (lowest is not None and _last_of(tx, None, lowest) is None):
        return BulkCount(number=fitting) if fitting <= EXACT else estimate(fitting, 1, 1)
    return estimate(max(fitting, EXACT + 1) if wanted.is_open else fitting, looked, _about_all(tx))


def _count_between(tx: Tx, wanted: TurnConditions, lowest: str, before: str | None) -> int:
    window = select(func.count()).select_from(turns).where(turns.c.id >= lowest, *_conditions(tx, wanted))
    window = window if before is None else window.where(turns.c.id < before)
    return int(tx.execute(window).scalar_one())


def _about_all(tx: Tx) -> int:
    """About how many turns there are, without counting them."""
    if tx.dialect.name == "postgresql":
        about = "SELECT reltuples FROM pg_class WHERE oid = CAST('turns' AS regclass)"
    else:
        about = "SELECT max(rowid) FROM turns"
    return max(0, int(tx.execute(text(about)).scalar() or 0))


@dataclass(frozen=True, kw_only=True, slots=True)
class FittingTurns:
    """`up_to`: how far was looked, if there may be more behind it."""

    ids: Sequence[str]
    up_to: str | None


def next_fitting(tx: Tx, wanted: TurnConditions, position: str, *, upwards: bool, limit: int) -> FittingTurns:
    """The turns that fit next behind this position, of the next `AT_ONCE` turns where no index finds them."""
    ids = select(turns.c.id).where(*_conditions(tx, wanted))
    ids = ids.order_by(turns.c.id if upwards else turns.c.id.desc())
    behind = turns.c.id > position if upwards or position == BEGINNING else turns.c.id < position
    if wanted.is_open:
        near = tx.execute(ids.where(behind).limit(limit)).scalars().all()
        return FittingTurns(ids=near, up_to=near[-1] if len(near) == limit else None)
    window = select(turns.c.id).where(behind).order_by(turns.c.id if upwards else turns.c.id.desc())
    near_by = window.limit(AT_ONCE).subquery()
    edge = func.max(near_by.c.id) if upwards else func.min(near_by.c.id)
    last = tx.execute(select(edge)).scalar()
    if last is None:
        return FittingTurns(ids=(), up_to=None)
    inside = turns.c.id <= last if upwards else turns.c.id >= last
    near = tx.execute(ids.where(behind, inside).limit(limit)).scalars().all()
    return FittingTurns(ids=near, up_to=near[-1] if len(near) == limit else last)


def fits(tx: Tx, wanted: TurnConditions, turn_id: str) -> bool:
    return tx.execute(select(turns.c.id).where(turns.c.id == turn_id, *_conditions(tx, wanted))).first() is not None


def newest_outcomes(tx: Tx, *, limit: int) -> Sequence[RowMapping]:
    """When the newest turns came, and how they ended."""
    newest = select(turns.c.queued_at, turns.c.status, turns.c.disposition).order_by(turns.c.id.desc()).limit(limit)
    return tx.execute(newest).mappings().all()


def _conditions(tx: Tx, wanted: TurnConditions) -> list[ColumnElement[bool]]:
    given: list[ColumnElement[bool]] = []
    if wanted.is_open:
        given.append(turns.c.id.in_(_open_turns(wanted)))
    elif states := _states(wanted):
        given.append(or_(*states) if len(states) > 1 else states[0])
    for column, value in (
        (turns.c.agent, wanted.agent),
        (turns.c.grp, wanted.group.value if wanted.group else None),
        (turns.c.tenant, wanted.tenant),
        (turns.c.thread_id, wanted.thread_id),
    ):
        if value is not None:
            given.append(column == value)
    if wanted.text is not None:
        if is_encrypted(tx):
            raise InvalidMessage(ENCRYPTED, field="q")
        given.append(turns.c.text.icontains(wanted.text, autoescape=True))
    if wanted.tool is not None:
        given.append(exists().where(calls.c.run_id == turns.c.run_id, calls.c.tool == wanted.tool))
    if wanted.more_tokens is not None:
        given.append(wanted.more_tokens < _TOKENS)
    if wanted.fewer_tokens is not None:
        given.append(wanted.fewer_tokens > _TOKENS)
    if wanted.dearer_than is not None:
        given.append(wanted.dearer_than < _COST)
    if wanted.cheaper_than is not None:
        given.append(wanted.cheaper_than > _KNOWN_COST)
    if wanted.since is not None:
        given.append(turns.c.queued_at >= wanted.since)
    if wanted.until is not None:
        given.append(turns.c.queued_at <= wanted.until)
    if wanted.space is not None and not wanted.is_open:
        given.append(turns_in_space(wanted.space))
    elif wanted.space is not None:
        given.append(is_of_space(turns, wanted.space))
    return given


def _states(wanted: TurnConditions) -> list[ColumnElement[bool]]:
    states: list[ColumnElement[bool]] = []
    if TurnStatus.QUEUED in wanted.statuses:
        states.append(QUEUED_IN_GROUP)
    if TurnStatus.DONE in wanted.statuses:
        states.append(has(turns.c.status, TurnStatus.DONE))
    if TurnStatus.ACTIVE in wanted.statuses or wanted.run_statuses:
        states.append(and_(has(turns.c.status, TurnStatus.ACTIVE), turns.c.id.in_(_of_open_runs(wanted))))
    if wanted.dispositions == _FAILED.dispositions and wanted.space is None:
        states.append(has(turns.c.disposition, Disposition.FAILED))
    elif wanted.dispositions:  # compared as an expression: the index of failed turns has those of all spaces
        ended = turns.c.disposition.concat(literal_column("''"))
        states.append(ended.in_([one.value for one in sorted(wanted.dispositions)]))
    return states


def _open_turns(wanted: TurnConditions) -> Any:
    """The ids of the turns in these states, each state by its own index: no database uses two for an OR of them."""
    parts: list[Any] = []
    if TurnStatus.QUEUED in wanted.statuses:
        parts.append(
            select(_QUEUED.c.id).where(
                has(_QUEUED.c.status, TurnStatus.QUEUED), _QUEUED.c.arrival >= literal_column("0")
            )
        )
    if TurnStatus.ACTIVE in wanted.statuses or wanted.run_statuses:
        parts.append(_of_open_runs(wanted))
    return union_all(*parts) if len(parts) > 1 else parts[0]


def _of_open_runs(wanted: TurnConditions) -> Any:
    open_runs = select(runs.c.turn_id).where(OPEN_RUNS)
    if not wanted.run_statuses:
        return open_runs
    return open_runs.where(runs.c.status.in_([status.value for status in sorted(wanted.run_statuses)]))
