"""Tool calls: one row each, with its outcome.

A call is claimed by one worker and settled once. The WHERE of each guarded update holds the states from which the table
in core/status.py allows the change, and the token of the claim. True: this call changed the row. False: another worker
did, and the caller stops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    bindparam,
    case,
    func,
    literal,
    literal_column,
    or_,
    select,
    tuple_,
    type_coerce,
    update,
)

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.agent_versions import AgentPin
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.records import Call, NewCall, Run
from chordage.orchestrator.core.status import CALL, IN_FLIGHT_CALL, OPEN_CALL, CallStatus, sources
from chordage.orchestrator.core.transcript import UNFINISHED
from chordage.orchestrator.store.contents import is_encrypted, owned
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.predicates import (
    CALLS_IN_FLIGHT,
    RUNNING_RUNS,
    STILL_IN_FLIGHT,
    STILL_RUNNING,
    has,
    still,
)
from chordage.orchestrator.store.schema import calls, runs
from chordage.orchestrator.store.statements import BulkInsert, PreparedStatement, decryptable, readable_rows

COLUMNS = [column for column in calls.c if column.name != "full_result"]
_NAMES = [column.name for column in COLUMNS]
AT_ONCE = 400  # ids of one statement
_REPEATABLE = (Effect.PURE.value, Effect.IDEMPOTENT.value)


def _from_row(row: Mapping[Any, Any]) -> Call:
    fields = {name: row[name] for name in _NAMES}
    return Call(**{**fields, "effect": Effect(fields["effect"]), "status": CallStatus(fields["status"])})


def _select(tx: Tx, *where: ColumnElement[bool]) -> list[Call]:
    matching = select(*COLUMNS).where(*where).order_by(calls.c.run_id, calls.c.step, calls.c.place, calls.c.generation)
    return [_from_row(row) for row in tx.execute(matching).mappings()]


# reads


@dataclass(frozen=True, kw_only=True, slots=True)
class CallToRun:
    """A call, and what a worker has to know of its run before it carries the call out."""

    call: Call
    pin: AgentPin
    epoch: int
    is_running: bool
    may_be_limited: bool  # its turn or a run above it may have a time limit, whatever its agent has


_TO_RUN = (
    select(
        *COLUMNS,
        runs.c.agent.label("run_agent"),
        runs.c.agent_digest.label("run_digest"),
        runs.c.status.label("run_status"),
        runs.c.epoch.label("run_epoch"),
        or_(runs.c.timeout_ms.is_not(None), runs.c.parent_run.is_not(None)).label("run_limited"),
    )
    .select_from(calls)
    .join(runs, runs.c.id == calls.c.run_id)
)


@cache
def _by_ids(count: int) -> PreparedStatement:
    wanted = calls.c.id.in_([bindparam(f"call_{number}") for number in range(count)])
    return PreparedStatement(_TO_RUN.where(wanted).order_by(calls.c.place))


def load_for_work(tx: Tx, *call_ids: str) -> list[CallToRun]:
    """Those that are there, in the order of their round."""
    binds = {f"call_{number}": call_id for number, call_id in enumerate(call_ids)}
    return [_to_run(row) for row in _by_ids(len(call_ids)).rows(tx, binds)]


def _to_run(row: Mapping[str, Any]) -> CallToRun:
    return CallToRun(
        call=_from_row(row), pin=AgentPin(row["run_agent"], row["run_digest"]), epoch=row["run_epoch"],
        is_running=row["run_status"] == "running", may_be_limited=bool(row["run_limited"]),
    )  # fmt: skip


def load(tx: Tx, call_id: str, *, lock: bool = False) -> Call | None:
    """`lock`: it stays as it is until the commit."""
    by_id = select(*COLUMNS).where(calls.c.id == call_id)
    row = tx.execute(by_id.with_for_update() if lock else by_id).mappings().first()
    return _from_row(row) if row else None


def of_run(tx: Tx, run_id: str) -> list[Call]:
    return _select(tx, calls.c.run_id == run_id)


def of_step(tx: Tx, run_id: str, step: int) -> list[Call]:
    return _select(tx, calls.c.run_id == run_id, calls.c.step == step)


def of_rounds(tx: Tx, rounds: Iterable[tuple[str, int]]) -> list[Call]:
    """The calls of these rounds, each given by its run and its step."""
    wanted = list(rounds)
    if not wanted:
        return []
    of_runs = calls.c.run_id.in_(sorted({run_id for run_id, _ in wanted}))  # the condition SQLite has an index for
    return _select(tx, of_runs, tuple_(calls.c.run_id, calls.c.step).in_(wanted))


def of_replay(tx: Tx, run_id: str, step: int) -> list[Call]:
    """The calls that were carried out again in this step."""
    return _select(tx, calls.c.run_id == run_id, calls.c.replayed_at == step)


def unsettled(tx: Tx, run_id: str) -> list[Call]:
    """Calls that are suspended, resuming, or parked behind one that is."""
    return _select(tx, calls.c.run_id == run_id, has(calls.c.status, *sorted(OPEN_CALL)))


def expired(tx: Tx, now: datetime, limit: int) -> list[Call]:
    """Calls in flight whose lease has run out, locked for this sweeper."""
    past = (
        select(*COLUMNS)
        .where(CALLS_IN_FLIGHT, calls.c.lease_until < now)
        .order_by(calls.c.lease_until, calls.c.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return readable_rows(decryptable(tx.execute(past).mappings()), _from_row)


def left(tx: Tx, gone: Collection[str], limit: int) -> list[Call]:
    """Calls in flight that one of these processes held, or opened and may not have sent, locked for this sweeper. What
    may have had an effect is left out: its lease runs out first.
    """
    opened = and_(
        has(calls.c.status, CallStatus.NEW, CallStatus.RESUMING), calls.c.resends == literal_column("0"),
        calls.c.run_id.in_(select(runs.c.id).where(RUNNING_RUNS, runs.c.moved_by.in_(gone))),
    )  # fmt: skip
    held = and_(has(calls.c.status, CallStatus.RUNNING), calls.c.worker.in_(gone), calls.c.effect.in_(_REPEATABLE))
    theirs = select(*COLUMNS).where(CALLS_IN_FLIGHT, or_(opened, held)).order_by(calls.c.lease_until, calls.c.id)
    rows = tx.execute(theirs.limit(limit).with_for_update(skip_locked=True)).mappings()
    return readable_rows(decryptable(rows), _from_row)


def untaken(tx: Tx, queues: Collection[Group], limit: int, *, leased_before: datetime) -> list[Call]:
    """New calls of runs of these groups that no process has begun since then, as far as the rows say, locked for this
    sweeper. A call whose round has one that is running may wait behind it in a batch.
    """
    other = calls.alias()
    running = select(other.c.id).where(
        other.c.run_id == calls.c.run_id, other.c.step == calls.c.step, has(other.c.status, CallStatus.RUNNING)
    )
    waiting = select(*COLUMNS).where(
        CALLS_IN_FLIGHT, has(calls.c.status, CallStatus.NEW, CallStatus.RESUMING),
        calls.c.resends == literal_column("0"), calls.c.lease_until < leased_before, ~running.exists(),
        calls.c.run_id.in_(select(runs.c.id).where(RUNNING_RUNS, runs.c.grp.in_(sorted(queues)))),
    )  # fmt: skip
    rows = tx.execute(waiting.order_by(calls.c.lease_until, calls.c.id).limit(limit).with_for_update(skip_locked=True))
    return readable_rows(decryptable(rows.mappings()), _from_row)


def is_behind(tx: Tx, call: Call) -> bool:
    """Whether a call before it in its round is not settled yet."""
    ahead = select(calls.c.id).where(
        calls.c.run_id == call.run_id, calls.c.step == call.step, calls.c.place < call.place,
        has(calls.c.status, *sorted(OPEN_CALL)),
    )  # fmt: skip
    return tx.execute(ahead.limit(1)).first() is not None


def tokens_in_flight(tx: Tx, call_ids: Collection[str]) -> dict[str, str | None]:
    """Those of these calls that are in flight, each with the token of its claim."""
    in_flight = select(calls.c.id, calls.c.claim_token).where(calls.c.id.in_(sorted(call_ids)), STILL_IN_FLIGHT)
    return {row.id: row.claim_token for row in tx.execute(in_flight)}


def count_requested(tx: Tx, run_id: str) -> int:
    """How many calls the run's replies have asked for; further tries of a call are not counted."""
    places = select(calls.c.step, calls.c.place).where(calls.c.run_id == run_id).distinct().subquery()
    return int(tx.execute(select(func.count()).select_from(places)).scalar_one())


