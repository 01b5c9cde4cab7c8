"""What agents, tenants and days have used, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.model import Usage, usage_from
from chordage.orchestrator.core.prices import UsageKey
from chordage.orchestrator.store import usage as usage_rows
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.store.usage import UsageSpan

DEFAULT_SPAN = timedelta(days=7)
LONGEST_SPAN = timedelta(days=92)
MOST_LINES = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class UsageLine:
    """One agent, tenant or day; `runs` that began in the span. A sub-agent counts for itself alone."""

    key: str
    runs: int
    usage: Usage


@dataclass(frozen=True, kw_only=True, slots=True)
class UsageReport:
    """`lines`: the dearest first, days with the newest first. `is_cut`: there are more, which are not in the list.
    `looked_to`: where the count ended, if the span has more runs than are counted: those before are left out.
    """

    by: UsageKey
    since: datetime
    until: datetime
    lines: tuple[UsageLine, ...]
    is_cut: bool
    looked_to: datetime | None


def usage_report(
    store: Store,
    by: UsageKey,
    now: datetime,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    space: str | None = None,
    limit: int = MOST_LINES,
) -> UsageReport:
    """Of the runs that began from `since` (default a week before `until`) to before `until` (default now). Raises
    InvalidMessage for a span that is empty or too long.
    """
    begin, end = _span(since, until, now)
    span = UsageSpan(since=begin, until=None if until is None else end, space=space)
    with store.read() as tx:
        edge = usage_rows.counted_from(tx, span)
        span = span if edge is None else replace(span, after=edge["id"])
        rows = usage_rows.by_key(tx, by, span, limit=limit + 1)
    lines = tuple(UsageLine(key=row["key"], runs=row["runs"], usage=usage_from(row)) for row in rows[:limit])
    return UsageReport(
        by=by, since=begin, until=end, lines=lines, is_cut=len(rows) > limit,
        looked_to=None if edge is None else edge["started_at"],
    )  # fmt: skip


def total(lines: Sequence[UsageLine]) -> Usage:
    return sum((line.usage for line in lines), Usage())


def _span(since: datetime | None, until: datetime | None, now: datetime) -> tuple[datetime, datetime]:
    end = until or now
    begin = since or (end - DEFAULT_SPAN).replace(hour=0, minute=0, second=0, microsecond=0)
    if begin >= end:
        problem = f"since {begin:%Y-%m-%d %H:%M} is not before until {end:%Y-%m-%d %H:%M}: give an earlier one"
        raise InvalidMessage(problem, field="since")
    if end - begin > LONGEST_SPAN + timedelta(days=1):
        problem = f"from since to until are {(end - begin).days} days: give {LONGEST_SPAN.days} days or fewer"
        raise InvalidMessage(problem, field="since")
    return begin, end
