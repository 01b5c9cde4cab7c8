"""Tool calls: one row each, its outcome in it.

Guarded changes of tool calls: claimed by one, settled once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, bindparam, func, or_, select, tuple_, update

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.records import Call, NewCall, Run
from chordage.orchestrator.core.status import CALL, OPEN_CALL, CallStatus, sources
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.predicates import CALLS_IN_FLIGHT, STILL_IN_FLIGHT, has, still
from chordage.orchestrator.store.schema import calls, runs
from chordage.orchestrator.store.statements import BulkInsert, PreparedStatement, readable_rows

COLUMNS = [column for column in calls.c if column.name != "full_result"]
_BY_ID = PreparedStatement(
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
class CallToRun:
    """A call, and what has to be known of its run before it is carried out."""

    call: Call
    agent: str
    epoch: int
    is_running: bool
    may_be_limited: bool  # its turn or a run above it may have a time limit, whatever its agent says


def load_for_work(tx: Tx, call_id: str) -> CallToRun | None:
    row = _BY_ID.first(tx, {"call_id": call_id})
    if row is None:
        return None
    return CallToRun(
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


def of_rounds(tx: Tx, rounds: Iterable[tuple[str, int]]) -> list[Call]:
    """The calls of these rounds, each given by its run and its step."""
    wanted = list(rounds)
    if not wanted:
        return []
    of_runs = calls.c.run_id.in_(sorted({run_id for run_id, _ in wanted}))  # what SQLite finds an index for
    found = select(*COLUMNS).where(of_runs, tuple_(calls.c.run_id, calls.c.step).in_(wanted))
    rows = tx.execute(found.order_by(calls.c.run_id, calls.c.step, calls.c.place)).mappings()
    return [from_row(dict(row)) for row in rows]


def count_requested(tx: Tx, run_id: str) -> int:
    """How many calls its replies have asked for; one that is tried again is the same."""
    places = select(calls.c.step, calls.c.place).where(calls.c.run_id == run_id).distinct().subquery()
    return int(tx.execute(select(func.count()).select_from(places)).scalar_one())


def of_step(tx: Tx, run_id: str, step: int) -> list[Call]:
    found = select(*COLUMNS).where(calls.c.run_id == run_id, calls.c.step == step)
    found = found.order_by(calls.c.place, calls.c.generation)
    return [from_row(row._mapping) for row in tx.execute(found)]  # noqa: SLF001 - by name


_LAST = 2**31 - 2  # PostgreSQL counts characters in 32 bits


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultPart:
    """Of the whole result of a call."""

    thread_id: str
    text: str
    total: int


def result_part(tx: Tx, call_id: str, offset: int, length: int) -> ResultPart | None:
    """None: there is no such call, or no result of it."""
    whole = func.coalesce(calls.c.full_result, calls.c.content)
    found = select(
        calls.c.thread_id,
        func.substr(whole, min(offset, _LAST) + 1, length).label("text"),
        func.length(whole).label("total"),
    ).where(calls.c.id == call_id, whole.is_not(None))
    row = tx.execute(found).first()
    return None if row is None else ResultPart(thread_id=row.thread_id, text=row.text, total=row.total)


def with_full_results(tx: Tx, run_id: str) -> list[str]:
    """The calls of a run whose content is only the beginning of their result."""
    found = select(calls.c.id).where(calls.c.run_id == run_id, calls.c.full_result.is_not(None))
    return list(tx.execute(found.order_by(calls.c.step, calls.c.place, calls.c.generation)).scalars())


_OF_NEW_CALL = (
    "id", "place", "ask_id", "generation", "tool", "arguments", "effect", "status", "code", "content", "suspension_id",
)  # fmt: skip
_INSERT = BulkInsert(
    calls, (*_OF_NEW_CALL, "run_id", "thread_id", "step", "lease_until", "resends", "expiries", "ended_at")
)


def open_round(tx: Tx, run: Run, step: int, asked: Sequence[NewCall], *, now: datetime, lease_until: datetime) -> None:
    """The calls of one assistant message, in its order."""
    _INSERT.send(tx, [_new_row(run, step, call, now, lease_until) for call in asked])


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


def count_generations(tx: Tx, run_id: str, ask_ids: Collection[str]) -> Counter[str]:
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
        .where(CALLS_IN_FLIGHT, calls.c.lease_until < now)
        .order_by(calls.c.lease_until, calls.c.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return readable_rows(tx.execute(found).mappings(), from_row)


def is_behind(tx: Tx, call: Call) -> bool:
    """Whether one that stands before it in its round is not settled yet."""
    ahead = select(calls.c.id).where(
        calls.c.run_id == call.run_id, calls.c.step == call.step, calls.c.place < call.place,
        has(calls.c.status, *sorted(OPEN_CALL)),
    )  # fmt: skip
    return tx.execute(ahead.limit(1)).first() is not None


def tokens_in_flight(tx: Tx, call_ids: Collection[str]) -> dict[str, str | None]:
    """Those of these calls that are in flight, and by which claim."""
    found = select(calls.c.id, calls.c.claim_token).where(calls.c.id.in_(sorted(call_ids)), STILL_IN_FLIGHT)
    return {row.id: row.claim_token for row in tx.execute(found)}


def cancel_of_run(tx: Tx, run_id: str, *, code: str, content: str, now: datetime) -> int:
    """Every call of a run that ended is closed with a row that says so."""
    closed = (
        update(calls)
        .where(calls.c.run_id == run_id, has(calls.c.status, *sources(CALL, CallStatus.CANCELLED)))
        .values(status=CallStatus.CANCELLED.value, code=code, content=content, ended_at=now, lease_until=None)
    )
    return tx.execute(closed).rowcount


def claim(tx: Tx, call: Call, token: str, worker: str, *, now: datetime, lease_until: datetime) -> bool:
    """From here on a crash leaves evidence: the call is Running, by this token, until the lease is up."""
    freed = and_(still(calls.c.status, CallStatus.RUNNING), calls.c.worker.is_(None))  # by rescue, or by its holder
    claimed = (
        update(calls)
        .where(calls.c.id == call.id, or_(still(calls.c.status, *sources(CALL, CallStatus.RUNNING)), freed))
        .values(
            status=CallStatus.RUNNING.value, claim_token=token, worker=worker, lease_until=lease_until,
            started_at=func.coalesce(calls.c.started_at, now),
        )
    )  # fmt: skip
    return tx.execute(claimed).rowcount == 1


_SETTLE = PreparedStatement(
    update(calls)
    .where(
        calls.c.id == bindparam("call"),
        still(calls.c.status, *sources(CALL, CallStatus.FAILED)),
        or_(calls.c.claim_token.is_(None), calls.c.claim_token == bindparam("token")),
        # Whoever began before the call asked has nothing to say about what became of the answer.
        calls.c.suspension_id.is_not_distinct_from(bindparam("asked", type_=calls.c.suspension_id.type)),
    )
    .values(
        status=bindparam("to_status"), code=bindparam("to_code"), content=bindparam("to_content"),
        full_result=bindparam("to_full"), worker=bindparam("by_worker"), started_at=bindparam("begun"),
        ended_at=bindparam("now"), lease_until=None,
    )
)  # fmt: skip


def suspend(tx: Tx, call: Call, token: str | None, suspension_id: str, *, seen_lease: datetime | None = None) -> bool:
    """The call waits for a decision, in nobody's hand. `seen_lease`: unless somebody has renewed it since."""
    unrenewed = [] if seen_lease is None else [calls.c.lease_until == seen_lease]
    put_aside = (
        update(calls)
        .where(
            calls.c.id == call.id,
            calls.c.suspension_id.is_not_distinct_from(call.suspension_id),
            still(calls.c.status, *sources(CALL, CallStatus.SUSPENDED)),
            or_(calls.c.claim_token.is_(None), calls.c.claim_token == token),
            *unrenewed,
        )
        .values(
            status=CallStatus.SUSPENDED.value, suspension_id=suspension_id, claim_token=None, worker=None,
            lease_until=None, resends=0, expiries=0,
        )
    )  # fmt: skip
    return tx.execute(put_aside).rowcount == 1


