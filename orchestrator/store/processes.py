"""The presence of processes: a row for each that carries out work, renewed every few seconds.

A process that is gone stays on record for a while, so that what it held is found by every sweep. What it wrote late, or
a process that was wrongly taken for dead, is told apart by nothing here: the guards of runs and calls do that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import delete, func, select, update

from chordage.orchestrator.core.presence import HeldWork, Presence, Process
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.predicates import CALLS_IN_FLIGHT, RUNNING_RUNS
from chordage.orchestrator.store.schema import calls, processes, runs
from chordage.orchestrator.store.statements import insert_or

GONE = select(processes.c.id).where(processes.c.gone_at.is_not(None))


def show(tx: Tx, present: Sequence[Process], now: datetime) -> None:
    """These processes live, also those that were taken for dead."""
    rows = [
        {
            "id": one.id, "machine": one.machine, "pid": one.pid, "born": one.born, "queues": _listed(one.queues),
            "seen_at": now, "gone_at": None, "version": one.version,
            "agents": None if one.agents is None else dict(one.agents), "drill": int(one.drill),
        }
        for one in sorted(present, key=lambda one: one.id)
    ]  # fmt: skip
    added = insert_or(tx.dialect.name, processes).values(rows)
    known = {"queues": added.excluded.queues, "agents": func.coalesce(added.excluded.agents, processes.c.agents)}
    shown = {"seen_at": now, "gone_at": None, **known}
    tx.execute(added.on_conflict_do_update(index_elements=["id"], set_=shown))


def _listed(queues: tuple[str, ...] | None) -> str | None:
    return None if queues is None else ",".join(queues)


def present(tx: Tx) -> list[Presence]:
    rows = tx.execute(select(processes).where(processes.c.gone_at.is_(None)))
    return [
        Presence(process=Process(id=row.id, machine=row.machine, pid=row.pid, born=row.born), seen_at=row.seen_at)
        for row in rows
    ]


def with_their_work(tx: Tx) -> list[HeldWork]:
    """Those that went lately too."""
    held_runs = select(runs.c.claim_worker, func.count()).where(RUNNING_RUNS)
    of_runs = {row[0]: row[1] for row in tx.execute(held_runs.group_by(runs.c.claim_worker))}
    held_calls = select(calls.c.worker, func.count()).where(CALLS_IN_FLIGHT)
    of_calls = {row[0]: row[1] for row in tx.execute(held_calls.group_by(calls.c.worker))}
    return [
        HeldWork(
            id=row.id, machine=row.machine, pid=row.pid, born=row.born, seen_at=row.seen_at, gone_at=row.gone_at,
            runs=of_runs.get(row.id, 0), calls=of_calls.get(row.id, 0),
            queues=None if row.queues is None else tuple(row.queues.split(",")), version=row.version,
            agents=row.agents, drill=bool(row.drill),
        )
        for row in tx.execute(select(processes).order_by(processes.c.machine, processes.c.id))
    ]  # fmt: skip


def mark_gone(tx: Tx, seen: Presence, now: datetime) -> bool:
    """Unless it has shown itself since. False too where another process was first to see it."""
    silent = update(processes).where(
        processes.c.id == seen.process.id, processes.c.seen_at == seen.seen_at, processes.c.gone_at.is_(None)
    )
    return tx.execute(silent.values(gone_at=now)).rowcount == 1


def mark_ended(tx: Tx, ids: Collection[str], now: datetime) -> None:
    """They end in order: their parent says so itself."""
    ended = update(processes).where(processes.c.id.in_(sorted(ids)), processes.c.gone_at.is_(None))
    tx.execute(ended.values(gone_at=now))


def gone(tx: Tx) -> list[str]:
    return list(tx.execute(GONE).scalars())


def has_gone_since(tx: Tx, since: datetime) -> bool:
    return tx.execute(GONE.where(processes.c.gone_at >= since).limit(1)).first() is not None


def is_gone(tx: Tx, process_id: str) -> bool:
    return tx.execute(GONE.where(processes.c.id == process_id)).first() is not None


def forget(tx: Tx, before: datetime) -> None:
    """Of what went before then, nothing is looked for any more."""
    tx.execute(delete(processes).where(processes.c.gone_at < before))
