"""Start a turn: its run opens at a place of the group's budget, it becomes active, and its message enters the history.

A place is a number. A partial unique index over the running runs of a group says that each is taken once, so starts on
unrelated threads share no row, and a run that ends, waits or stalls gives its place back by that alone: it leaves the
index. A start may take the number n if n and the running runs above it fit into the budget. While all runs have numbers
of the budget, these are the free ones. A run that was resumed has no number and counts as above all others, so it
starts whatever the budget, and each that does keeps one start away. The same holds for runs with numbers beyond a
budget that was lowered. docs/adr/0052-places-are-numbers.md says what two that meet at one moment may do.

The run is inserted first, from the row of its turn, which that statement locks: whether the turn may start, and in
which place, is decided there. The index of places and the one of open runs on a thread have the last word, and where
one of them is met, nothing is inserted. Each further statement does nothing without the run, so all go in one trip.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BindParameter,
    Integer,
    String,
    Table,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    literal_column,
    or_,
    select,
    type_coerce,
    update,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import GenericFunction

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.model import COUNTS, Usage
from chordage.orchestrator.core.records import KIN_COLUMNS, Phase, Run, Turn
from chordage.orchestrator.core.status import RunStatus, TurnStatus
from chordage.orchestrator.store import fairness, journal
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.fairness import StartRule
from chordage.orchestrator.store.groups import GROUP
from chordage.orchestrator.store.predicates import at_work, steering, still
from chordage.orchestrator.store.schema import journal as journal_table
from chordage.orchestrator.store.schema import runs, turns
from chordage.orchestrator.store.statements import PreparedStatement, Row, SentStatement, insert_or
from chordage.orchestrator.store.turns import COLUMNS
from chordage.orchestrator.store.turns import from_row as turn_from_row

# the number of a place

_DRAWN = bindparam("drawn", type_=Integer)  # at random, so that starts at one moment seldom want the same number
_ZERO, _ONE = literal_column("0", Integer), literal_column("1", Integer)


def _is_taken(number: Any) -> ColumnElement[bool]:
    """A scalar subquery, not an EXISTS: PostgreSQL would join all running runs with each other."""
    run = runs.alias()
    at = select(run.c.place).where(run.c.grp == GROUP, at_work(run), run.c.place == number)
    return at.scalar_subquery().is_not(None)


def _first_free(start: Any) -> ColumnElement[Any]:
    """The lowest number, from this one on, that no running run has."""
    run = runs.alias()
    behind = run.c.place + _ONE
    gap = select(behind).where(run.c.grp == GROUP, at_work(run), run.c.place >= start, ~_is_taken(behind))
    return case((_is_taken(start), gap.order_by(run.c.place).limit(_ONE).scalar_subquery()), else_=start)


def _runs_above(number: Any) -> ColumnElement[Any]:
    run, resumed = runs.alias(), runs.alias()
    higher = select(func.count()).select_from(run).where(run.c.grp == GROUP, at_work(run), run.c.place > number)
    without = select(func.count()).select_from(resumed).where(resumed.c.grp == GROUP, at_work(resumed))
    return higher.scalar_subquery() + without.where(resumed.c.place.is_(None)).scalar_subquery()


def _place(drawn: Any) -> ColumnElement[Any]:
    """A number that a start may take, near the one that is drawn; null: there is none."""
    start = select((drawn % func.nullif(fairness.BUDGET, _ZERO)).label("number")).cte("drawn")
    near, lowest = _first_free(select(start.c.number).scalar_subquery()), _first_free(_ZERO)
    tried = select(near.label("number")).union_all(select(lowest)).cte("tried")
    fits = tried.c.number + _runs_above(tried.c.number) < fairness.BUDGET
    free = select(tried.c.number).where(fits).limit(_ONE).cte("free_place")
    return select(free.c.number).scalar_subquery()


_PLACE = _place(_DRAWN)
_PLACE_LEFT = _place(select(runs.c.place).where(runs.c.id == bindparam("ended")).scalar_subquery())

# the run


class json_member(GenericFunction[str]):  # noqa: N801 - it is written as a function of SQL
    """The text of a member of a JSON object; null if it has none. The key may hold letters, digits, _ . and -."""

    type = String()
    inherit_cache = True
    name = "json_member"


@compiles(json_member)
def _member_in_sqlite(element: json_member, compiler: Any, **options: Any) -> str:
    of, key = (compiler.process(clause, **options) for clause in element.clauses)
    return f"json_extract({of}, '$.\"' || {key} || '\"')"


@compiles(json_member, "postgresql")
def _member_in_postgres(element: json_member, compiler: Any, **options: Any) -> str:
    of, key = (compiler.process(clause, **options) for clause in element.clauses)
    return f"(CAST({of} AS JSON) ->> {key})"


_THIS_TURN: BindParameter[str] = bindparam("turn_id")
# A message that came after the one that starts the run, to be taken in by the run at work.
_LATER = turns.alias("later")
_IS_AWAITED = exists().where(
    steering(_LATER),
    _LATER.c.thread_id == turns.c.thread_id,
    _LATER.c.arrival > turns.c.arrival,
    _LATER.c.agent == turns.c.agent,
    _LATER.c.strategy == turns.c.strategy,
    _LATER.c.grp == turns.c.grp,
)
_OF_TURN = (
    "thread_id", "agent", "grp", "tenant", "strategy", "control", "max_rounds", "timeout_ms", "fork_of", *KIN_COLUMNS,
)  # fmt: skip
_RUN: dict[str, Any] = {
    "id": type_coerce(bindparam("run", type_=runs.c.id.type), runs.c.id.type),
    "turn_id": turns.c.id,
    **{name: turns.c[name] for name in _OF_TURN},
    "place": _PLACE,
    "lease_until": type_coerce(bindparam("until", type_=runs.c.lease_until.type), runs.c.lease_until.type),
    "moved_by": type_coerce(bindparam("worker", type_=runs.c.moved_by.type), runs.c.moved_by.type),
    "started_at": type_coerce(bindparam("now", type_=runs.c.started_at.type), runs.c.started_at.type),
    "agent_digest": type_coerce(bindparam("digest", type_=runs.c.agent_digest.type), runs.c.agent_digest.type),
    "status": literal_column(f"'{RunStatus.RUNNING}'"),
    "epoch": literal_column("1"),
    "step": literal_column("1"),
    "phase": literal_column(f"'{Phase.INFERENCE}'"),
    "steers": case((_IS_AWAITED, literal_column("1")), else_=literal_column("0")),
    **dict.fromkeys(
        ("rounds", "resends", "expiries", "suspended", "rested_ms", "children", *COUNTS),
        literal_column("0"),
    ),
}  # fmt: skip


def _open_run(*rule: ColumnElement[bool]) -> PreparedStatement:
    """The turn stays locked: a start, a cancel or a change of it that is under way is waited for. The place is one of
    the group that was read, so a turn that has left that meanwhile does not start.
    """
    may_start = and_(fairness.may_start(turns, still), turns.c.grp.concat(literal_column("''")) == GROUP)
    chosen = select(*_RUN.values()).where(turns.c.id == _THIS_TURN, may_start, *rule, _PLACE.is_not(None))
    return PreparedStatement(_insert_from(chosen.with_for_update(of=turns)))


def _insert_from(chosen: Any) -> Callable[[str], Any]:
    return lambda dialect: (
        insert_or(dialect, runs)
        .from_select(list(_RUN), chosen)
        .on_conflict_do_nothing()
        .returning(runs.c.steers, runs.c.agent_digest)
    )


_OPEN_RUN = {
    StartRule.ALL_FIT: _open_run(fairness.ALL_FIT),
    StartRule.HAS_ROOM: _open_run(),
    StartRule.FIRST: _open_run(fairness.IS_FIRST),
    StartRule.HAS_SLOT: _open_run(or_(fairness.ALL_FIT, fairness.HAS_SLOT)),
}
_RULES_IN_TURN = {StartRule.FIRST, StartRule.HAS_SLOT}
# In the place that a run has just left: the turn of the tenant that is next, unless another transaction starts it. Its
# agent is known to that statement alone, so it gets the digests of all.
_DIGEST_OF_NEXT = json_member(bindparam("digests", type_=String()), turns.c.agent)
_OPEN_NEXT = PreparedStatement(
    _insert_from(
        select(*{**_RUN, "place": _PLACE_LEFT, "agent_digest": _DIGEST_OF_NEXT}.values())
        .where(turns.c.grp == GROUP, turns.c.tenant == fairness.FIRST_TENANT, fairness.may_start(turns))
        .where(_PLACE_LEFT.is_not(None))
        .order_by(turns.c.due_at, turns.c.id)
        .limit(_ONE)
        .with_for_update(of=turns, skip_locked=True)
    )
)

# what follows from it

_OPENED = select(runs.c.turn_id).where(runs.c.id == bindparam("run"))
_IS_OPEN = _OPENED.exists()
_ACTIVE = (
    update(turns)
    .where(turns.c.id == _OPENED.scalar_subquery())
    .values(status=TurnStatus.ACTIVE.value, ready=0, run_id=bindparam("run"), started_at=bindparam("now"))
)
_TAKE_TURN = PreparedStatement(_ACTIVE)
_TAKE_NEXT = PreparedStatement(_ACTIVE.returning(*COLUMNS))
_SET_LAST_TENANT = PreparedStatement(fairness.SET_LAST_TENANT.where(_IS_OPEN))
_MESSAGE = ("thread_id", "run_id", "step", "kind", "body", "at")


def _given(table: Table, name: str) -> ColumnElement[Any]:
    kind = table.c[name].type
    return type_coerce(bindparam(f"{table.name}_{name}", type_=kind), kind)


_APPEND = PreparedStatement(
    insert(journal_table).from_select(
        _MESSAGE, select(*(_given(journal_table, name) for name in _MESSAGE)).where(_IS_OPEN)
    )
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """The turn to start, and what becomes of it."""

    turn: Turn
    run_id: str
    words: journal.Row  # its message, as a row of the journal
    rule: StartRule
    budget: int  # of the group, if its row has none
    now: datetime
    lease_until: datetime
    worker: str  # the process that starts it
    digest: str | None = None  # of the version of its agent in that process; None: not known


def _first_run(turn: Turn, run_id: str, now: datetime, lease_until: datetime, opened: Row) -> Run:
    """As it was inserted."""
    return Run(
        id=run_id, thread_id=turn.thread_id, turn_id=turn.id, agent=turn.agent, group=turn.group,
        strategy=turn.strategy, status=RunStatus.RUNNING, reason=None, code=None, detail=None, epoch=1, step=1,
        phase=Phase.INFERENCE, rounds=0, resends=0, expiries=0, claim_token=None, claim_worker=None,
        lease_until=lease_until, usage=Usage(), started_at=now, ended_at=None, in_flight=0,
        kin=turn.kin, control=turn.control, max_rounds=turn.max_rounds, timeout=turn.timeout, fork_of=turn.fork_of,
        steers=opened["steers"], agent_digest=opened["agent_digest"],
    )  # fmt: skip


def opened_run(start: Start, opened: SentStatement) -> Run | None:
    """After the commit: the run. None: the rule did not let the turn start (store/fairness.py), or another run was
    first on its thread, or in its place.
    """
    rows = opened.rows()
    if not rows:
        return None
    return _first_run(start.turn, start.run_id, start.now, start.lease_until, rows[0])


def send(tx: Tx, start: Start) -> SentStatement:
    """The result is a row if the run was opened."""
    turn = start.turn
    whose = {"group": turn.group.value, "now": start.now, "run": start.run_id}
    if start.rule in _RULES_IN_TURN:
        fairness.LOCK_ORDER.send(tx, whose)
    opened = _OPEN_RUN[start.rule].send(
        tx,
        {
            **whose, "turn_id": turn.id, "budget": start.budget, "until": start.lease_until,
            "worker": start.worker, "drawn": random.getrandbits(30), "digest": start.digest,
        },
    )  # fmt: skip
    _TAKE_TURN.send(tx, whose)
    if start.rule in _RULES_IN_TURN:
        _SET_LAST_TENANT.send(tx, {**whose, "tenant": turn.tenant})
    _APPEND.send(tx, {"run": start.run_id, **_named(journal_table, start.words)})
    return opened


def open_next(
    tx: Tx,
    group: Group,
    *,
    ended: str,
    run_id: str,
    budget: int,
    now: datetime,
    lease_until: datetime,
    worker: str,
    digests: Mapping[str, str],
) -> tuple[Turn, Run] | None:
    """Start the turn that is next in the place of the run `ended`, which this transaction has ended; its message is
    not written. None: no turn may start, or others are just starting those that may. Nothing is waited for but a start
    in the same place or on the same thread. `digests`: of the agents of this process, by name.
    """
    binds = {"group": group.value, "run": run_id, "now": now}
    terms = {"ended": ended, "budget": budget, "until": lease_until, "worker": worker, "digests": json.dumps(digests)}
    opened = _OPEN_NEXT.send(tx, {**binds, **terms})
    row = _TAKE_NEXT.first(tx, binds)
    if row is None:
        return None
    turn = turn_from_row(row)
    return turn, _first_run(turn, run_id, now, lease_until, opened.rows()[0])


def set_last_tenant(tx: Tx, group: Group, turn: Turn, run_id: str, now: datetime) -> None:
    _SET_LAST_TENANT.send(tx, {"group": group.value, "run": run_id, "now": now, "tenant": turn.tenant})


def set_digest(tx: Tx, run_id: str, digest: str | None) -> None:
    """Of a run that this transaction has started."""
    tx.execute(update(runs).where(runs.c.id == run_id).values(agent_digest=digest))


_DELETE = delete(runs).where(runs.c.id == bindparam("run"))
_QUEUE_AGAIN = (
    update(turns)
    .where(turns.c.id == _OPENED.scalar_subquery(), turns.c.run_id == bindparam("run"))
    .values(status=TurnStatus.QUEUED.value, ready=1, run_id=None, started_at=None)
)


def undo(tx: Tx, run_id: str) -> None:
    """The start of a turn in this transaction: no other has seen it."""
    tx.execute(_QUEUE_AGAIN, {"run": run_id})
    tx.execute(_DELETE, {"run": run_id})


def _named(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{table.name}_{name}": value for name, value in row.items()}
