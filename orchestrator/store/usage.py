"""What was used: of one run without its sub-agents, of a thread, and of a span of time by agent, tenant or day.

A run counts by the day on which it began. Ids grow with time, so a span of time is a range of the primary key: a read
takes as long as there are runs in the span, however many there are before it, and no more than `MOST_RUNS` are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, RowMapping, String, and_, cast, func, literal_column, select

from chordage.orchestrator.core import message
from chordage.orchestrator.core.model import COUNTS
from chordage.orchestrator.core.prices import UsageKey
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.pages import SKEW, first_id_at
from chordage.orchestrator.store.schema import runs, turns


def of_children(tx: Tx, run_id: str) -> RowMapping:
    """What the ended sub-agents of a run have used; its own counts include it."""
    columns = [runs.c[f"children_{name}"] for name in COUNTS]
    return tx.execute(select(*columns).where(runs.c.id == run_id)).mappings().one()


def of_thread(tx: Tx, thread_id: str) -> RowMapping:
    """Of all runs of a thread, with their sub-agents. Its turns have an index; its runs have none."""
    began = and_(runs.c.id == turns.c.run_id, runs.c.turn_id == turns.c.id)
    sums = [func.sum(runs.c[name]).label(name) for name in COUNTS]
    summed = select(*sums).select_from(turns).join(runs, began).where(turns.c.thread_id == thread_id)
    return tx.execute(summed).mappings().one()


@dataclass(frozen=True, kw_only=True, slots=True)
class UsageSpan:
    """`until`: None: up to now. `space`: of a caller, who sees its own threads and the sub-agents below them."""

    since: datetime
    until: datetime | None = None
    space: str | None = None
    after: str | None = None  # only runs behind this id


MOST_RUNS = 100_000
_OWN = {name: runs.c[name] - runs.c[f"children_{name}"] for name in COUNTS}  # so that no sub-agent counts twice
_SUMS = [func.sum(own).label(name) for name, own in _OWN.items()]


def counted_from(tx: Tx, span: UsageSpan) -> RowMapping | None:
    """The run behind the newest `MOST_RUNS` of the span; None: there are no more. Reads the primary key alone."""
    ids = [runs.c.id >= first_id_at(span.since - SKEW)]
    ids += [runs.c.id < first_id_at(span.until + SKEW)] if span.until is not None else []
    edge = select(runs.c.id).where(*ids).order_by(runs.c.id.desc()).offset(MOST_RUNS).limit(1).scalar_subquery()
    return tx.execute(select(runs.c.id, runs.c.started_at).where(runs.c.id == edge)).mappings().first()


def by_key(tx: Tx, key: UsageKey, span: UsageSpan, *, limit: int) -> Sequence[RowMapping]:
    """The dearest first, then those with the most tokens; days with the newest first."""
    column = _day(tx) if key is UsageKey.DAY else runs.c[key.value]
    named = column.label("key")
    sums = select(named, func.count().label("runs"), *_SUMS).where(*_within(span)).group_by(column).limit(limit)
    if key is UsageKey.DAY:
        return tx.execute(sums.order_by(literal_column("key").desc())).mappings().all()
    tokens = func.sum(_OWN["input_tokens"] + _OWN["output_tokens"])
    dearest = sums.order_by(func.sum(_OWN["cost_nanos"]).desc(), tokens.desc(), column)
    return tx.execute(dearest).mappings().all()


def _day(tx: Tx) -> ColumnElement[str]:
    """The day in UTC, as 2026-01-31. SQLite stores times in UTC, as text that begins so."""
    if tx.dialect.name == "postgresql":
        return func.to_char(func.timezone("UTC", runs.c.started_at), literal_column("'YYYY-MM-DD'"))
    return func.substr(cast(runs.c.started_at, String), 1, 10)


def _within(span: UsageSpan) -> list[ColumnElement[bool]]:
    """An id has the time of the process that made it, so the range of ids is a little wider."""
    conditions: list[Any] = [runs.c.id >= first_id_at(span.since - SKEW), runs.c.started_at >= span.since]
    if span.until is not None:
        conditions += [runs.c.id < first_id_at(span.until + SKEW), runs.c.started_at < span.until]
    if span.after is not None:
        conditions.append(runs.c.id > span.after)
    if span.space is not None:
        home = func.coalesce(runs.c.root_thread, runs.c.thread_id)
        prefix = message.prefix(span.space)
        conditions.append(func.substr(home, 1, len(prefix)) == prefix)  # SQLite's LIKE would ignore case
    return conditions
