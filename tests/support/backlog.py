"""Backlogs: many queued turns over many threads and tenants, and what one dispatch among them reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Table, text

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.store import fairness, groups, schema
from chordage.orchestrator.store import starts as run_starts
from chordage.orchestrator.store.database import Store, Tx
from chordage.orchestrator.store.statements import PreparedStatement
from support.explaining import explained
from support.rows import NOW

BEFORE = timedelta(hours=1)
AT_ONCE = 20


def crowd(store: Store, queued: int, *, threads: int, tenants: int, prefix: str = "x", **fields: Any) -> None:
    """So many turns, spread evenly; the first of each thread is ready. A thread belongs to one tenant."""
    lines = [_thread(f"{prefix}{n}") for n in range(threads)]
    made = [_turn(prefix, n, threads, tenants) | fields for n in range(queued)]
    fill(store, {schema.threads: lines, schema.turns: made})


def fill(store: Store, rows_of: Mapping[Table, Sequence[Mapping[str, Any]]]) -> None:
    """With statistics, by which the database plans its statements."""
    load(store, rows_of)
    with store.unlimited() as tx:
        tx.execute(text("ANALYZE"))


def load(store: Store, rows_of: Mapping[Table, Sequence[Mapping[str, Any]]]) -> None:
    """By the shortest way into each table: SQLAlchemy takes several times as long for many rows."""
    with store.unlimited() as tx:
        for table, rows in rows_of.items():
            _copy(tx, table, rows)


def _copy(tx: Tx, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    names = list(rows[0])
    shape_of = {name: table.c[name].type.dialect_impl(tx.dialect).bind_processor(tx.dialect) for name in names}
    shaped = ([shape(row[name]) if (shape := shape_of[name]) else row[name] for name in names] for row in rows)
    raw: Any = tx.connection.driver_connection
    into = f"{table.name} ({', '.join(names)})"
    if tx.dialect.name == "sqlite":
        raw.executemany(f"INSERT INTO {into} VALUES ({', '.join('?' * len(names))})", shaped)
        return
    with raw.cursor() as cursor, cursor.copy(f"COPY {into} FROM STDIN") as copy:
        for values in shaped:
            copy.write_row(values)


def _thread(name: str) -> dict[str, Any]:
    return {"id": name, "agent": "ada", "arrivals": 1_000_000, "created_at": NOW, "updated_at": NOW}


def _turn(prefix: str, n: int, threads: int, tenants: int) -> dict[str, Any]:
    line, thread = divmod(n, threads)
    at = NOW - BEFORE + timedelta(milliseconds=n)
    return {
        "id": f"{prefix}turn{n:07}", "thread_id": f"{prefix}{thread}", "arrival": line + 1, "agent": "ada",
        "grp": "chat", "rank": 0, "tenant": f"{prefix}tenant{thread % tenants:05}", "status": "queued",
        "ready": int(line == 0), "steers": 0, "origin": "invoke", "sender": "service", "text": "hi", "meta": {},
        "strategy": "react", "control": "auto", "source": "test", "due_at": at, "queued_at": at, "nudge_at": at,
    }  # fmt: skip


def plans(store: Store, *, budget: int) -> dict[str, dict[str, Any]]:
    """How PostgreSQL carries out what one dispatch sends, with the pages it touches; nothing of it stays."""
    looked = {"group": Group.CHAT.value, "now": NOW}
    place = fairness.StartRule.FIRST if budget == 1 else fairness.StartRule.HAS_SLOT
    with store.write() as tx:
        first = fairness.next_turns(tx, Group.CHAT, NOW, 1)[0][0]
        starts = {**looked, "turn_id": first, "run": "r", "budget": budget, "drawn": 7, "until": NOW, "worker": "w"}
        starts |= {"digest": None, "digests": "{}"}
        asked: dict[str, tuple[PreparedStatement, Mapping[str, Any]]] = {
            "free": (groups._PLACES, {"group": Group.CHAT.value, "budget": budget}),
            "heads": (fairness._NEXT_TURN, looked)
            if budget == 1
            else (fairness._NEXT_TURNS, {**looked, "as_many": AT_ONCE}),
            "start": (run_starts._OPEN_RUN[place], starts),
            "handed on": (run_starts._OPEN_NEXT, {**starts, "ended": "none", "run": "n"}),
        }
        found = {name: _explain(tx, *one) for name, one in asked.items()}
        tx.rollback()
    return found


def _explain(tx: Any, hot: PreparedStatement, binds: Mapping[str, Any]) -> dict[str, Any]:
    ((told,),) = explained(tx, hot, binds, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)")
    (plan,) = told if isinstance(told, list) else json.loads(told)
    return plan


def pages(plan: Mapping[str, Any]) -> int:
    top = plan["Plan"]
    return int(top["Shared Hit Blocks"] + top["Shared Read Blocks"])
