"""Tool calls: one row each, its outcome in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, func, or_, select

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.records import Call, NewCall, Run
from chordage.orchestrator.core.status import OPEN_CALL, CallStatus
from chordage.orchestrator.store import many
from chordage.orchestrator.store.hot import Hot
from chordage.orchestrator.store.newer import readable
from chordage.orchestrator.store.predicates import FLYING_CALLS, STILL_FLYING, has
from chordage.orchestrator.store.schema import calls, runs
from chordage.orchestrator.store.tx import Tx

COLUMNS = [column for column in calls.c if column.name != "full_result"]
_BY_ID = Hot(
    select(
        *COLUMNS,
        runs.c.agent.label("run_agent"),
        runs.c.status.label("run_status"),
        runs.c.epoch.label("run_epoch"),
        or_(runs.c.timeout_ms.is_not(None), runs.c.parent_run.is_not(None)).label("run_limited"),
    )
    .select_from(calls)
    .join(runs, runs.c.id == calls.c.run_id)
    .where(calls.c.id == bindparam("call_id"))
)
_NAMES = [column.name for column in COLUMNS]


def from_row(row: Mapping[Any, Any], prefix: str = "") -> Call:
    fields = {name: row[prefix + name] for name in _NAMES}
    fields["effect"] = Effect(fields["effect"])
    fields["status"] = CallStatus(fields["status"])
    return Call(**fields)


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A call, and what has to be known of its run before it is carried out."""

    call: Call
    agent: str
    epoch: int
    is_running: bool
    may_be_limited: bool  # its turn or a run above it may have a time limit, whatever its agent says


def load_for_work(tx: Tx, call_id: str) -> Found | None:
    row = _BY_ID.first(tx, {"call_id": call_id})
    if row is None:
        return None
    return Found(
        call=from_row(row), agent=row["run_agent"], epoch=row["run_epoch"], is_running=row["run_status"] == "running",
        may_be_limited=bool(row["run_limited"]),
    )  # fmt: skip


def load(tx: Tx, call_id: str, *, lock: bool = False) -> Call | None:
    """`lock`: it stays as it is seen until the commit."""
    found = select(*COLUMNS).where(calls.c.id == call_id)
    row = tx.execute(found.with_for_update() if lock else found).first()
    return from_row(row._mapping) if row else None  # noqa: SLF001 - SQLAlchemy's documented way to names


def of_run(tx: Tx, run_id: str) -> list[Call]:
    found = select(*COLUMNS).where(calls.c.run_id == run_id).order_by(calls.c.step, calls.c.place, calls.c.generation)
    return [from_row(row._mapping) for row in tx.execute(found)]  # noqa: SLF001 - by name


def asked_for(tx: Tx, run_id: str) -> int:
    """How many calls its replies have asked for; one that is tried again is the same."""
    places = select(calls.c.step, calls.c.place).where(calls.c.run_id == run_id).distinct().subquery()
    return int(tx.execute(select(func.count()).select_from(places)).scalar_one())


def of_step(tx: Tx, run_id: str, step: int) -> list[Call]:
    found = select(*COLUMNS).where(calls.c.run_id == run_id, calls.c.step == step)
    found = found.order_by(calls.c.place, calls.c.generation)
    return [from_row(row._mapping) for row in tx.execute(found)]  # noqa: SLF001 - by name


