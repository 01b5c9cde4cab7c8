"""What has to be read of rows to say why they wait. Each statement reads by key, or a bounded part of an index.

The rows of all tables are here, because a reason is about several of them at one moment, and a list of a hundred rows
must cost no more statements than one row.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, RowMapping, Select, and_, func, literal, or_, select, tuple_

from chordage.orchestrator.core import message
from chordage.orchestrator.core.approvals import Why
from chordage.orchestrator.core.deliveries import DeliveryStatus
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.status import OPEN_CALL, RunStatus, TurnStatus
from chordage.orchestrator.store import fairness
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.groups import GROUP, RUNNING
from chordage.orchestrator.store.predicates import (
    OPEN_RUNS,
    PENDING_DELIVERIES,
    QUEUED_IN_GROUP,
    RUNNING_IN_GROUP,
    RUNNING_RUNS,
    STILL_UNSETTLED,
    has,
    in_delivery_order,
    in_line,
    still,
)
from chordage.orchestrator.store.schema import (
    calls,
    journal,
    outbox,
    processes,
    projection,
    runs,
    stepped,
    suspensions,
    threads,
    turns,
)
from chordage.orchestrator.store.statements import PreparedStatement

WaitRow = RowMapping

MOST_AHEAD = 200  # turns of one tenant that are counted
MOST_TENANTS = 20
MOST_CALLS = 2_000
MOST_RUNNING = 5_000
MOST_UNSENT = 1_000  # pending deliveries among which the oldest are looked for


def _columns(table: Any, *names: str) -> list[Any]:
    return [table.c[name] for name in names]


# turns

_TURN = _columns(
    turns, "id", "thread_id", "agent", "grp", "tenant", "status", "disposition", "ready", "steers", "run_id",
    "queued_at", "due_at", "not_before", "deadline", "nudge_at", "cancel_asked", "root_thread",
)  # fmt: skip


def turns_of(tx: Tx, turn_ids: Collection[str]) -> Sequence[WaitRow]:
    return tx.execute(select(*_TURN).where(turns.c.id.in_(sorted(turn_ids)))).mappings().all()


def next_on_threads(tx: Tx, thread_ids: Collection[str], now: datetime) -> dict[str, str]:
    """The queued turn that is next on each of these threads, of those that are due: one step in the index for each."""
    turn = turns.alias()
    is_due = or_(turn.c.not_before.is_(None), turn.c.not_before <= now)
    first = select(turn.c.id).where(turn.c.thread_id == threads.c.id, in_line(turn), is_due)
    head = first.order_by(turn.c.rank, turn.c.arrival).limit(1).scalar_subquery()
    rows = tx.execute(select(threads.c.id, head.label("head")).where(threads.c.id.in_(sorted(thread_ids))))
    return {row.id: row.head for row in rows if row.head is not None}


def latest_on(tx: Tx, thread_id: str) -> str | None:
    """The turn of a thread that is to be asked about: that of its open run, or else the next in its line."""
    opened = tx.execute(select(runs.c.turn_id).where(runs.c.thread_id == thread_id, OPEN_RUNS)).scalar()
    if opened is not None:
        return str(opened)
    queued = select(turns.c.id).where(turns.c.thread_id == thread_id, in_line(turns))
    turn_id: str | None = tx.execute(queued.order_by(turns.c.rank, turns.c.arrival).limit(1)).scalar()
    return turn_id


# groups


class GroupRow(NamedTuple):
    budget: int
    running: int
    next_tenant: str | None


_GROUP = PreparedStatement(
    select(fairness.BUDGET.label("budget"), RUNNING.label("running"), fairness.FIRST_TENANT.label("next_tenant"))
)
_HOLDERS = select(runs.c.id).where(RUNNING_IN_GROUP).order_by(runs.c.place)


def group(tx: Tx, of: Group, now: datetime, *, default: int) -> GroupRow:
    (row,) = _GROUP.rows(tx, {"group": of.value, "budget": default, "now": now})
    return GroupRow(**row)


def holders(tx: Tx, of: Group, limit: int) -> tuple[str, ...]:
    """The first of the runs that hold places of the group's budget."""
    return tuple(tx.execute(_HOLDERS.where(runs.c.grp == of.value).limit(limit)).scalars())


def ready_by_tenant(tx: Tx, of: Group, now: datetime) -> dict[str, int]:
    """How many turns of each tenant are ready, for the tenants that are next, each counted up to a bound."""
    tenants = fairness.slots(literal(MOST_TENANTS))
    turn = turns.alias()
    ready = select(turn.c.id).where(_is_ready(turn), turn.c.grp == GROUP, turn.c.tenant == tenants.c.tenant)
    some = ready.limit(MOST_AHEAD + 1).correlate(tenants).subquery()
    number = select(func.count()).select_from(some).correlate(tenants).scalar_subquery()
    rows = tx.execute(select(tenants.c.tenant, number.label("number")), {"group": of.value, "now": now})
    return {row.tenant: row.number for row in rows}


