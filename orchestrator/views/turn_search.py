"""Turns by many conditions, as the list of runs shows them, and saved searches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import Origin, Sender
from chordage.orchestrator.core.model import Usage, usage_from
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.saved_views import SavedView
from chordage.orchestrator.core.status import Disposition, RunStatus, TurnStatus
from chordage.orchestrator.store import durations, turn_search
from chordage.orchestrator.store import saved_views as saved_rows
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.store.turn_search import TurnConditions, TurnSummary
from chordage.orchestrator.views.conversion import view_of

TOOLS = 500  # names that a list of them has at most


class TurnState(StrEnum):
    """What a list says of a turn in one word: what it does, or how it ended."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    DONE = "done"
    ANSWERED = "answered"
    MERGED = "merged"
    STEERED = "steered"
    REJECTED = "rejected"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    CANCELLED = "cancelled"
    FAILED = "failed"


OPEN_STATES = frozenset({TurnState.QUEUED, TurnState.RUNNING, TurnState.WAITING})


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnFilter:
    """`states`: any of them; empty: all."""

    states: frozenset[TurnState] = frozenset()
    agent: str | None = None
    group: Group | None = None
    tenant: str | None = None
    tool: str | None = None
    text: str | None = None
    thread_id: str | None = None
    more_tokens: int | None = None
    fewer_tokens: int | None = None
    dearer_than: int | None = None  # nano-dollars
    cheaper_than: int | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def is_open(self) -> bool:
        return bool(self.states) and self.states <= OPEN_STATES


def filter_as_json(wanted: TurnFilter) -> dict[str, Any]:
    """As a bulk job keeps it: only what is given."""
    written = {
        **{field.name: getattr(wanted, field.name) for field in fields(wanted)},
        "states": sorted(wanted.states), "since": wanted.since and wanted.since.isoformat(),
        "until": wanted.until and wanted.until.isoformat(),
    }  # fmt: skip
    return {name: value for name, value in written.items() if value not in (None, [])}


def filter_from_json(kept: Mapping[str, Any]) -> TurnFilter:
    read = {
        **kept,
        "states": frozenset(TurnState(state) for state in kept.get("states", ())),
        "group": Group(kept["group"]) if "group" in kept else None,
        "since": datetime.fromisoformat(kept["since"]) if "since" in kept else None,
        "until": datetime.fromisoformat(kept["until"]) if "until" in kept else None,
    }
    return TurnFilter(**read)


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedTurn:
    """A turn in a list, with what its run has come to; `text` is the beginning of its message."""

    turn_id: str
    thread_id: str
    agent: str
    group: Group
    tenant: str
    origin: Origin
    channel: str | None
    sender: Sender
    text: str
    status: TurnStatus
    disposition: Disposition | None
    run_id: str | None
    run_status: RunStatus | None
    run_reason: Reason | None
    run_code: str | None
    run_rounds: int | None
    usage: Usage  # of its run, with its sub-agents that have ended
    queued_at: datetime
    started_at: datetime | None
    done_at: datetime | None
    not_before: datetime | None
    parent_run: str | None
    path: str | None
    open_questions: int

    @property
    def state(self) -> TurnState:
        if self.status is TurnStatus.ACTIVE:
            return TurnState.WAITING if self.run_status is RunStatus.WAITING else TurnState.RUNNING
        return TurnState((self.disposition or self.status).value)


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnPage:
    """`next`: give it as `before` for the next page. `looked_to`: how far back the search has looked, if it stopped
    before the page was full.
    """

    turns: tuple[ListedTurn, ...]
    next: str | None
    looked_to: datetime | None


def search_turns(
    store: Store, wanted: TurnFilter, *, limit: int = 50, before: str | None = None, space: str | None = None
) -> TurnPage:
    """Newest first."""
    with store.read() as tx:
        result = turn_search.matching(tx, conditions_of(wanted, space), limit=limit, before=before)
    listed = tuple(_listed(row) for row in result.rows)
    position = result.looked_to
    return TurnPage(
        turns=listed, next=position[0] if position else None,
        looked_to=position[1] if position and len(listed) < limit else None,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Throughput:
    """Turns by the minute in which they came, the oldest first; `failed` of them ended so. `minutes` may be fewer than
    asked for: only so many turns are counted.
    """

    came: tuple[int, ...]
    failed: tuple[int, ...]


def throughput(store: Store, now: datetime, *, minutes: int = 60, counted: int = 4_000) -> Throughput:
    with store.read() as tx:
        rows = turn_search.newest_outcomes(tx, limit=counted)
    came, failed = [0] * minutes, [0] * minutes
    for row in rows:
        passed = int((now - row["queued_at"]).total_seconds() // 60)
        if 0 <= passed < minutes:
            came[-1 - passed] += 1
            failed[-1 - passed] += row["disposition"] == Disposition.FAILED.value
    if len(rows) == counted:
        seen = min(minutes, int((now - rows[-1]["queued_at"]).total_seconds() // 60) + 1)
        came, failed = came[-seen:], failed[-seen:]
    return Throughput(came=tuple(came), failed=tuple(failed))


def _listed(row: TurnSummary) -> ListedTurn:
    return view_of(ListedTurn, row, usage=usage_from(row, "run_"))


def conditions_of(wanted: TurnFilter, space: str | None) -> TurnConditions:
    states = {state.value for state in wanted.states}
    return TurnConditions(
        statuses=frozenset(status for status in (TurnStatus.QUEUED, TurnStatus.DONE) if status.value in states),
        run_statuses=frozenset(status for status in (RunStatus.RUNNING, RunStatus.WAITING) if status.value in states),
        dispositions=frozenset(one for one in Disposition if one.value in states),
        agent=wanted.agent, group=wanted.group, tenant=wanted.tenant, tool=wanted.tool, text=wanted.text,
        thread_id=wanted.thread_id, more_tokens=wanted.more_tokens, fewer_tokens=wanted.fewer_tokens,
        dearer_than=wanted.dearer_than, cheaper_than=wanted.cheaper_than,
        since=wanted.since, until=wanted.until, space=space,
    )  # fmt: skip


def saved_views(store: Store, owner: str) -> list[SavedView]:
    """By name."""
    with store.read() as tx:
        return saved_rows.visible_to(tx, owner)


def known_tools(store: Store) -> list[str]:
    """That were called lately."""
    with store.read() as tx:
        return durations.tools(tx, TOOLS)
