"""Which rows a statement is about: sets of rows that a partial index answers, and single rows found by a key.

A prepared plan uses a partial index only if the statement repeats the index's condition word for word. Why no statement
may repeat the condition of another index by accident: ADR 34.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, and_, collate, func, literal_column, select

from chordage.orchestrator.core.approvals import SuspensionStatus
from chordage.orchestrator.core.deliveries import DeliveryStatus
from chordage.orchestrator.core.status import IN_FLIGHT_CALL, OPEN_RUN, RunStatus, TurnStatus
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.schema import (
    UNSETTLED,
    calls,
    delivery_space,
    outbox,
    runs,
    space_of,
    suspensions,
    thread_space,
    threads,
    turn_space,
    turns,
)


def has(column: ColumnElement[Any], *values: StrEnum | int) -> ColumnElement[bool]:
    """Compare with literal values: a prepared plan uses a partial index only if the statement contains them."""
    listed: list[ColumnElement[Any]] = [
        literal_column(str(v) if isinstance(v, int) else f"'{v.value}'") for v in values
    ]
    return column == listed[0] if len(listed) == 1 else column.in_(listed)


def still(column: ColumnElement[Any], *values: StrEnum | int) -> ColumnElement[bool]:
    """As `has`, for a row that is found by its key: no index matches this condition. PostgreSQL keeps the plan of a
    prepared statement. While a partial index is empty, reading all of it costs as little as looking up one key, and a
    plan made then still reads all of it when it has a hundred thousand rows.
    """
    return has(column.concat(literal_column("''")), *values)


OPEN_RUNS = has(runs.c.status, *sorted(OPEN_RUN))
RUNNING_RUNS = and_(has(runs.c.status, RunStatus.RUNNING), runs.c.epoch >= literal_column("1"))


def at_work(run: Any) -> ColumnElement[bool]:
    """Runs that count against the budget of their group."""
    return and_(has(run.c.status, RunStatus.RUNNING), has(run.c.stalled, 0))


RUNNING_IN_GROUP = at_work(runs)
STILL_OPEN = still(runs.c.status, *sorted(OPEN_RUN))
STILL_RUNNING = still(runs.c.status, RunStatus.RUNNING)
# A call without a lease is parked behind a suspended one, and no wake-up was sent for it.
CALLS_IN_FLIGHT = and_(has(calls.c.status, *sorted(IN_FLIGHT_CALL)), calls.c.lease_until.is_not(None))
STILL_IN_FLIGHT = and_(still(calls.c.status, *sorted(IN_FLIGHT_CALL)), calls.c.lease_until.is_not(None))
OPEN_SUSPENSIONS = has(suspensions.c.status, SuspensionStatus.OPEN)
STILL_OPEN_SUSPENSION = still(suspensions.c.status, SuspensionStatus.OPEN)
STILL_UNSETTLED = still(suspensions.c.status, *sorted(UNSETTLED))
UNSETTLED_SUSPENSIONS = has(suspensions.c.status, *sorted(UNSETTLED))
ASKED_OF_PEOPLE = and_(OPEN_SUSPENSIONS, suspensions.c.why != literal_column("'child'"))
OPEN_CHILD_SUSPENSIONS = and_(OPEN_SUSPENSIONS, suspensions.c.why == literal_column("'child'"))
UNWANTED_TURNS = and_(turns.c.cancel_asked == literal_column("1"), turns.c.status != literal_column("'done'"))


def steering(turn: Any) -> ColumnElement[bool]:
    """Queued turns that a run at work on their thread may take in."""
    return and_(has(turn.c.status, TurnStatus.QUEUED), has(turn.c.steers, 1))


QUEUED_TURNS = has(turns.c.status, TurnStatus.QUEUED)
STILL_QUEUED = still(turns.c.status, TurnStatus.QUEUED)
QUEUED_IN_GROUP = and_(QUEUED_TURNS, turns.c.arrival >= literal_column("0"))
STEERING_TURNS = steering(turns)
KEYED_TURNS = and_(QUEUED_TURNS, turns.c.coalesce_key.is_not(None))
OPEN_WILLS = and_(turns.c.origin == literal_column("'will'"), has(turns.c.status, TurnStatus.ACTIVE, TurnStatus.QUEUED))
PENDING_DELIVERIES = has(outbox.c.status, DeliveryStatus.PENDING)
STILL_PENDING = still(outbox.c.status, DeliveryStatus.PENDING)


def in_code_points(tx: Tx, column: ColumnElement[str]) -> ColumnElement[str]:
    """To lock several rows in the order in which Python sorts their ids, whatever the collation of the database.
    SQLite compares that way by default.
    """
    return collate(column, "C") if tx.dialect.name == "postgresql" else column


def in_line(turn: Any) -> ColumnElement[bool]:
    """Queued turns in the order of their thread's line: for statements that read along such a line."""
    return and_(has(turn.c.status, TurnStatus.QUEUED), turn.c.rank >= literal_column("-1"))


def in_delivery_order(row: Any) -> ColumnElement[bool]:
    return and_(has(row.c.status, DeliveryStatus.PENDING), row.c.attempts >= literal_column("0"))


_ZERO: ColumnElement[int] = literal_column("0")


def turns_in_space(space: str) -> ColumnElement[bool]:
    """Found by the index over spaces, as the two below."""
    return and_(turn_space == space, turns.c.steers >= _ZERO)


def threads_in_space(space: str) -> ColumnElement[bool]:
    return and_(thread_space == space, threads.c.arrivals >= _ZERO)


def deliveries_in_space(space: str) -> ColumnElement[bool]:
    return and_(delivery_space == space, outbox.c.forgiven >= _ZERO)


def is_of_space(row: Any, space: str) -> ColumnElement[bool]:
    """Of turns or runs that are found by another index: so written, the index over spaces does not serve it."""
    home = func.coalesce(row.c.root_thread, row.c.thread_id).concat(literal_column("''"))
    of_row: ColumnElement[str] = space_of(home)
    return of_row == space


def nothing_is_open_on(turn: Any) -> ColumnElement[bool]:
    """A scalar subquery, not an EXISTS: PostgreSQL would turn that into a join with all open runs."""
    run = runs.alias()
    open_run = select(run.c.id).where(run.c.thread_id == turn.c.thread_id, has(run.c.status, *sorted(OPEN_RUN)))
    return open_run.correlate(turn).scalar_subquery().is_(None)