def count_generations(tx: Tx, run_id: str, ask_ids: Collection[str]) -> Counter[str]:
    """How many generations of each of these provider ids the run has."""
    counted = (
        select(calls.c.ask_id, func.count().label("generations"))
        .where(calls.c.run_id == run_id, calls.c.ask_id.in_(sorted(ask_ids)))
        .group_by(calls.c.ask_id)
    )
    return Counter({row.ask_id: row.generations for row in tx.execute(counted)})


_MAX_OFFSET = 2**31 - 2  # PostgreSQL counts characters in 32 bits


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultPart:
    """A part of the whole result of a call."""

    thread_id: str
    text: str
    total: int


def result_part(tx: Tx, call_id: str, offset: int, length: int) -> ResultPart | None:
    """None: there is no such call, or it has no result."""
    whole = func.coalesce(calls.c.full_result, calls.c.content)
    if is_encrypted(tx):
        full = tx.execute(select(calls.c.thread_id, whole.label("text")).where(calls.c.id == call_id)).first()
        if full is None or full.text is None:
            return None
        return ResultPart(thread_id=full.thread_id, text=full.text[offset : offset + length], total=len(full.text))
    part = select(
        calls.c.thread_id,
        func.substr(whole, min(offset, _MAX_OFFSET) + 1, length).label("text"),
        func.length(whole).label("total"),
    ).where(calls.c.id == call_id, whole.is_not(None))
    row = tx.execute(part).first()
    return None if row is None else ResultPart(thread_id=row.thread_id, text=row.text, total=row.total)


