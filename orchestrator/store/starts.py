"""Start a turn: the turn becomes active, its run opens and its message enters the history, or nothing happens.

Starts in one group come one by one, so all statements go in one round trip, and the lock of the group is held for as
short as possible. Each statement does nothing if the one before it changed nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Table, bindparam, case, exists, insert, literal_column, or_, select, type_coerce, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.elements import ColumnElement

from chordage.orchestrator.core import limits
from chordage.orchestrator.core.errors import LostRace
from chordage.orchestrator.core.model import TOKENS, Usage
from chordage.orchestrator.core.records import KIN_COLUMNS, Phase, Run, Turn, kin_columns
from chordage.orchestrator.core.status import RunStatus, TurnStatus
from chordage.orchestrator.store import fairness, groups, journal
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.fairness import StartRule
from chordage.orchestrator.store.predicates import STEERING_TURNS, still
from chordage.orchestrator.store.schema import journal as journal_table
from chordage.orchestrator.store.schema import runs, turns
from chordage.orchestrator.store.statements import PreparedStatement, SentStatement

_STARTED = {
    "status": TurnStatus.ACTIVE.value,
    "ready": 0,
    "run_id": bindparam("run"),
    "started_at": bindparam("now"),
}
_IS_DUE = update(turns).where(turns.c.id == bindparam("turn_id"), fairness.may_start(turns, still)).values(_STARTED)
_START = {
    StartRule.ALL_FIT: PreparedStatement(_IS_DUE.where(fairness.ALL_FIT)),
    StartRule.HAS_ROOM: PreparedStatement(_IS_DUE.where(fairness.IS_ROOM)),
    StartRule.FIRST: PreparedStatement(_IS_DUE.where(fairness.IS_FIRST)),
    StartRule.HAS_SLOT: PreparedStatement(_IS_DUE.where(or_(fairness.ALL_FIT, fairness.HAS_SLOT))),
}
_HAS_STARTED = exists().where(turns.c.id == bindparam("turn_id"), turns.c.run_id == bindparam("run"))
_SET_LAST_TENANT = PreparedStatement(fairness.SET_LAST_TENANT.where(_HAS_STARTED))
_RULES_IN_TURN = {StartRule.FIRST, StartRule.HAS_SLOT}

# A message that came after the one that starts the run, to be taken in by the run at work.
_IS_AWAITED = exists().where(
    STEERING_TURNS,
    turns.c.thread_id == bindparam("of_thread"),
    turns.c.arrival > bindparam("of_arrival"),
    turns.c.agent == bindparam("of_agent"),
    turns.c.strategy == bindparam("of_strategy"),
    turns.c.grp == bindparam("of_group"),
)
_OF_RUN = (
    "id", "thread_id", "turn_id", "agent", "grp", "strategy", "control", "max_rounds", "timeout_ms", "lease_until",
    "started_at", *KIN_COLUMNS,
)  # fmt: skip
_OF_ANY_RUN: dict[str, ColumnElement[Any]] = {
    "status": literal_column(f"'{RunStatus.RUNNING}'"),
    "epoch": literal_column("1"),
    "step": literal_column("1"),
    "phase": literal_column(f"'{Phase.INFERENCE}'"),
    "steers": case((_IS_AWAITED, literal_column("1")), else_=literal_column("0")),
    **dict.fromkeys(
        ("rounds", "resends", "expiries", "suspended", "rested_ms", "children", *TOKENS),
        literal_column("0"),
    ),
}  # fmt: skip


def _given(table: Table, name: str) -> ColumnElement[Any]:
    kind = table.c[name].type
    return type_coerce(bindparam(f"{table.name}_{name}", type_=kind), kind)


_OPEN_RUN = PreparedStatement(
    insert(runs)
    .from_select(
        [*_OF_RUN, *_OF_ANY_RUN],
        select(*(_given(runs, name) for name in _OF_RUN), *_OF_ANY_RUN.values()).where(_HAS_STARTED),
    )
    .returning(runs.c.steers)
)
_MESSAGE = ("thread_id", "run_id", "step", "kind", "body", "at")
_APPEND = PreparedStatement(
    insert(journal_table).from_select(
        _MESSAGE, select(*(_given(journal_table, name) for name in _MESSAGE)).where(_HAS_STARTED)
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

    def run(self, *, steers: int) -> Run:
        turn = self.turn
        return Run(
            id=self.run_id, thread_id=turn.thread_id, turn_id=turn.id, agent=turn.agent, group=turn.group,
            strategy=turn.strategy, status=RunStatus.RUNNING, reason=None, code=None, detail=None, epoch=1, step=1,
            phase=Phase.INFERENCE, rounds=0, resends=0, expiries=0, claim_token=None, claim_worker=None,
            lease_until=self.lease_until, usage=Usage(), started_at=self.now, ended_at=None, in_flight=0,
            kin=turn.kin, control=turn.control, max_rounds=turn.max_rounds, timeout=turn.timeout, steers=steers,
        )  # fmt: skip


@contextmanager
def one_run_per_thread() -> Iterator[None]:
    """Around the transaction. LostRace: a run was open on the thread; the index says so, whatever the lock says."""
    try:
        yield
    except IntegrityError as error:
        if any(name in str(error.orig) for name in ("uq_runs_open_thread", "runs.thread_id")):
            raise LostRace from error
        raise


def opened_run(start: Start, opened: SentStatement) -> Run | None:
    """After the commit: the run, or None where the rule did not let the turn start (store/fairness.py)."""
    rows = opened.rows()
    return start.run(steers=rows[0]["steers"]) if rows else None


def send(tx: Tx, start: Start) -> SentStatement:
    """The result is a row if the run was opened."""
    turn = start.turn
    ids = {"turn_id": turn.id, "run": start.run_id}
    whose = {**ids, "group": turn.group.value, "now": start.now}
    groups.LOCK.send(tx, {"group": turn.group.value})
    _START[start.rule].send(tx, {**whose, "budget": start.budget})
    if start.rule in _RULES_IN_TURN:
        _SET_LAST_TENANT.send(tx, {**whose, "tenant": turn.tenant})
    opened = _OPEN_RUN.send(tx, {**ids, **_run_binds(start)})
    _APPEND.send(tx, {**ids, **_named(journal_table, start.words)})
    return opened


def _run_binds(start: Start) -> dict[str, Any]:
    turn = start.turn
    own = {
        "thread_id": turn.thread_id, "agent": turn.agent, "strategy": turn.strategy, "grp": turn.group.value,
        "id": start.run_id, "turn_id": turn.id, "control": turn.control.value, "started_at": start.now,
        "lease_until": start.lease_until, "max_rounds": turn.max_rounds,
        "timeout_ms": limits.in_ms(turn.timeout), **kin_columns(turn.kin),
    }  # fmt: skip
    line = {
        "of_thread": turn.thread_id, "of_arrival": turn.arrival, "of_agent": turn.agent, "of_strategy": turn.strategy,
        "of_group": turn.group.value,
    }  # fmt: skip
    return {**_named(runs, own), **line}


def _named(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{table.name}_{name}": value for name, value in row.items()}
