"""Pages of turns and runs, the newest first, for readers that filter a large table.

Ids grow with time, so the primary key orders a list and is its own tie-breaker. A page looks at no more than
`LOOKED_AT` rows: a filter that few rows meet would otherwise read a table of a million. Such a page is short, perhaps
empty, and says where the next begins.

The turns of one space have an index, so its pages pass over none of others. Its runs are found by those turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Column, ColumnElement, RowMapping, Select, Table, and_, func, literal_column, select

from chordage.orchestrator.core.model import COUNTS
from chordage.orchestrator.core.status import OPEN_RUN, RunStatus, TurnStatus
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.predicates import OPEN_RUNS, QUEUED_IN_GROUP, has, in_line, is_of_space, turns_in_space
from chordage.orchestrator.store.schema import runs, turns
from chordage.orchestrator.store.turns import SUMMARY

LOOKED_AT = 20_000
NEAR = 500  # that are looked at first: a filter that most rows meet needs no more
SKEW = timedelta(minutes=5)  # between the clocks of two machines: an id has the time of the process that made it


@dataclass(frozen=True, kw_only=True, slots=True)
class PageQuery:
    """`equal`: values of columns. `before`: the `next` of the page before."""

    limit: int
    equal: Mapping[str, str] = field(default_factory=dict)
    thread_id: str | None = None
    space: str | None = None  # of a caller, who sees its own threads and the sub-agents below them
    since: datetime | None = None
    until: datetime | None = None
    before: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RowPage:
    """`next`: the `before` of the next page; None: this is the last."""

    rows: Sequence[RowMapping]
    next: str | None


_RUN_COLUMNS = (
    "thread_id", "turn_id", "agent", "strategy", "control", "status", "reason", "code", "rounds", *COUNTS,
    *(f"children_{name}" for name in COUNTS),
    "parent_run", "root_run", "path", "started_at", "ended_at",
)  # fmt: skip
_OF_TURNS = and_(runs.c.id == turns.c.run_id, runs.c.turn_id == turns.c.id)
_RUN = select(runs.c.id.label("run_id"), runs.c.grp.label("group"), *(runs.c[name] for name in _RUN_COLUMNS))


def turn_page(tx: Tx, query: PageQuery, *, status: TurnStatus | None = None) -> RowPage:
    is_open = status in {TurnStatus.QUEUED, TurnStatus.ACTIVE}
    by_space = query.space is not None and query.thread_id is None and not is_open
    conditions = _conditions(turns, query, turns.c.queued_at, by_space=by_space)
    match status:
        case TurnStatus.QUEUED:
            conditions.append(in_line(turns) if query.thread_id is not None else QUEUED_IN_GROUP)
        case TurnStatus.ACTIVE:
            opened = turns.c.id.in_(select(runs.c.turn_id).where(OPEN_RUNS))
            conditions += [has(turns.c.status, status), opened]
        case TurnStatus.DONE:
            conditions.append(has(turns.c.status, status))
    if query.thread_id is None:
        bounds = [turns_in_space(query.space)] if by_space and query.space is not None else []
        page = _of_table(tx, turns, bounds, conditions, query, is_open=is_open)
    else:
        if query.before is not None:
            last = select(turns.c.arrival).where(turns.c.id == query.before).scalar_subquery()
            conditions.append(turns.c.arrival < last)
        page = _ids(tx, select(turns.c.id).where(*conditions).order_by(turns.c.arrival.desc()), query.limit)
    return RowPage(rows=_rows(tx, SUMMARY, "turn_id", turns.c.id, page), next=page.next)


def run_page(tx: Tx, query: PageQuery, *, status: RunStatus | None = None) -> RowPage:
    is_open = status in OPEN_RUN
    # Since a time: runs made since then are looked at, as their turns may have been queued long before.
    by_space = query.space is not None and query.thread_id is None and query.since is None and not is_open
    conditions = _conditions(runs, query, runs.c.started_at, by_space=by_space)
    if status is not None:
        conditions += [has(runs.c.status, status), *([OPEN_RUNS] if is_open else [])]
    if by_space:
        page = _runs_of_space(tx, conditions, query)
    elif query.thread_id is None:
        page = _of_table(tx, runs, [], conditions, query, is_open=is_open)
    else:
        # The turns of a thread have an index by arrival, its runs have none. A run belongs to the turn it began with.
        conditions.append(turns.c.thread_id == query.thread_id)
        if query.before is not None:
            last = select(runs.c.turn_id).where(runs.c.id == query.before).scalar_subquery()
            arrival = select(turns.c.arrival).where(turns.c.id == last).scalar_subquery()
            conditions.append(turns.c.arrival < arrival)
        joined = select(runs.c.id).join(turns, _OF_TURNS)
        page = _ids(tx, joined.where(*conditions).order_by(turns.c.arrival.desc()), query.limit)
    return RowPage(rows=_rows(tx, _RUN, "run_id", runs.c.id, page), next=page.next)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ids:
    ids: Sequence[str]
    next: str | None


def _conditions(table: Table, query: PageQuery, at: Column[Any], *, by_space: bool) -> list[ColumnElement[bool]]:
    """`by_space`: rows are found by the space, which is no condition of its own then. Another column is compared as an
    expression: an index of it has the rows of all spaces.
    """
    empty: ColumnElement[str] = literal_column("''")
    conditions: list[ColumnElement[bool]] = [
        (table.c[name].concat(empty) if by_space else table.c[name]) == value for name, value in query.equal.items()
    ]
    if query.thread_id is not None:
        conditions.append(table.c.thread_id == query.thread_id)
    if query.space is not None and not by_space:
        conditions.append(is_of_space(table, query.space))
    if query.since is not None:
        conditions.append(at >= query.since)
    if query.until is not None:
        conditions.append(at < query.until)
    return conditions


def _of_table(
    tx: Tx,
    table: Table,
    range_of: Sequence[ColumnElement[bool]],
    conditions: Sequence[ColumnElement[bool]],
    query: PageQuery,
    *,
    is_open: bool,
) -> _Ids:
    """Open turns and runs are few, and found by partial indexes, however many are done. Their ids are compared as an
    expression: a database that sees the primary key would rather walk along it, past all that are done.
    `range_of`: what rows are found by, besides their ids.
    """
    key = table.c.id.concat(literal_column("''")) if is_open else table.c.id
    bounds = [*range_of, *([key < query.before] if query.before is not None else [])]
    bounds += [key >= first_id_at(query.since - SKEW)] if query.since is not None else []
    bounds += [key < first_id_at(query.until + SKEW)] if query.until is not None else []
    if is_open or not conditions:
        return _ids(tx, select(table.c.id).where(*bounds, *conditions).order_by(key.desc()), query.limit)
    return _in_windows(
        tx, select(key).where(*bounds), select(key.label("at")).where(*bounds, *conditions), key, query.limit
    )


def _runs_of_space(tx: Tx, conditions: Sequence[ColumnElement[bool]], query: PageQuery) -> _Ids:
    """Those with the newest turns first. A page begins behind a turn."""
    key = turns.c.id
    assert query.space is not None
    bounds = [turns_in_space(query.space), *([key < query.before] if query.before is not None else [])]
    bounds += [key < first_id_at(query.until + SKEW)] if query.until is not None else []
    joined = select(runs.c.id, key.label("at")).join(turns, _OF_TURNS).where(*bounds, *conditions)
    return _in_windows(tx, select(key).where(*bounds), joined, key, query.limit)


def _in_windows(tx: Tx, keys: Select[Any], wanted: Select[Any], key: ColumnElement[str], limit: int) -> _Ids:
    """The first of `wanted` among the next keys: of a few of them, and where these do not fill the page, of LOOKED_AT.
    `wanted` gives ids, and as `at` the key of each.
    """
    page, lowest, number = _Ids(ids=[], next=None), None, 0
    for looked_at in (min(NEAR, LOOKED_AT), LOOKED_AT):
        window = keys.order_by(key.desc()).limit(looked_at).subquery()
        lowest, number = tx.execute(select(func.min(window.c.id), func.count()).select_from(window)).one()
        if lowest is None:
            return page
        rows = tx.execute(wanted.where(key >= lowest).order_by(key.desc()).limit(limit + 1)).all()
        ids = [row[0] for row in rows[:limit]]
        page = _Ids(ids=ids, next=rows[limit - 1].at if len(rows) > limit else None)
        if page.next is not None or number < looked_at:
            return page
    return _Ids(ids=page.ids, next=lowest)


def _ids(tx: Tx, statement: Select[Any], limit: int) -> _Ids:
    """One more than the page holds is read: whether there is another page."""
    ids = tx.execute(statement.limit(limit + 1)).scalars().all()
    return _Ids(ids=ids[:limit], next=ids[limit - 1] if len(ids) > limit else None)


def _rows(tx: Tx, summary: Select[Any], name: str, key: Column[Any], page: _Ids) -> list[RowMapping]:
    """In the order of the ids. `name`: of the id in a row."""
    if not page.ids:
        return []
    by_id = {row[name]: row for row in tx.execute(summary.where(key.in_(page.ids))).mappings()}
    return [by_id[id_] for id_ in page.ids if id_ in by_id]


def first_id_at(at: datetime) -> str:
    """No id that was made at that time or later is smaller (`gateways/ids.py`)."""
    digits = f"{max(0, int(at.timestamp() * 1000)):012x}"
    return f"{digits[:8]}-{digits[8:12]}"