def sizes_of_full_results(tx: Tx, run_id: str) -> list[tuple[str, int]]:
    """The calls of a run whose result was cut for the model, with the characters of the whole."""
    if is_encrypted(tx):
        ids = with_full_results(tx, run_id)
        return [(call_id, len(text)) for call_id, text in full_results(tx, ids).items()]
    sizes = select(calls.c.id, func.length(calls.c.full_result)).where(
        calls.c.run_id == run_id, calls.c.full_result.is_not(None)
    )
    return [(call_id, size) for call_id, size in tx.execute(sizes.order_by(calls.c.step, calls.c.place, calls.c.id))]


def full_results(tx: Tx, call_ids: Sequence[str]) -> dict[str, str]:
    """`call_ids`: of one run."""
    texts: dict[str, str] = {}
    for start in range(0, len(call_ids), AT_ONCE):
        among = calls.c.id.in_(call_ids[start : start + AT_ONCE])
        texts |= {row.id: row.full_result for row in tx.execute(select(calls.c.id, calls.c.full_result).where(among))}
    return texts


def with_full_results(tx: Tx, run_id: str) -> list[str]:
    """The calls of a run whose content is only the beginning of their result."""
    longer = select(calls.c.id).where(calls.c.run_id == run_id, calls.c.full_result.is_not(None))
    return list(tx.execute(longer.order_by(calls.c.step, calls.c.place, calls.c.generation)).scalars())


# a round opens, and its calls are settled


_OF_NEW_CALL = (
    "id", "place", "ask_id", "generation", "tool", "arguments", "effect", "status", "code", "content", "suspension_id",
    "placed", "worker", "claim_token", "started_at", "answered_from",
)  # fmt: skip
_INSERT = BulkInsert(
    calls,
    (*_OF_NEW_CALL, "run_id", "thread_id", "step", "full_result", "lease_until", "resends", "expiries", "ended_at"),
)


def insert(tx: Tx, run: Run, step: int, asked: Sequence[NewCall], *, now: datetime, lease_until: datetime) -> None:
    """Insert the calls of one assistant message, in its order."""
    _INSERT.send(tx, [_new_row(run, step, call, now, lease_until) for call in asked])