_LAST = 2**31 - 2  # PostgreSQL counts characters in 32 bits


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Of the whole result of a call."""

    thread_id: str
    text: str
    total: int


def result_part(tx: Tx, call_id: str, offset: int, length: int) -> Part | None:
    """None: there is no such call, or no result of it."""
    whole = func.coalesce(calls.c.full_result, calls.c.content)
    found = select(
        calls.c.thread_id,
        func.substr(whole, min(offset, _LAST) + 1, length).label("text"),
        func.length(whole).label("total"),
    ).where(calls.c.id == call_id, whole.is_not(None))
    row = tx.execute(found).first()
    return None if row is None else Part(thread_id=row.thread_id, text=row.text, total=row.total)


def with_full_results(tx: Tx, run_id: str) -> list[str]:
    """The calls of a run whose content is only the beginning of their result."""
    found = select(calls.c.id).where(calls.c.run_id == run_id, calls.c.full_result.is_not(None))
    return list(tx.execute(found.order_by(calls.c.step, calls.c.place, calls.c.generation)).scalars())


_OF_NEW_CALL = (
    "id", "place", "ask_id", "generation", "tool", "arguments", "effect", "status", "code", "content", "suspension_id",
)  # fmt: skip
_INSERT = many.Insert(
    calls, (*_OF_NEW_CALL, "run_id", "thread_id", "step", "lease_until", "resends", "expiries", "ended_at")
)


def open_round(tx: Tx, run: Run, step: int, asked: Sequence[NewCall], *, now: datetime, lease_until: datetime) -> None:
    """The calls of one assistant message, in its order."""
    many.insert(tx, _INSERT, [_new_row(run, step, call, now, lease_until) for call in asked])


def _new_row(run: Run, step: int, call: NewCall, now: datetime, lease_until: datetime | None) -> dict[str, Any]:
    settled = call.status not in OPEN_CALL
    return {
        **{name: getattr(call, name) for name in _OF_NEW_CALL},
        "run_id": run.id,
        "thread_id": run.thread_id,
        "step": step,
        "lease_until": lease_until if call.status is CallStatus.NEW and not call.parked else None,
        "resends": 0,
        "expiries": 0,
        "ended_at": now if settled else None,
    }


def lives(tx: Tx, run_id: str, ask_ids: Collection[str]) -> Counter[str]:
    """How many lives each of these provider ids has had in this run."""
    found = select(calls.c.ask_id).where(calls.c.run_id == run_id, calls.c.ask_id.in_(sorted(ask_ids)))
    counted = found.add_columns(func.count().label("lives")).group_by(calls.c.ask_id)
    return Counter({row.ask_id: row.lives for row in tx.execute(counted)})


def unsettled(tx: Tx, run_id: str) -> list[Call]:
    """Suspended, resuming, or parked behind one that is."""
    found = select(*COLUMNS).where(calls.c.run_id == run_id, has(calls.c.status, *sorted(OPEN_CALL)))
    return [from_row(row._mapping) for row in tx.execute(found.order_by(calls.c.step, calls.c.place))]  # noqa: SLF001 - by name


def of_replay(tx: Tx, run_id: str, step: int) -> list[Call]:
    """The calls that were carried out again in this step."""
    found = select(*COLUMNS).where(calls.c.run_id == run_id, calls.c.replayed_at == step)
    return [from_row(row._mapping) for row in tx.execute(found.order_by(calls.c.step, calls.c.place))]  # noqa: SLF001 - by name


def expired(tx: Tx, now: datetime, limit: int) -> list[Call]:
    """Calls in flight that nobody has renewed in time. Locked against other sweepers."""
    found = (
        select(*COLUMNS)
        .where(FLYING_CALLS, calls.c.lease_until < now)
        .order_by(calls.c.lease_until, calls.c.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return readable(tx.execute(found).mappings(), from_row)


def is_behind(tx: Tx, call: Call) -> bool:
    """Whether one that stands before it in its round is not settled yet."""
    ahead = select(calls.c.id).where(
        calls.c.run_id == call.run_id, calls.c.step == call.step, calls.c.place < call.place,
        has(calls.c.status, *sorted(OPEN_CALL)),
    )  # fmt: skip
    return tx.execute(ahead.limit(1)).first() is not None


def tokens_of_flying(tx: Tx, call_ids: Collection[str]) -> dict[str, str | None]:
    """Those of these calls that are in flight, and by which claim."""
    found = select(calls.c.id, calls.c.claim_token).where(calls.c.id.in_(sorted(call_ids)), STILL_FLYING)
    return {row.id: row.claim_token for row in tx.execute(found)}