def park_behind(tx: Tx, call: Call) -> None:
    """The calls of its round that have not started and come after it stay where they are until it is settled."""
    behind = update(calls).where(
        calls.c.run_id == call.run_id,
        calls.c.step == call.step,
        calls.c.place > call.place,
        still(calls.c.status, CallStatus.NEW),
    )
    tx.execute(behind.values(lease_until=None))


def resume(tx: Tx, call_id: str, *, step: int, arguments: dict[str, Any] | None, lease_until: datetime | None) -> bool:
    """The decision is there; with a lease, the call is to be carried out in this step of its run."""
    changed = {} if arguments is None else {"arguments": arguments}
    resumed = (
        update(calls)
        .where(calls.c.id == call_id, still(calls.c.status, *sources(CALL, CallStatus.RESUMING)))
        .values(status=CallStatus.RESUMING.value, replayed_at=step, lease_until=lease_until, **changed)
    )
    return tx.execute(resumed).rowcount == 1


def unpark(tx: Tx, call_ids: Collection[str], *, step: int, lease_until: datetime) -> None:
    """Calls that stood behind a suspended one have their turn: somebody is sent for them."""
    freed = update(calls).where(
        calls.c.id.in_(sorted(call_ids)), still(calls.c.status, CallStatus.NEW), calls.c.lease_until.is_(None)
    )
    tx.execute(freed.values(replayed_at=step, lease_until=lease_until))