def own_before(tx: Tx, turn_ids: Collection[str]) -> dict[str, int]:
    """How many ready turns of the same tenant and group are due before each of these, counted up to a bound."""
    turn = turns.alias()
    before = tuple_(turn.c.due_at, turn.c.id) < tuple_(turns.c.due_at, turns.c.id)
    ready = select(turn.c.id).where(_is_ready(turn), turn.c.grp == turns.c.grp, turn.c.tenant == turns.c.tenant, before)
    some = ready.limit(MOST_AHEAD + 1).correlate(turns).subquery()
    number = select(func.count()).select_from(some).correlate(turns).scalar_subquery()
    rows = tx.execute(select(turns.c.id, number.label("number")).where(turns.c.id.in_(sorted(turn_ids))))
    return {row.id: row.number for row in rows}


def _is_ready(turn: Any) -> ColumnElement[bool]:
    return and_(has(turn.c.status, TurnStatus.QUEUED), has(turn.c.ready, 1))


# runs

_STEP_OPENED = (
    select(journal.c.at)
    .where(journal.c.run_id == runs.c.id)
    .order_by(journal.c.step.desc())
    .limit(1)
    .correlate(runs)
    .scalar_subquery()
)
_RUN = [
    *_columns(
        runs, "id", "thread_id", "turn_id", "agent", "grp", "status", "reason", "epoch", "step", "phase", "resends",
        "claim_worker", "lease_until", "replay_from", "stalled", "started_at", "rested_since", "root_thread",
    ),
    _STEP_OPENED.label("step_opened"),
]  # fmt: skip


def runs_of(tx: Tx, run_ids: Collection[str]) -> Sequence[WaitRow]:
    """Each with the time of its newest checkpoint."""
    return tx.execute(select(*_RUN).where(runs.c.id.in_(sorted(run_ids)))).mappings().all()


_ON_THREAD = _columns(runs, "id", "thread_id", "turn_id", "status", "reason")


def open_on(tx: Tx, thread_ids: Collection[str]) -> dict[str, WaitRow]:
    """The open run of each of these threads."""
    opened = select(*_ON_THREAD).where(runs.c.thread_id.in_(sorted(thread_ids)), OPEN_RUNS)
    return {row["thread_id"]: row for row in tx.execute(opened).mappings()}


_HOLD = [
    *_columns(stepped, "turn_id", "drive", "parked", "held_until", "on_held"),
    stepped.c.error.is_not(None).label("has_failed"),
]


def holds_of(tx: Tx, turn_ids: Collection[str]) -> dict[str, WaitRow]:
    rows = tx.execute(select(*_HOLD).where(stepped.c.turn_id.in_(sorted(turn_ids)))).mappings()
    return {row["turn_id"]: row for row in rows}


# calls and questions

_CALL = _columns(
    calls, "id", "run_id", "step", "place", "tool", "effect", "status", "worker", "lease_until", "started_at",
    "resends", "replayed_at", "placed", "suspension_id",
)  # fmt: skip


def calls_of(tx: Tx, call_ids: Collection[str]) -> Sequence[WaitRow]:
    return tx.execute(select(*_CALL).where(calls.c.id.in_(sorted(call_ids)))).mappings().all()


def calls_of_runs(tx: Tx, run_ids: Collection[str]) -> Sequence[WaitRow]:
    """The calls of the open step of each run, and all others that are not settled, in the model's order."""
    of_step = calls.c.step >= func.coalesce(runs.c.replay_from, runs.c.step)
    matching = (
        select(*_CALL)
        .join(runs, runs.c.id == calls.c.run_id)
        .where(calls.c.run_id.in_(sorted(run_ids)), or_(of_step, still(calls.c.status, *sorted(OPEN_CALL))))
        .order_by(calls.c.run_id, calls.c.step, calls.c.place, calls.c.generation)
        .limit(MOST_CALLS)
    )
    return tx.execute(matching).mappings().all()


_QUESTION = [
    *_columns(
        suspensions, "id", "call_id", "run_id", "thread_id", "agent", "tool", "why", "status", "created_at",
        "expires_at", "on_expiry", "escalated_at",
    ),
    # That of a rule that asks takes a plain yes as well.
    and_(suspensions.c.schema.is_not(None), suspensions.c.why != Why.GATE.value).label("has_schema"),
]  # fmt: skip


