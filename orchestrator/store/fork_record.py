"""What a forked run reads: its terms, the replies that it repeats, and the recorded results that answer its calls.

The rows of the source are read and never written. They do not change once a call has ended, so that a process that
takes a fork over reads what the one before it has read.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import and_, func, insert, select

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.approvals import digest
from chordage.orchestrator.core.forking import ForkTerms, RecordedCall, RecordedResult
from chordage.orchestrator.core.records import Checkpoint
from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.store.contents import owned
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.predicates import has
from chordage.orchestrator.store.schema import calls, forks, journal

_ANSWERS = (CallStatus.SUCCEEDED, CallStatus.FAILED)


def create(tx: Tx, turn_id: str, terms: ForkTerms) -> None:
    row = {
        "turn_id": turn_id, "run_id": terms.run_id, "step": terms.step, "kept": terms.kept,
        "arguments": dict(terms.arguments), "model": terms.model, "instructions": terms.instructions,
        "effects": sorted(terms.effects),
    }  # fmt: skip
    tx.execute(insert(forks).values(owned(tx, forks, row)))


def load(tx: Tx, turn_id: str) -> ForkTerms | None:
    row = tx.execute(select(forks).where(forks.c.turn_id == turn_id)).mappings().first()
    if row is None:
        return None
    fields = {name: value for name, value in row.items() if name != "turn_id"}
    return ForkTerms(**{**fields, "effects": frozenset(row["effects"])})


def count_replies(tx: Tx, run_id: str, upto: int | None = None) -> int:
    """How many replies the run has, up to this step or so far."""
    replies = select(func.count()).where(journal.c.run_id == run_id, has(journal.c.kind, Checkpoint.ASSISTANT_TURN))
    number: int = tx.execute(replies if upto is None else replies.where(journal.c.step <= upto)).scalar_one()
    return number


def reply(tx: Tx, run_id: str, number: int) -> dict[str, Any] | None:
    """The body of one of its replies, the first is 0."""
    replies = select(journal.c.body).where(
        journal.c.run_id == run_id, has(journal.c.kind, Checkpoint.ASSISTANT_TURN)
    )  # fmt: skip
    body: dict[str, Any] | None = tx.execute(replies.order_by(journal.c.id).offset(number).limit(1)).scalar()
    return body


def kinds_upto(tx: Tx, run_id: str, step: int) -> dict[tuple[Checkpoint, bool], int]:
    """What the run wrote up to this step, whether that was behind its beginning, and the first step with it."""
    later = journal.c.step > 0
    written = select(journal.c.kind, later.label("later"), func.min(journal.c.step).label("first"))
    rows = tx.execute(
        written.where(journal.c.run_id == run_id, journal.c.step <= step).group_by(journal.c.kind, later)
    )  # fmt: skip
    return {(Checkpoint(row.kind), bool(row.later)): row.first for row in rows}


def calls_of(tx: Tx, run_id: str, tools: Collection[str]) -> list[RecordedCall]:
    """The calls of these tools that have a result, in the order in which the model asked for them."""
    asked_in = and_(
        journal.c.run_id == calls.c.run_id, journal.c.step == calls.c.step - 1,
        has(journal.c.kind, Checkpoint.ASSISTANT_TURN),
    )  # fmt: skip
    rows = (
        select(calls.c.id, calls.c.tool, calls.c.place, calls.c.arguments, journal.c.body)
        .select_from(calls)
        .join(journal, asked_in)
        .where(calls.c.run_id == run_id, calls.c.tool.in_(sorted(tools)), has(calls.c.status, *_ANSWERS))
        .order_by(calls.c.step, calls.c.place, calls.c.generation)
    )
    return [
        RecordedCall(id=row.id, tool=row.tool, digest=digest(row.body["asks"][row.place]["arguments"] or {}))
        for row in tx.execute(rows)
    ]


def used(tx: Tx, run_id: str) -> set[str]:
    """The recorded calls that have answered one of this run."""
    answered = select(calls.c.answered_from).where(calls.c.run_id == run_id, calls.c.answered_from.is_not(None))
    return set(tx.execute(answered).scalars())


def results(tx: Tx, call_ids: Collection[str]) -> dict[str, RecordedResult]:
    names = ("effect", "status", "code", "content", "full_result")
    rows = select(calls.c.id, *(calls.c[name] for name in names)).where(calls.c.id.in_(sorted(call_ids)))
    return {
        row.id: RecordedResult(
            effect=Effect(row.effect), status=CallStatus(row.status), code=row.code, content=row.content,
            full=row.full_result,
        )
        for row in tx.execute(rows)
    }  # fmt: skip