def answer(
    tx: Tx,
    call_id: str,
    *,
    status: CallStatus,
    code: str | None,
    content: str,
    full: str | None = None,
    step: int,
    now: datetime,
) -> bool:
    """The decision alone settles the call."""
    settled = (
        update(calls)
        .where(calls.c.id == call_id, still(calls.c.status, *sources(CALL, status)))
        .values(
            status=status.value, code=code, content=content, full_result=full, ended_at=now, lease_until=None,
            claim_token=None, replayed_at=step,
        )
    )  # fmt: skip
    return tx.execute(settled).rowcount == 1


def join_replay(tx: Tx, call_ids: Collection[str], *, step: int) -> None:
    """New calls of an older round are carried out in this step of their run."""
    tx.execute(update(calls).where(calls.c.id.in_(sorted(call_ids))).values(replayed_at=step))


def supply_result(tx: Tx, call: Call, *, status: CallStatus, code: str, content: str, now: datetime) -> bool:
    """The consumer gives the result. Whoever is carrying the call out finds that it is settled: the first counts."""
    supplied = (
        update(calls)
        .where(calls.c.id == call.id, still(calls.c.status, *sources(CALL, status)))
        .values(
            status=status.value, code=code, content=content, ended_at=now, lease_until=None, claim_token=None,
        )
    )  # fmt: skip
    return tx.execute(supplied).rowcount == 1