def questions_of(tx: Tx, suspension_ids: Collection[str]) -> Sequence[WaitRow]:
    return tx.execute(select(*_QUESTION).where(suspensions.c.id.in_(sorted(suspension_ids)))).mappings().all()


def questions_of_runs(tx: Tx, run_ids: Collection[str]) -> Sequence[WaitRow]:
    """Those that are not settled, oldest first."""
    open_ones = select(*_QUESTION).where(suspensions.c.run_id.in_(sorted(run_ids)), STILL_UNSETTLED)
    return tx.execute(open_ones.order_by(suspensions.c.created_at, suspensions.c.id)).mappings().all()


# deliveries

_UNSENT = _columns(
    outbox, "id", "thread_id", "turn_id", "target", "created_at", "position", "status", "attempts", "next_at",
    "claim_token", "claim_worker", "error", "dead_at",
)  # fmt: skip


def deliveries_of(tx: Tx, numbers: Collection[int]) -> Sequence[WaitRow]:
    """Each with the oldest pending delivery of its thread."""
    line = outbox.alias("line")
    oldest = select(func.min(line.c.id)).where(in_delivery_order(line), line.c.thread_id == outbox.c.thread_id)
    matching = select(*_UNSENT, oldest.correlate(outbox).scalar_subquery().label("oldest"))
    return tx.execute(matching.where(outbox.c.id.in_(sorted(numbers)))).mappings().all()


def bus_position(tx: Tx) -> WaitRow | None:
    columns = _columns(projection, "position", "moved_at", "error", "error_at", "failures")
    return tx.execute(select(*columns).where(projection.c.name == "bus")).mappings().first()


# processes


def processes_on_record(tx: Tx) -> Sequence[WaitRow]:
    """Those that went lately too."""
    columns = _columns(processes, "id", "queues", "seen_at", "gone_at")
    return tx.execute(select(*columns)).mappings().all()


# what waits, oldest first


def _in_space(page: Select[Any], space: str | None, home: ColumnElement[str]) -> Select[Any]:
    if space is None:
        return page
    prefix = message.prefix(space)
    return page.where(func.substr(home, 1, len(prefix)) == prefix)  # SQLite's LIKE would ignore case


_HOME_OF_TURN = func.coalesce(turns.c.root_thread, turns.c.thread_id)
_HOME_OF_RUN = func.coalesce(runs.c.root_thread, runs.c.thread_id)


def oldest_queued(tx: Tx, of: Group, limit: int, *, space: str | None) -> list[str]:
    queued = select(turns.c.id).where(QUEUED_IN_GROUP, turns.c.grp == of.value)
    page = _in_space(queued.order_by(turns.c.queued_at, turns.c.id).limit(limit), space, _HOME_OF_TURN)
    return list(tx.execute(page).scalars())


def oldest_waiting(tx: Tx, limit: int, *, space: str | None) -> list[str]:
    """The turns whose runs have waited longest."""
    waiting = select(runs.c.turn_id).where(has(runs.c.status, RunStatus.WAITING))
    page = _in_space(waiting.order_by(runs.c.rested_since, runs.c.id).limit(limit), space, _HOME_OF_RUN)
    return list(tx.execute(page).scalars())


def oldest_running(tx: Tx, limit: int, *, space: str | None) -> list[str]:
    """The turns whose runs have been at work longest. Runs at work are little more than the budgets: of very many, a
    part is looked at.
    """
    running = select(runs.c.turn_id, runs.c.id, runs.c.started_at, _HOME_OF_RUN.label("home")).where(RUNNING_RUNS)
    part = running.order_by(runs.c.lease_until).limit(MOST_RUNNING).subquery()  # the order of their index
    page = select(part.c.turn_id).order_by(part.c.started_at, part.c.id).limit(limit)
    return list(tx.execute(_in_space(page, space, part.c.home)).scalars())


def oldest_unsent(tx: Tx, limit: int, *, space: str | None) -> list[int]:
    """Dead letters, and pending deliveries: of very many of these, the oldest of a part."""
    dead = select(outbox.c.id).where(has(outbox.c.status, DeliveryStatus.DEAD)).order_by(outbox.c.id)
    some = select(outbox.c.id, outbox.c.thread_id).where(PENDING_DELIVERIES)
    part = some.order_by(outbox.c.receiver, outbox.c.next_at, outbox.c.id).limit(MOST_UNSENT).subquery()
    pending = select(part.c.id).order_by(part.c.id)
    given_up = tx.execute(_in_space(dead.limit(limit), space, outbox.c.thread_id)).scalars().all()
    waiting = tx.execute(_in_space(pending.limit(limit), space, part.c.thread_id)).scalars().all()
    return sorted([*given_up, *waiting])[:limit]