def _new_row(run: Run, step: int, call: NewCall, now: datetime, lease_until: datetime | None) -> dict[str, Any]:
    return {
        **{name: getattr(call, name) for name in _OF_NEW_CALL},
        "run_id": run.id,
        "thread_id": run.thread_id,
        "step": step,
        "full_result": call.full,
        "lease_until": lease_until if call.status in IN_FLIGHT_CALL and not call.parked else None,
        "resends": 0,
        "expiries": 0,
        "ended_at": None if call.status in OPEN_CALL else call.ended_at or now,
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class CallOutcome:
    status: CallStatus
    code: str | None
    content: str
    full: str | None
    worker: str
    started_at: datetime
    ended_at: datetime


_SETTLE = PreparedStatement(
    update(calls)
    .where(
        calls.c.id == bindparam("call"),
        still(calls.c.status, *sources(CALL, CallStatus.FAILED)),
        or_(calls.c.claim_token.is_(None), calls.c.claim_token == bindparam("token")),
        # A worker that began before the call was suspended cannot settle what became of the answer.
        calls.c.suspension_id.is_not_distinct_from(bindparam("asked", type_=calls.c.suspension_id.type)),
    )
    .values(
        status=bindparam("to_status"), code=bindparam("to_code"), content=bindparam("to_content"),
        full_result=bindparam("to_full_result"), worker=bindparam("by_worker"), started_at=bindparam("begun"),
        ended_at=bindparam("now"), lease_until=None,
    )
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class CallEnd:
    """A call as its worker took it, and what became of it."""

    call: Call
    token: str | None
    outcome: CallOutcome


def settle(tx: Tx, call: Call, token: str | None, outcome: CallOutcome) -> bool:
    """Write the outcome of a call, once. A late worker, or one that lost its claim, matches no row."""
    return _SETTLE.changed(tx, _settle_binds(CallEnd(call=call, token=token, outcome=outcome))) == 1


def settle_all(tx: Tx, settled: Sequence[CallEnd]) -> list[bool]:
    """As `settle`, each call by itself, in one trip."""
    sent = [_SETTLE.send(tx, _settle_binds(one)) for one in settled]
    return [one.changed() == 1 for one in sent]


def _settle_binds(settled: CallEnd) -> dict[str, Any]:
    call, outcome = settled.call, settled.outcome
    return {
        "call": call.id, "asked": call.suspension_id, "token": settled.token, "to_status": outcome.status.value,
        "to_code": outcome.code, "to_content": outcome.content, "to_full_result": outcome.full,
        "to_thread_id": call.thread_id, "by_worker": outcome.worker, "begun": outcome.started_at,
        "now": outcome.ended_at,
    }  # fmt: skip


def answer(
    tx: Tx,
    call: Call,
    *,
    status: CallStatus,
    code: str | None,
    content: str,
    full: str | None = None,
    step: int,
    now: datetime,
) -> bool:
    """Settle the call by a decision alone."""
    settled = (
        update(calls)
        .where(calls.c.id == call.id, still(calls.c.status, *sources(CALL, status)))
        .values(
            status=status.value, code=code, ended_at=now, lease_until=None, claim_token=None, replayed_at=step,
            **owned(tx, calls, {"content": content, "full_result": full}, owner=call.thread_id),
        )
    )  # fmt: skip
    return tx.execute(settled).rowcount == 1


def supply_result(tx: Tx, call: Call, *, status: CallStatus, code: str, content: str, now: datetime) -> bool:
    """Settle the call by its consumer's result. A worker that is carrying it out finds it settled: the first counts."""
    supplied = (
        update(calls)
        .where(calls.c.id == call.id, still(calls.c.status, *sources(CALL, status)))
        .values(status=status.value, code=code, ended_at=now, lease_until=None, claim_token=None)
        .values(owned(tx, calls, {"content": content}, owner=call.thread_id))
    )
    return tx.execute(supplied).rowcount == 1


def cancel(tx: Tx, call_ids: Collection[str], *, code: str, content: str, now: datetime) -> None:
    """Close calls whose results are no longer needed. `content`: a text of ours, here as in `cancel_of_run`."""
    cancellable = still(calls.c.status, *sources(CALL, CallStatus.CANCELLED))
    some = update(calls).where(calls.c.id.in_(sorted(call_ids)), cancellable)
    tx.execute(some.values(owned(tx, calls, _cancelled(code, content, now), owner=None)))


def cancel_of_run(tx: Tx, run_id: str, *, code: str, content: str, now: datetime) -> int:
    """Close every open call of a run that ended. Returns how many there were. No text may say that a call did nothing
    if it has started and cannot be repeated.
    """
    cancellable = has(calls.c.status, *sources(CALL, CallStatus.CANCELLED))
    all_open = update(calls).where(calls.c.run_id == run_id, cancellable)
    may_have_acted = and_(
        calls.c.started_at.is_not(None), calls.c.effect.in_([each.value for each in Effect if each.starts_on_record])
    )
    closed = _cancelled(code, content, now)
    closed["content"] = case((may_have_acted, literal(UNFINISHED)), else_=literal(content))
    return tx.execute(all_open.values(closed)).rowcount


def _cancelled(code: str, content: str, now: datetime) -> dict[str, Any]:
    status = CallStatus.CANCELLED.value
    return {"status": status, "code": code, "content": content, "ended_at": now, "lease_until": None}


# a call waits for a decision, and is resumed


def suspend(tx: Tx, call: Call, token: str | None, suspension_id: str, *, seen_lease: datetime | None = None) -> bool:
    """The call waits for a decision, without a claim. `seen_lease`: unless its lease was renewed since."""
    unrenewed = [] if seen_lease is None else [calls.c.lease_until == seen_lease]
    suspended = (
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
    return tx.execute(suspended).rowcount == 1


def park_behind(tx: Tx, call: Call) -> None:
    """The later calls of its round that have not started wait until it is settled."""
    later = update(calls).where(
        calls.c.run_id == call.run_id,
        calls.c.step == call.step,
        calls.c.place > call.place,
        still(calls.c.status, CallStatus.NEW),
    )
    tx.execute(later.values(lease_until=None))


def unpark(tx: Tx, call_ids: Collection[str], *, step: int, lease_until: datetime) -> None:
    """Calls that were parked behind a suspended one are carried out in this step of their run."""
    parked = update(calls).where(
        calls.c.id.in_(sorted(call_ids)), still(calls.c.status, CallStatus.NEW), calls.c.lease_until.is_(None)
    )
    tx.execute(parked.values(replayed_at=step, lease_until=lease_until))


def resume(tx: Tx, call: Call, *, step: int, arguments: dict[str, Any] | None, lease_until: datetime | None) -> bool:
    """The call was decided. With a lease, it is carried out in this step of its run."""
    changed = owned(tx, calls, {} if arguments is None else {"arguments": arguments}, owner=call.thread_id)
    resumed = (
        update(calls)
        .where(calls.c.id == call.id, still(calls.c.status, *sources(CALL, CallStatus.RESUMING)))
        .values(status=CallStatus.RESUMING.value, replayed_at=step, lease_until=lease_until, **changed)
    )
    return tx.execute(resumed).rowcount == 1


def join_replay(tx: Tx, call_ids: Collection[str], *, step: int) -> None:
    """New calls of an older round are carried out in this step of their run."""
    tx.execute(update(calls).where(calls.c.id.in_(sorted(call_ids))).values(replayed_at=step))


# claims and leases


def claim(tx: Tx, call: Call, token: str, worker: str, *, now: datetime, lease_until: datetime) -> bool:
    """From here on a crash leaves evidence: the call is running under this token until its lease runs out."""
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


_DIGEST = type_coerce(bindparam("digest", type_=runs.c.agent_digest.type), runs.c.agent_digest.type)
_OF_ITS_RUN = runs.c.id == calls.c.run_id
_CLAIM_NEW = PreparedStatement(
    update(calls)
    .where(
        calls.c.id == bindparam("call"),
        still(calls.c.status, CallStatus.NEW),
        has(calls.c.effect, *(effect for effect in Effect if effect.starts_on_record)),
        calls.c.lease_until.is_not(None),
        calls.c.suspension_id.is_(None),
        calls.c.resends == literal_column("0"),
        calls.c.expiries == literal_column("0"),
        select(runs.c.id)
        .where(
            _OF_ITS_RUN, STILL_RUNNING, runs.c.agent == bindparam("of_agent"), runs.c.timeout_ms.is_(None),
            runs.c.parent_run.is_(None),
            func.coalesce(runs.c.agent_digest, "") == func.coalesce(_DIGEST, runs.c.agent_digest, ""),
        )
        .scalar_subquery()
        .is_not(None),
    )
    .values(
        status=CallStatus.RUNNING.value, claim_token=bindparam("token"), worker=bindparam("by_worker"),
        started_at=bindparam("now"), lease_until=bindparam("until"),
    )
    .returning(*COLUMNS, select(runs.c.epoch).where(_OF_ITS_RUN).scalar_subquery().label("run_epoch"))
)  # fmt: skip


def claim_new(
    tx: Tx,
    call_id: str,
    token: str,
    worker: str,
    *,
    agent: str,
    digest: str | None,
    now: datetime,
    lease_until: datetime,
) -> CallToRun | None:
    """Load and claim a call of this agent that starts on record, that is as it was inserted, and whose run has no time
    limit and began with the version `digest`; None: with any. It is returned as it was before. None: nothing is
    claimed; `load_for_work` tells more.
    """
    binds = {
        "call": call_id, "of_agent": agent, "digest": digest, "token": token, "by_worker": worker, "now": now,
        "until": lease_until,
    }  # fmt: skip
    row = _CLAIM_NEW.first(tx, binds)
    if row is None:
        return None
    as_before = {"status": CallStatus.NEW, "claim_token": None, "worker": None, "started_at": None}
    return CallToRun(
        call=_from_row({**row, **as_before}), pin=AgentPin(agent, digest), epoch=row["run_epoch"], is_running=True,
        may_be_limited=False,
    )  # fmt: skip


def unclaim(tx: Tx, call_id: str, token: str | None, now: datetime) -> None:
    """The holder gives up a call that it has not begun. It did not die, so no expiry is counted."""
    claimed = update(calls).where(calls.c.id == call_id, calls.c.claim_token == token, STILL_IN_FLIGHT)
    tx.execute(claimed.values(claim_token=None, worker=None, lease_until=now))


def record_crash(tx: Tx, call_id: str, token: str | None, worker: str, lease_until: datetime) -> None:
    """The call may run again after `lease_until`. It counts like the death of a worker, so a call that ends its process
    each time ends as poison. Only the holder records it: an unsafe call that another has begun could run twice. Without
    a token the holder is on record by its name, or not at all.
    """
    in_name = or_(calls.c.worker == worker, calls.c.worker.is_(None))
    held = calls.c.claim_token == token if token else and_(calls.c.claim_token.is_(None), in_name)
    crashed = update(calls).where(calls.c.id == call_id, held, STILL_IN_FLIGHT)
    tx.execute(crashed.values(expiries=calls.c.expiries + 1, claim_token=None, worker=None, lease_until=lease_until))


def push_lease(tx: Tx, call: Call, *, lease_until: datetime, resends: int, expiries: int) -> None:
    """Rescue has handled the call, whose row it has locked; it has no holder until it is claimed again."""
    handled = update(calls).where(calls.c.id == call.id)
    values = {"lease_until": lease_until, "resends": resends, "expiries": expiries}
    tx.execute(handled.values(claim_token=None, worker=None, **values))


def renew(
    tx: Tx, held: Collection[str], tokens: Collection[str], worker: str, *, now: datetime, lease_until: datetime
) -> set[str]:
    """The heartbeat: put calls that still run on record. Calls that another has claimed are not ours, and rows that
    another transaction holds are left out. Returns the calls that were renewed.
    """
    ours = or_(calls.c.claim_token.is_(None), calls.c.claim_token.in_(sorted(tokens)))
    renewed = (
        update(calls)
        .where(calls.c.id.in_(_unlocked(held)), still(calls.c.status, CallStatus.NEW, CallStatus.RUNNING), ours)
        .values(
            status=CallStatus.RUNNING.value, lease_until=lease_until, worker=worker,
            started_at=func.coalesce(calls.c.started_at, now),
        )
        .returning(calls.c.id)
    )  # fmt: skip
    return set(tx.execute(renewed).scalars())


def renew_waiting(tx: Tx, behind: Collection[str], *, lease_until: datetime) -> None:
    """Calls that wait behind another in a batch are not lost: rescue need not send them. Parked ones stay parked."""
    waiting = update(calls).where(
        calls.c.id.in_(_unlocked(behind)), still(calls.c.status, CallStatus.NEW), calls.c.lease_until.is_not(None)
    )
    tx.execute(waiting.values(lease_until=lease_until))


def _unlocked(call_ids: Collection[str]) -> Select[Any]:
    """Those of these rows that no other transaction holds."""
    row = calls.alias()
    return select(row.c.id).where(row.c.id.in_(sorted(call_ids))).with_for_update(skip_locked=True)


def amend(tx: Tx, call: Call, token: str | None, arguments: dict[str, Any]) -> bool:
    """Put the arguments on record with which the call is carried out, before it is."""
    amended = update(calls).where(
        calls.c.id == call.id, still(calls.c.status, CallStatus.RUNNING), calls.c.claim_token == token
    )
    changed = owned(tx, calls, {"arguments": arguments}, owner=call.thread_id)
    return tx.execute(amended.values(changed)).rowcount == 1


def note_progress(tx: Tx, call: Call, text: str) -> None:
    is_open = update(calls).where(calls.c.id == call.id, still(calls.c.status, *sorted(OPEN_CALL)))
    tx.execute(is_open.values(owned(tx, calls, {"progress": text}, owner=call.thread_id)))
