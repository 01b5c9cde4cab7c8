"""What streams read: journal rows of a run, a turn, a thread and the fleet, and what their events are enriched with.

Rows of a run are found by the ids that they are written under, never by walking the journal: the rows of one run lie
far apart in it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Select, and_, func, or_, select

from chordage.orchestrator.core.approvals import Why
from chordage.orchestrator.core.bus import Fact
from chordage.orchestrator.core.records import Checkpoint
from chordage.orchestrator.core.status import SETTLED_CALL, TurnStatus
from chordage.orchestrator.store.contents import json_text
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.predicates import STILL_OPEN_SUSPENSION, has
from chordage.orchestrator.store.schema import calls, decisions, journal, projection, runs, suspensions, turns

Row = dict[str, Any]

_FACT = select(
    journal.c.id, journal.c.thread_id, journal.c.run_id, journal.c.step, journal.c.kind,
    json_text(journal.c.body).label("text"), journal.c.at, runs.c.turn_id, runs.c.agent, runs.c.grp.label("group"),
).outerjoin(runs, runs.c.id == journal.c.run_id)  # fmt: skip
_row_id = journal.c.id + 0  # so that no database walks the journal by its key
_SETTLED = [status.value for status in sorted(SETTLED_CALL)]
_IDS_AT_ONCE = 500


def position(tx: Tx) -> int:
    """Up to which row the journal is settled: no row can appear at or before it any more."""
    return int(tx.execute(select(func.coalesce(func.max(projection.c.position), 0))).scalar_one())


def top(tx: Tx) -> int:
    """The last row of the journal, settled or not."""
    return int(tx.execute(select(func.coalesce(func.max(journal.c.id), 0))).scalar_one())


def exists(tx: Tx, row: int) -> bool:
    return tx.execute(select(journal.c.id).where(journal.c.id == row)).first() is not None


def first_row(tx: Tx) -> int | None:
    return tx.execute(select(func.min(journal.c.id))).scalar()


def top_of(tx: Tx, *subjects: str) -> int:
    """The last row of these, on the bus or not."""
    return int(tx.execute(select(func.max(journal.c.id)).where(journal.c.run_id.in_(subjects))).scalar() or 0)


def subjects_of(tx: Tx, run_id: str) -> list[str]:
    """The ids under which the rows of a run are written: its own, and those of its questions and decisions."""
    asked = list(tx.execute(select(suspensions.c.id).where(suspensions.c.run_id == run_id)).scalars())
    if not asked:
        return [run_id]
    answered = select(decisions.c.id).where(decisions.c.suspension_id.in_(asked))
    return [run_id, *asked, *tx.execute(answered).scalars()]


def facts_of(tx: Tx, subjects: Collection[str], after: int, upto: int, limit: int) -> list[Fact]:
    """The first rows of these subjects behind `after`, in their order."""
    ids: list[int] = []
    for part in _parts(sorted(subjects)):
        behind = select(journal.c.id).where(journal.c.run_id.in_(part), _row_id > after, _row_id <= upto)
        ids += tx.execute(behind).scalars()
    wanted = sorted(ids)[:limit]
    return _facts(tx, _FACT.where(journal.c.id.in_(wanted))) if wanted else []


def facts_of_thread(tx: Tx, thread_id: str, after: int, upto: int, limit: int) -> list[Fact]:
    of_thread = _FACT.where(journal.c.thread_id == thread_id, journal.c.id > after, journal.c.id <= upto)
    return _facts(tx, of_thread.order_by(journal.c.id).limit(limit))


def facts_of_all(tx: Tx, after: int, upto: int, limit: int) -> list[Fact]:
    everything = _FACT.where(journal.c.id > after, journal.c.id <= upto)
    return _facts(tx, everything.order_by(journal.c.id).limit(limit))


def _facts(tx: Tx, statement: Select[Any]) -> list[Fact]:
    facts = [Fact(**row) for row in tx.execute(statement).mappings()]
    return sorted(facts, key=lambda fact: fact.id)


def _parts(ids: Sequence[str]) -> list[Sequence[str]]:
    return [ids[start : start + _IDS_AT_ONCE] for start in range(0, len(ids), _IDS_AT_ONCE)]


# what events are enriched with

_CALL = [
    calls.c[name]
    for name in (
        "id", "run_id", "step", "place", "ask_id", "tool", "arguments", "status", "code", "content", "replayed_at",
        "ended_at",
    )
]  # fmt: skip
_QUESTION = [
    suspensions.c[name]
    for name in (
        "id", "call_id", "run_id", "tool", "why", "prompt", "schema", "digest", "created_at", "expires_at", "on_expiry",
    )
]  # fmt: skip


_child = turns.alias("child")  # the turn of the sub-agent that answers a call
_OF_CHILD = (
    _child.c.id.label("child_turn"),
    _child.c.agent.label("child_agent"),
    _child.c.queued_at.label("child_since"),
)
_WITH_CHILD = select(*_CALL, *_OF_CHILD).outerjoin(_child, _child.c.parent_call == calls.c.id)


def calls_of_rounds(tx: Tx, rounds: Collection[tuple[str, int]]) -> list[Row]:
    """In the order of their rounds. Each round is a run and the step of its calls."""
    if not rounds:
        return []
    matching = or_(*(and_(calls.c.run_id == run_id, calls.c.step == step) for run_id, step in sorted(rounds)))
    in_order = (calls.c.run_id, calls.c.step, calls.c.place, calls.c.generation)
    return _rows(tx, _WITH_CHILD.where(matching).order_by(*in_order))


def calls_by_id(tx: Tx, call_ids: Collection[str]) -> dict[str, Row]:
    if not call_ids:
        return {}
    return {row["id"]: row for row in _rows(tx, _WITH_CHILD.where(calls.c.id.in_(sorted(call_ids))))}


def settled_behind(tx: Tx, run_id: str, step: int) -> list[Row]:
    """The calls of a run that have a result since this step."""
    since = func.coalesce(calls.c.replayed_at, calls.c.step) > step
    return _rows(tx, select(*_CALL).where(calls.c.run_id == run_id, calls.c.status.in_(_SETTLED), since))


def calls_up_to(tx: Tx, run_id: str, step: int) -> set[str]:
    return set(tx.execute(select(calls.c.id).where(calls.c.run_id == run_id, calls.c.step <= step)).scalars())


def settled_of(tx: Tx, run_id: str) -> list[Row]:
    return settled_behind(tx, run_id, -1)


def bodies(tx: Tx, run_id: str, kind: Checkpoint, *, step: int | None = None) -> list[Row]:
    matching = select(journal.c.body).where(journal.c.run_id == run_id, has(journal.c.kind, kind))
    matching = matching if step is None else matching.where(journal.c.step == step)
    return list(tx.execute(matching).scalars())


def last_step(tx: Tx, run_id: str, upto: int, *kinds: Checkpoint) -> int:
    """Of the rows of these kinds up to a position."""
    latest = select(func.max(journal.c.step)).where(
        journal.c.run_id == run_id, has(journal.c.kind, *kinds), _row_id <= upto
    )
    return int(tx.execute(latest).scalar() or 0)


def questions(tx: Tx, suspension_ids: Collection[str]) -> dict[str, Row]:
    """Each with the arguments of its call as they are now."""
    if not suspension_ids:
        return {}
    joined = _with_call().where(suspensions.c.id.in_(sorted(suspension_ids)))
    return {row["id"]: row for row in _rows(tx, joined)}


def _with_call() -> Select[Any]:
    of_call = (calls.c.arguments, calls.c.step.label("call_step"), calls.c.place.label("call_place"))
    return select(*_QUESTION, *of_call).join(calls, calls.c.id == suspensions.c.call_id)


def open_questions(tx: Tx, run_ids: Collection[str]) -> list[Row]:
    """What people are asked in these runs, oldest first."""
    asked = _with_call().where(
        suspensions.c.run_id.in_(sorted(run_ids)), STILL_OPEN_SUSPENSION, suspensions.c.why != Why.CHILD.value
    )
    return sorted(_rows(tx, asked), key=lambda row: (row["created_at"], row["id"]))


def asked_before(tx: Tx, run_id: str, call_ids: Collection[str], row: int) -> list[str]:
    """The questions about these calls that people had not answered when this journal row was written."""
    if not call_ids:
        return []
    of_question, of_decision = journal.alias("asked"), journal.alias("answered")
    asked = (
        select(suspensions.c.id, of_decision.c.id.label("answered"))
        .join(of_question, of_question.c.run_id == suspensions.c.id)
        .outerjoin(decisions, decisions.c.suspension_id == suspensions.c.id)
        .outerjoin(of_decision, of_decision.c.run_id == decisions.c.id)
        .where(suspensions.c.run_id == run_id, suspensions.c.call_id.in_(sorted(call_ids)), of_question.c.id < row)
        .order_by(of_question.c.id)
    )
    return [each.id for each in tx.execute(asked) if each.answered is None or each.answered > row]


def decision_rows(tx: Tx, decision_ids: Collection[str]) -> dict[str, Row]:
    if not decision_ids:
        return {}
    columns = [decisions.c[name] for name in ("id", "suspension_id", "call_id", "action", "reason", "source")]
    return {row["id"]: row for row in _rows(tx, select(*columns).where(decisions.c.id.in_(sorted(decision_ids))))}


def open_children(tx: Tx, run_ids: Collection[str]) -> list[Row]:
    """The turns of sub-agents of these runs that are not done, with the state of their runs, oldest first."""
    columns = [turns.c[name] for name in ("id", "run_id", "status", "agent", "parent_run", "parent_call")]
    open_turns = (
        select(*columns, runs.c.status.label("run_status"), runs.c.reason)
        .outerjoin(runs, runs.c.id == turns.c.run_id)
        .where(turns.c.parent_run.in_(sorted(run_ids)), turns.c.status != TurnStatus.DONE.value)
        .order_by(turns.c.queued_at, turns.c.id)
    )
    return _rows(tx, open_turns)


def _rows(tx: Tx, statement: Select[Any]) -> list[Row]:
    return [dict(row) for row in tx.execute(statement).mappings()]