def cancel(tx: Tx, call_ids: Collection[str], *, code: str, content: str, now: datetime) -> None:
    """Calls that nobody wants any more."""
    cancellable = still(calls.c.status, *sources(CALL, CallStatus.CANCELLED))
    closed = update(calls).where(calls.c.id.in_(sorted(call_ids)), cancellable)
    tx.execute(
        closed.values(status=CallStatus.CANCELLED.value, code=code, content=content, ended_at=now, lease_until=None)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class CallOutcome:
    status: CallStatus
    code: str | None
    content: str
    full: str | None
    worker: str
    started_at: datetime
    ended_at: datetime


def settle(tx: Tx, call: Call, token: str | None, outcome: CallOutcome) -> bool:
    """The outcome of a call, written once. Whoever comes later, or lost the claim, matches no row."""
    binds = {
        "call": call.id, "asked": call.suspension_id, "token": token, "to_status": outcome.status.value,
        "to_code": outcome.code,
        "to_content": outcome.content, "to_full": outcome.full, "by_worker": outcome.worker,
        "begun": outcome.started_at, "now": outcome.ended_at,
    }  # fmt: skip
    return _SETTLE.changed(tx, binds) == 1


def release(tx: Tx, call_id: str, token: str | None, worker: str, now: datetime) -> None:
    """A call that may run again elsewhere at once. It counts as a death: whatever ends its process each time ends here
    as poison. Without a token, it is on record in the worker's name, or not at all.
    """
    freed = update(calls).where(calls.c.id == call_id, _held_by(token, worker), STILL_IN_FLIGHT)
    tx.execute(freed.values(claim_token=None, worker=None, lease_until=now, expiries=calls.c.expiries + 1))


def _held_by(token: str | None, worker: str) -> ColumnElement[bool]:
    in_name = or_(calls.c.worker == worker, calls.c.worker.is_(None))
    return calls.c.claim_token == token if token else and_(calls.c.claim_token.is_(None), in_name)


def unclaim(tx: Tx, call_id: str, token: str | None, now: datetime) -> None:
    """Its holder claimed it and has not begun: it is in nobody's hand, and that is no death."""
    freed = update(calls).where(calls.c.id == call_id, calls.c.claim_token == token, STILL_IN_FLIGHT)
    tx.execute(freed.values(claim_token=None, worker=None, lease_until=now))


def record_crash(tx: Tx, call_id: str, token: str | None, worker: str, lease_until: datetime) -> None:
    """As count_crash, for a call. Only its holder may: an unsafe call that another has begun could run twice."""
    crashed = update(calls).where(calls.c.id == call_id, _held_by(token, worker), STILL_IN_FLIGHT)
    tx.execute(crashed.values(expiries=calls.c.expiries + 1, claim_token=None, worker=None, lease_until=lease_until))


def push_lease(tx: Tx, call: Call, *, lease_until: datetime, resends: int, expiries: int) -> None:
    """As push_lease, for a call. It is in nobody's hand until it is claimed again."""
    tx.execute(
        update(calls)
        .where(calls.c.id == call.id)
        .values(lease_until=lease_until, resends=resends, expiries=expiries, claim_token=None, worker=None)
    )


def renew(
    tx: Tx, held: Collection[str], tokens: Collection[str], worker: str, *, now: datetime, lease_until: datetime
) -> set[str]:
    """Calls still running when the heart beats: from now on truth says so. One that was claimed by another is not
    ours, and one whose row another transaction holds is not waited for. Those that were renewed.
    """
    ours = or_(calls.c.claim_token.is_(None), calls.c.claim_token.in_(sorted(tokens)))
    renewed = (
        update(calls)
        .where(
            calls.c.id.in_(_unlocked(held)), still(calls.c.status, CallStatus.NEW, CallStatus.RUNNING), ours
        )
        .values(
            status=CallStatus.RUNNING.value, lease_until=lease_until, worker=worker,
            started_at=func.coalesce(calls.c.started_at, now),
        )
        .returning(calls.c.id)
    )  # fmt: skip
    return set(tx.execute(renewed).scalars())


def renew_waiting(tx: Tx, behind: Collection[str], *, lease_until: datetime) -> None:
    """Calls that wait behind another in a batch are not lost, and rescue need not send them. A parked one stays so."""
    waiting = update(calls).where(
        calls.c.id.in_(_unlocked(behind)), still(calls.c.status, CallStatus.NEW), calls.c.lease_until.is_not(None)
    )
    tx.execute(waiting.values(lease_until=lease_until))


def _unlocked(call_ids: Collection[str]) -> Select[Any]:
    """Those of these rows that no other transaction holds."""
    row = calls.alias()
    return select(row.c.id).where(row.c.id.in_(sorted(call_ids))).with_for_update(skip_locked=True)


def amend(tx: Tx, call: Call, token: str | None, arguments: dict[str, Any]) -> bool:
    """What it is carried out with is on record before it is."""
    amended = update(calls).where(
        calls.c.id == call.id, still(calls.c.status, CallStatus.RUNNING), calls.c.claim_token == token
    )
    return tx.execute(amended.values(arguments=arguments)).rowcount == 1


def note_progress(tx: Tx, call_id: str, text: str) -> None:
    tx.execute(
        update(calls).where(calls.c.id == call_id, still(calls.c.status, *sorted(OPEN_CALL))).values(progress=text)
    )
